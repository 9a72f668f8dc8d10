"""Kills the smoke profile with -9 at random moments, from its first second to its last, and sees what becomes of it.

    python -m tests.pipeline.kill_smoke [--kills 10] [--seed 0] [--processes 1] [--keep FOLDER]

A line a kill; status 1 if any run did not end in the weights of an undisturbed one, left a process behind, or had two
trainers at once. Ten kills take about twenty minutes on two cores, so pytest does not collect this: test_kills.py does
the same in little.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

from config.paths import TRAINING_STAGES
from tests.pipeline.clone import Clone, Done
from tests.pipeline.kills import Repro, TrainerCount, resumes

# DVC writes dvc.lock in place, in about 60 ms a stage: killed meanwhile, it leaves a file that it refuses to read.
DAMAGED_LOCK = ("dvc.lock' validation failed", "YAML file structure is corrupted")


class TooLateError(Exception):
    """The run had ended: the machine has become quicker since the undisturbed one."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it there")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="kill-smoke-"))
    draw = random.Random(options.seed)
    victims = ("dvc", "stage") if options.processes == 1 else ("dvc", "stage", "rank")
    try:
        undisturbed = Clone.make(folder / "undisturbed")
        undisturbed.params("smoke", {"run": {"processes": options.processes}})
        untouched = undisturbed.copy(folder / "untouched")
        started = time.monotonic()
        undisturbed.repro("sft")
        length = time.monotonic() - started
        print(f"undisturbed: {length:.0f} s", flush=True)
        number = failures = 0
        while number < options.kills:
            clone = untouched.copy(folder / f"{number + 1:02}")
            try:
                moment = draw.uniform(0, length)
                said, passed = kill(clone, draw.choice(victims), moment, undisturbed, options.processes)
            except TooLateError:
                print(f"a run ended before it could be killed after {moment:.1f} s", flush=True)
                length = moment
                shutil.rmtree(clone.path)
                continue
            number += 1
            failures += not passed
            print(f"{number:2}/{options.kills} {said}: {'passed' if passed else 'FAILED'}", flush=True)
            if not options.keep:
                shutil.rmtree(clone.path)
        return 1 if failures else 0
    finally:
        if not options.keep:
            shutil.rmtree(folder)


def kill(clone: Clone, victim: str, seconds: float, undisturbed: Clone, processes: int) -> tuple[str, bool]:
    """Run, kill after so many seconds, run again to the end; what happened, and whether that is as it should be."""
    with TrainerCount(clone) as count:
        with Repro(clone, "smoke", "sft") as repro:
            deadline = time.monotonic() + seconds
            repro.until(lambda repro: repro.guardian.poll() is not None or time.monotonic() >= deadline)
            if repro.guardian.poll() is not None:
                raise TooLateError
            try:
                repro.kill(victim, signal.SIGKILL)
            except (IndexError, psutil.NoSuchProcess):  # between two stages dvc is alone
                victim = "dvc, there was nothing else"
                repro.kill("dvc", signal.SIGKILL)
            repro.ends()
            stages = Done(0, repro.text, "").stages
        done = clone.python("dvc", "repro", "sft")
        damaged = any(words in done.text for words in DAMAGED_LOCK)
        if damaged:
            (clone.path / "dvc.lock").unlink()
            done = clone.python("dvc", "repro", "sft")
    said = f"{victim} killed after {seconds:5.1f} s, in {stages[-1] if stages else 'no stage yet'}"
    if damaged:
        said += "; dvc.lock was cut off and had to be deleted"
    if done.status:
        return f"{said}; then dvc repro failed:\n{done.text[-3000:]}", False
    resumed = [f"{stage} {step}" for stage in TRAINING_STAGES for step in resumes(clone, "smoke", stage)]
    same = clone.weights("smoke") == undisturbed.weights("smoke")
    said += f"; ran {', '.join(done.stages)}; resumed from {', '.join(resumed) or 'no checkpoint'}"
    said += f"; weights {'the same' if same else 'DIFFER'}; {len(clone.processes())} processes left"
    return f"{said}; at most {count.most} trainers", same and not clone.processes() and count.most <= processes


if __name__ == "__main__":
    sys.exit(main())
