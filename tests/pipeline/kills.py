"""Killing `dvc repro` at chosen moments, and looking at what is left: used by test_kills.py and kill_smoke.py."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Self

import psutil

from config.paths import TRAINING_STAGES
from tests.pipeline.clone import Clone
from training.telemetry import read_events

POLL_S = 0.01
LONGEST_S = 120  # for a moment to come, or for a command to end

Moment = Callable[["Repro"], bool]


# Adopts the orphans below it, as systemd does in a desktop session and as process 1 does in a container; ends when the
# last of them has ended, with the status of the command.
GUARDIAN = """
import ctypes, os, signal, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
command = subprocess.Popen(sys.argv[2:], cwd=sys.argv[1])
signal.signal(signal.SIGINT, signal.SIG_IGN)
status = command.wait()
while True:
    try:
        os.wait()
    except ChildProcessError:
        sys.exit(status & 0xFF)
"""


class Repro:
    """A `dvc repro` of a profile under way; its output lies in `<clone>.log`. A context manager: what is still running
    at the end is killed."""

    def __init__(self, clone: Clone, profile: str, *targets: str) -> None:
        self.clone, self.paths, self.started = clone, clone.paths(profile), time.time()
        self.log = clone.path.with_name(f"{clone.path.name}.log")
        guarded = (sys.executable, "-c", GUARDIAN, str(clone.path), sys.executable, "-m", "dvc", "repro", *targets)
        with self.log.open("w") as file:  # a group of its own, as a terminal would make
            self.guardian = clone.start(
                *guarded, cwd=clone.path.parent, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.clone.processes():
            process.kill()
        self.guardian.kill()
        self.guardian.wait()

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def until(self, moment: Moment) -> None:
        """Wait for a moment; the command must not end before it."""
        deadline = time.monotonic() + LONGEST_S
        while not moment(self):
            assert self.guardian.poll() is None, f"ended before the moment came:\n{self.text[-4000:]}"
            assert time.monotonic() < deadline, f"the moment never came:\n{self.text[-4000:]}"
            time.sleep(POLL_S)

    def kill(self, victim: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to "dvc", to the "stage" that it runs (torchrun, where there are several ranks), to the last
        "rank", or to "all" of them, as Ctrl-C in a terminal does."""
        if victim == "all":
            os.killpg(self.guardian.pid, number)
            return
        (dvc,) = psutil.Process(self.guardian.pid).children()
        if victim == "dvc":
            dvc.send_signal(number)
        elif victim == "stage":
            dvc.children()[0].send_signal(number)
        else:
            dvc.children()[0].children()[-1].send_signal(number)

    def ends(self) -> int:
        """Wait for the command to end and for all its processes to be gone; its status."""
        status = self.guardian.wait(LONGEST_S)
        assert not self.clone.processes()
        return status


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def trainers(clone: Clone) -> list[psutil.Process]:
    """The ranks that train: `python -m stages.<training stage>`."""
    modules = {f"stages.{stage}" for stage in TRAINING_STAGES}
    lines = [(process, set(cmdline(process))) for process in clone.processes()]
    return [process for process, line in lines if modules & line and "torch.distributed.run" not in line]


def after(stage: str, step: int) -> Moment:
    """When a stage has logged an update."""

    def reached(repro: Repro) -> bool:
        try:
            current = json.loads((repro.paths.work / "current.json").read_text())
            events = read_events(repro.paths.work / current["folder"] / "events.jsonl")
        except FileNotFoundError:
            return False
        logs = [event for event in events if event["event"] == "log" and event["time"] > repro.started]
        return current["stage"] == stage and bool(logs) and logs[-1]["step"] >= step

    return reached


def starting(stage: str) -> Moment:
    """When a stage's process is there and has yet to do anything."""
    words = {"stages.launch", stage} if stage in TRAINING_STAGES else {f"stages.{stage}"}
    return lambda repro: any(words <= set(cmdline(process)) for process in repro.clone.processes())


def writing(stage: str) -> Moment:
    """When a checkpoint is being written."""
    return lambda repro: any(repro.paths.work.glob(f"{stage}-*/checkpoints/.step-*.tmp"))


def published(stage: str) -> Moment:
    """When the last of a stage's outs is there, and dvc.lock does not know it yet."""
    return lambda repro: repro.paths.metrics(stage).exists()


class TrainerCount(threading.Thread):
    """Looks at the clone's processes all the time: `most` is the largest number of ranks seen at once."""

    def __init__(self, clone: Clone) -> None:
        super().__init__(daemon=True)
        self.clone, self.most, self._ended = clone, 0, threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.1):
            self.most = max(self.most, len(trainers(self.clone)))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def resumes(clone: Clone, profile: str, stage: str) -> list[int]:
    """The updates from which a finished stage went on after it was cut off."""
    events = read_events(clone.paths(profile).events(stage))
    return [event["step"] for event in events if event["event"] == "resume"]


def logged(clone: Clone, profile: str, stage: str) -> list[int]:
    """The updates in a finished stage's log, in order."""
    return [event["step"] for event in read_events(clone.paths(profile).events(stage)) if event["event"] == "log"]
