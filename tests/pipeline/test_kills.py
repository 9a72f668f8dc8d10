"""Whatever is killed, and whenever: `dvc repro` goes on, ends in the same weights, and leaves no process behind."""

import random
import signal
import sys
from collections.abc import Iterator

import pytest

from config.paths import TRAINING_STAGES
from tests.pipeline.clone import MINI, Clone
from tests.pipeline.kills import (
    Moment,
    Repro,
    TrainerCount,
    after,
    logged,
    published,
    publishing,
    resumes,
    starting,
    writing,
)

pytestmark = pytest.mark.pipeline
TO_SFT = (sys.executable, "-m", "dvc", "repro", "sft")
SEED = 5


def cut_off(clone: Clone, profile: str, victim: str, moment: Moment, number: int = signal.SIGKILL) -> str:
    """Start `dvc repro`, send a signal at a moment, wait until nothing of it is left; what it printed."""
    with Repro(clone, *TO_SFT) as repro:
        repro.until(moment, profile)
        repro.kill(victim, number)
        assert repro.ends() != 0, repro.text
        return repro.text


def moments() -> Iterator[tuple[str, Moment]]:
    """Whom to kill, and when: through the whole run in order, some at fixed places, some drawn."""
    draw = random.Random(SEED)
    yield "stage", starting("shard")
    yield "dvc", starting("pretrain")
    for stage in TRAINING_STAGES:
        first, second = sorted(draw.sample(range(2, 38), 2))
        yield draw.choice(["dvc", "stage"]), after(stage, first)
        yield draw.choice(["dvc", "stage"]), after(stage, second)
    yield "stage", writing("sft")


def test_killed_again_and_again_it_ends_in_the_same_weights(trained: Clone, fresh: Clone) -> None:
    with TrainerCount(fresh) as count:
        for victim, moment in moments():
            cut_off(fresh, "mini", victim, moment)
        done = fresh.repro("sft")
    assert done.stages[-1] == "sft"
    assert fresh.weights("mini") == trained.weights("mini")
    assert count.most == 1, "two trainers at once"
    for stage in TRAINING_STAGES:
        assert logged(fresh, "mini", stage) == list(range(2, 41, 2))
        assert resumes(fresh, "mini", stage)
