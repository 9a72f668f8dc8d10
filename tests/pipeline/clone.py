"""A copy of the working tree with a git history, a DVC cache and runs of its own: what every pipeline test works in.

Uncommitted files come along, so that the tests judge what is there. kill_smoke.py uses this too.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from config.paths import ROOT, TRAINING_STAGES, RunPaths

# The smoke profile made as small as its shape allows: 40 updates a stage of a model of 31,000 weights.
MINI = {
    "extends": "smoke",
    "data": {
        "context": 64,
        "pretrain": [{"builtin": "smoke_documents", "count": 600}],
        "midtrain": [{"builtin": "smoke_chats", "count": 600}],
        "sft": [{"builtin": "smoke_chats", "count": 600}],
    },
    "tokenizer": {"vocab_size": 400, "sample_megabytes": 0.1},
    "model": {"width": 32, "layers": 2},
    **{stage: {"tokens": 40 * 512, "batch_tokens": 512, "micro_batch": 8} for stage in TRAINING_STAGES},
    "evaluate": {"prompts": 20, "max_tokens": 16, "tasks": {"calculator": 0.0}, "chat_prompts": ["Hello!"]},
    "run": {"log_updates": 1, "checkpoint_updates": 5, "sample_texts": ["The"], "sample_prompts": ["Hello!"]},
}


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def stages(self) -> list[str]:
        """The stages that a `dvc repro` ran, in order; those it took from its cache are not among them."""
        return [line.split("'")[1] for line in self.out.splitlines() if line.startswith("Running stage '")]

    @property
    def errors(self) -> list[str]:
        """What it said to the user: lines that begin with `error: `."""
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


class Clone:
    """A working tree in `path`, outside the checkout."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, path: Path) -> "Clone":
        """Copy what git tracks or would track, dvc.lock left out, and commit it."""
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        for name in sorted(set(filter(None, names)) - {"dvc.lock"}):
            if (ROOT / name).is_file():  # git still lists what was deleted since
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, path / name)
        clone = cls(path)
        clone.git("init", "--quiet")
        clone.commit()
        return clone

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
        done = self.run("git", *identity, *arguments)
        assert done.status == 0, done.text
        return done.out

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "state of the test")

    def environment(self) -> dict[str, str]:
        """The tests' own Python first in PATH, one thread, and nothing of a dvc that may be running the tests."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "GIT_", "TANDEM_"))}
        return kept | {
            "VIRTUAL_ENV": sys.prefix,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "DVC_SITE_CACHE_DIR": str(self.path.with_name(f"{self.path.name}.dvc-site")),
        }

    def start(self, *command: str, **options: Any) -> subprocess.Popen:
        """Start a command in the clone."""
        options = {"cwd": self.path, "env": self.environment(), "stdin": subprocess.DEVNULL} | options
        return subprocess.Popen(command, **options)

    def run(self, *command: str, timeout: float = 300) -> Done:
        """Run a command in the clone to its end."""
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return Done(process.returncode, out, err)

    def python(self, *arguments: str, timeout: float = 300) -> Done:
        """Run `python -m …`."""
        return self.run(sys.executable, "-m", *arguments, timeout=timeout)

    def repro(self, *arguments: str) -> Done:
        """`dvc repro`, which has to succeed."""
        done = self.python("dvc", "repro", *arguments)
        assert done.status == 0, done.text[-6000:]
        return done

    def profile(self, name: str, values: Mapping[str, Any]) -> None:
        """Write profiles/<name>.yaml."""
        text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
        (self.path / "profiles" / f"{name}.yaml").write_text(text, encoding="utf-8")

    def params(self, profile: str, overrides: Mapping[str, Any] | None = None) -> None:
        """Write params.yaml."""
        values = {"profile": profile, "overrides": dict(overrides or {})}
        (self.path / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")

    def paths(self, profile: str) -> RunPaths:
        return RunPaths(profile, self.path)

    def weights(self, profile: str) -> dict[str, str]:
        """The SHA-256 of the published weights of each stage."""
        return {
            stage: hashlib.sha256((self.paths(profile).model(stage) / "model.safetensors").read_bytes()).hexdigest()
            for stage in TRAINING_STAGES
        }

    def json(self, *parts: str) -> Any:
        return json.loads(self.path.joinpath(*parts).read_text(encoding="utf-8"))

    def copy(self, path: Path) -> "Clone":
        """The clone with all it has trained so far, in another place."""
        shutil.copytree(self.path, path, symlinks=True)
        return Clone(path)

    def processes(self) -> list[psutil.Process]:
        """Every process that works in the clone, whatever its parent; those that have ended don't count."""
        found = []
        for process in psutil.process_iter():
            try:
                if Path(process.cwd()).is_relative_to(self.path) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found
