"""Killing `dvc repro` at chosen moments, and looking at what is left: used by test_kills.py and kill_smoke.py."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Self

import psutil

from config.paths import TRAINING_STAGES
from tests.pipeline.clone import Clone
from training.telemetry import read_events

POLL_S = 0.01
LONGEST_S = 180  # for a moment to come
DYING_S = 30  # for processes to be gone: a rank that was just importing torch notices afterwards

Moment = Callable[[Clone, str], bool]


class Repro:
    """A `dvc repro` (or another command) under way; its output lies in `<clone>.log`. A context manager: what is still
    running at the end is killed."""

    def __init__(self, clone: Clone, *command: str) -> None:
        self.clone = clone
        self.log = clone.path.with_name(f"{clone.path.name}.log")
        with self.log.open("w") as file:  # a group of its own, as a terminal would make
            self.process = clone.start(*command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for process in self.clone.processes():
            process.kill()

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def until(self, moment: Moment, profile: str) -> None:
        """Wait for a moment; the command must not end before it."""
        deadline = time.monotonic() + LONGEST_S
        while not moment(self.clone, profile):
            assert self.process.poll() is None, f"ended before the moment came:\n{self.text[-4000:]}"
            assert time.monotonic() < deadline, f"the moment never came:\n{self.text[-4000:]}"
            time.sleep(POLL_S)

    def kill(self, victim: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to "dvc", to the "stage" that it runs (torchrun, where there are several ranks), to the last
        "rank", or to "all" of the group, as Ctrl-C in a terminal does."""
        if victim == "all":
            os.killpg(self.process.pid, number)
            return
        dvc = psutil.Process(self.process.pid)
        stage = [dvc] if victim == "dvc" else dvc.children()
        process = stage[0].children()[-1] if victim == "rank" else stage[0]
        process.send_signal(number)

    def ends(self) -> int:
        """Wait for the command to end and for all its processes to be gone; its status."""
        status = self.process.wait(LONGEST_S)
        gone(self.clone)
        return status


def gone(clone: Clone) -> None:
    """Wait until no process works in the clone; AssertionError, with what they are, if they stay."""
    deadline = time.monotonic() + DYING_S
    while left := clone.processes():
        assert time.monotonic() < deadline, f"left behind: {[' '.join(cmdline(process)) for process in left]}"
        time.sleep(POLL_S)


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


def progress(clone: Clone, profile: str, stage: str) -> int:
    """Updates that a stage has logged, while it runs; 0 when another one runs."""
    work = clone.paths(profile).work
    try:
        current = json.loads((work / "current.json").read_text())
        events = read_events(work / current["folder"] / "events.jsonl") if current["stage"] == stage else []
    except FileNotFoundError:
        return 0
    return max((event["step"] for event in events if event["event"] == "log"), default=0)


def after(stage: str, step: int) -> Moment:
    """When a stage has logged an update."""
    return lambda clone, profile: progress(clone, profile, stage) >= step


def starting(stage: str) -> Moment:
    """When a stage's process is there and has yet to do anything."""
    words = {"stages.launch", stage} if stage in TRAINING_STAGES else {f"stages.{stage}"}
    return lambda clone, _: any(words <= set(cmdline(process)) for process in clone.processes())


def writing(stage: str) -> Moment:
    """When a checkpoint is being written."""
    return lambda clone, profile: any(clone.paths(profile).work.glob(f"{stage}-*/checkpoints/.step-*.tmp"))


def publishing(stage: str) -> Moment:
    """When a stage has begun to write its outs."""
    return lambda clone, profile: clone.paths(profile).model(stage).exists()


def published(stage: str) -> Moment:
    """When the last of a stage's outs is there, and dvc.lock does not know it yet."""
    return lambda clone, profile: clone.paths(profile).metrics(stage).exists()


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
