"""A stage's process among others: it dies with the one that started it, and owns its work folder alone."""

import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from config.errors import UserError
from config.files import read_json, write_json
from config.paths import RunPaths

LOCK_WAIT_S = 20  # for a trainer that is dying, after its dvc was killed
KEPT_FINGERPRINTS = 2
PR_SET_PDEATHSIG = 1


def start(stage: str) -> RunPaths:
    """Begin `python -m stages.<stage> <profile>`: tie this process to its parent, and say where the run's files are."""
    if len(sys.argv) != 2:
        raise UserError(f"usage: python -m stages.{stage} <profile>")
    die_with_parent()
    return RunPaths(sys.argv[1])


def die_with_parent() -> None:
    """Ask the kernel (Linux) to kill this process when its parent dies: an orphaned trainer would go on for days while
    the next `dvc repro` starts a second one. Survives exec. Only under dvc or torchrun: a trainer that somebody starts
    from a shell may outlive the shell.

    The parent may have died before we asked, and a session's manager adopted us: python.sh and stages.launch note in
    TANDEM_PARENT who it was.
    """
    if not sys.platform.startswith("linux") or not {"DVC_STAGE", "DVC_ROOT", "LOCAL_RANK"} & set(os.environ):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get("TANDEM_PARENT", str(os.getppid())) != str(os.getppid()):
        os._exit(1)


def fingerprint(parts: dict[str, Any]) -> str:
    """A short hash of everything that decides a stage's weights."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class WorkFolder:
    """`.work/<profile>/<stage>-<fingerprint>/`: progress of a stage, outside of what DVC deletes."""

    def __init__(self, paths: RunPaths, stage: str, mark: str) -> None:
        self.paths, self.stage, self.mark = paths, stage, mark
        self.path = paths.work / f"{stage}-{mark}"
        self.state_file = self.path / "state.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the stage's lock; UserError when another process keeps it."""
        self.paths.work.mkdir(parents=True, exist_ok=True)
        with (self.paths.work / f"{self.stage}.lock").open("a+") as file:
            deadline = time.monotonic() + LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        file.seek(0)
                        raise UserError(
                            f"process {file.read().strip() or 'unknown'} already runs {self.stage} of "
                            f"{self.paths.profile}; wait for it or stop it"
                        ) from None
                    time.sleep(0.1)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def open(self, code: str) -> dict[str, Any]:
        """Make the folder the current one and return its state: `finished`, and whether the `code` changed since it
        was begun. A finished run under changed code is cleared and starts anew; an unfinished one goes on."""
        state = read_json(self.state_file, "a run's state") if self.state_file.exists() else None
        if state is not None and state["finished"] and state["code"] != code:
            print(f"{self.stage}: the code has changed since this run finished; it starts anew", flush=True)
            # Away at once: a kill halfway through must not leave checkpoints without the state that disowns them.
            old = self.path.with_name(f".{self.path.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            self.path.rename(old)
            shutil.rmtree(old)
            state = None
        if state is None:
            self.path.mkdir(parents=True, exist_ok=True)
            state = {"code": code, "code_changed": False, "finished": False}
        elif state["code"] != code:
            state |= {"code_changed": True}
        write_json(self.state_file, state)
        os.utime(self.path)
        write_json(self.paths.work / "current.json", {"stage": self.stage, "folder": self.path.name})
        self._prune()
        return state

    def finish(self) -> None:
        """Mark the run as complete: a second start only publishes it."""
        write_json(self.state_file, read_json(self.state_file, "a run's state") | {"finished": True})

    def _prune(self) -> None:
        folders = [path for path in self.paths.work.glob(f"{self.stage}-*") if path.is_dir()]
        for old in sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT_FINGERPRINTS:]:
            size = sum(file.stat().st_size for file in old.rglob("*") if file.is_file())
            shutil.rmtree(old)
            print(f"{self.stage}: removed work of older parameters, {old.name}, {size / 1e6:,.0f} MB", flush=True)
