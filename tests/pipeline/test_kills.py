"""Whatever is killed, and whenever: `dvc repro` goes on, ends in the same weights, and leaves no process behind."""

import fcntl
import random
import signal
import sys

import pytest
import yaml

from config.paths import TRAINING_STAGES
from tests.pipeline.clone import Clone
from tests.pipeline.kills import Moment, Repro, TrainerCount, after, logged, published, resumes, starting, writing

pytestmark = pytest.mark.pipeline
SEED = 5


def cut_off(clone: Clone, profile: str, victim: str, moment: Moment, number: int = signal.SIGKILL) -> str:
    """Start `dvc repro`, send a signal at a moment, wait until nothing of it is left; what it printed."""
    with Repro(clone, profile, "sft") as repro:
        repro.until(moment)
        repro.kill(victim, number)
        assert repro.ends() != 0, repro.text
        return repro.text


def locked_stages(clone: Clone) -> set[str]:
    """The stages whose outs DVC knows."""
    return set(yaml.safe_load((clone.path / "dvc.lock").read_text())["stages"])


def test_cut_off_again_and_again_it_ends_in_the_same_weights(trained: Clone, fresh: Clone) -> None:
    draw = random.Random(SEED)
    early, late = draw.randrange(2, 18), draw.randrange(20, 38)
    with TrainerCount(fresh) as count:
        cut_off(fresh, "mini", "stage", starting("shard"))
        cut_off(fresh, "mini", "dvc", starting("pretrain"))
        assert not list(fresh.paths("mini").work.glob("pretrain-*")), "an orphan went on training"
        cut_off(fresh, "mini", "dvc", after("pretrain", early))
        cut_off(fresh, "mini", "stage", after("pretrain", late))
        cut_off(fresh, "mini", "dvc", published("pretrain"))
        assert "pretrain" not in locked_stages(fresh)

        text = cut_off(fresh, "mini", "stage", after("midtrain", early), signal.SIGTERM)
        assert "Running stage 'pretrain'" in text and "pretrain 40/40" not in text, "it has only to be published"
        assert "SIGTERM received: saved at update" in text
        text = cut_off(fresh, "mini", "all", after("midtrain", late), signal.SIGINT)
        assert "SIGINT received: saved at update" in text and "Traceback" not in text

        cut_off(fresh, "mini", "stage", writing("sft"))
        cut_off(fresh, "mini", draw.choice(["dvc", "stage"]), after("sft", late))
        done = fresh.repro("sft")
    assert done.stages == ["resolve", "sft"]
    assert fresh.weights("mini") == trained.weights("mini")
    assert count.most == 1, "two trainers at once"
    for stage in TRAINING_STAGES:
        assert logged(fresh, "mini", stage) == list(range(1, 41))
    assert len(resumes(fresh, "mini", "midtrain")) == 2
    for stopped, resumed in zip((early, late), resumes(fresh, "mini", "midtrain"), strict=True):
        assert resumed >= stopped, "a signal saves the update that it came in"


def test_two_ranks_cut_off_end_in_the_weights_of_two_undisturbed_ones(fresh: Clone) -> None:
    fresh.profile("pair", {"extends": "mini", "run": {"processes": 2}})
    fresh.params("pair")
    fresh.repro("shard")
    undisturbed = fresh.copy(fresh.path.with_name("undisturbed"))
    done = undisturbed.python("stages.launch", "pretrain", "pair")
    assert done.status == 0, done.text
    with TrainerCount(fresh) as count:
        cut_off(fresh, "pair", "dvc", starting("pretrain"))
        text = cut_off(fresh, "pair", "rank", after("pretrain", 6))
        assert "error: rank 1 of pretrain was killed" in text and "Traceback" not in text
        cut_off(fresh, "pair", "stage", after("pretrain", 14))
        cut_off(fresh, "pair", "dvc", after("pretrain", 22))
        text = cut_off(fresh, "pair", "stage", after("pretrain", 31), signal.SIGTERM)
        assert "SIGTERM received: saved at update" in text
        fresh.repro("pretrain")
    assert count.most == 2
    weights = [
        (clone.paths("pair").model("pretrain") / "model.safetensors").read_bytes() for clone in (fresh, undisturbed)
    ]
    assert weights[0] == weights[1]
    assert logged(fresh, "pair", "pretrain") == list(range(1, 41))


def test_a_second_trainer_is_refused(trained: Clone) -> None:
    """Even when somebody starts one by hand, past DVC."""
    code = (
        "import runpy, sys, stages.process\n"
        "stages.process.LOCK_WAIT_S = 0.2\n"
        "sys.argv = ['stages.pretrain', 'mini']\n"
        "runpy.run_module('stages.pretrain', run_name='__main__')"
    )
    with (trained.paths("mini").work / "pretrain.lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = trained.run(sys.executable, "-c", code)
    assert done.status == 1
    assert len(done.errors) == 1 and "already runs pretrain of mini" in done.errors[0]
