"""What an edit reruns: only what depends on it, and nothing when it is taken back."""

import re
from pathlib import Path

import pytest

from config.paths import ROOT
from tests.pipeline.clone import MINI, Clone

pytestmark = pytest.mark.pipeline
SFT_ON = ["resolve", "sft", "evaluate", "report", "chat"]


@pytest.fixture
def clone(trained: Clone, tmp_path: Path) -> Clone:
    """A copy of the trained clone, to be changed."""
    return trained.copy(tmp_path / "clone")


def changed(clone: Clone, trained: Clone) -> list[str]:
    """The training stages whose weights differ from the original's."""
    weights, original = clone.weights("mini"), trained.weights("mini")
    return [stage for stage in weights if weights[stage] != original[stage]]


def test_an_override_retrains_what_it_concerns_and_taking_it_back_restores_all(trained: Clone, clone: Clone) -> None:
    clone.params("mini", {"sft": {"learning_rate": 0.004}})
    assert clone.repro().stages == SFT_ON
    assert changed(clone, trained) == ["sft"]
    clone.params("mini")
    assert clone.repro().stages == ["resolve"]
    assert changed(clone, trained) == []
    assert clone.json("runs", "mini", "chat.json") == trained.json("runs", "mini", "chat.json")


def test_an_experiment_does_the_same(trained: Clone, clone: Clone) -> None:
    """With params.yaml as it is shipped: -S sets no key that isn't there."""
    shipped = (ROOT / "params.yaml").read_text(encoding="utf-8")
    (clone.path / "params.yaml").write_text(re.sub("(?m)^profile: .*", "profile: mini", shipped), encoding="utf-8")
    clone.commit()
    done = clone.python("dvc", "exp", "run", "-S", "overrides.sft.learning_rate=0.004", "sft")
    assert done.status == 0, done.text
    assert done.stages == ["resolve", "sft"]
    assert changed(clone, trained) == ["sft"]
    clone.git("checkout", "params.yaml")
    assert clone.repro("sft").stages == ["resolve"]
    assert changed(clone, trained) == []


def test_how_a_run_is_carried_out_retrains_nothing(trained: Clone, clone: Clone) -> None:
    clone.params(
        "mini", {"run": {"log_updates": 7, "checkpoint_updates": 3, "loader_slots": 2, "sample_prompts": ["Hi"]}}
    )
    assert clone.repro().stages == ["resolve"]
    assert changed(clone, trained) == []


def test_a_child_sees_its_parents_edits_and_both_keep_their_runs(trained: Clone, clone: Clone) -> None:
    clone.profile("child", {"extends": "mini", "sft": {"seed": 1}})
    clone.params("child")
    assert clone.repro("tokenize").stages == ["resolve", "tokenize"]
    tokenizer = clone.paths("child").tokenizer
    assert len(clone.json(*tokenizer.relative_to(clone.path).parts)["model"]["vocab"]) == 400

    clone.profile("mini", MINI | {"pretrain": MINI["pretrain"] | {"learning_rate": 0.01}})
    assert clone.repro("tokenize").stages == ["resolve"], "not its business"
    clone.profile("mini", MINI | {"tokenizer": {"vocab_size": 390, "sample_megabytes": 0.1}})
    assert clone.repro("tokenize").stages == ["resolve", "tokenize"]
    assert len(clone.json(*tokenizer.relative_to(clone.path).parts)["model"]["vocab"]) == 390

    clone.profile("mini", MINI)
    clone.params("mini")
    assert clone.repro().stages == ["resolve"], "the other profile's run is as it was left"
    assert changed(clone, trained) == [] and tokenizer.exists()


def test_a_dvc_lock_that_a_kill_left_empty_is_deleted_without_harm(trained: Clone, clone: Clone) -> None:
    """DVC writes it in place, and refuses to read what is left when it is killed meanwhile."""
    lock = clone.path / "dvc.lock"
    lock.write_text("")
    done = clone.python("dvc", "repro")
    assert done.status != 0 and "dvc.lock" in done.err
    lock.unlink()
    assert clone.repro().stages == ["resolve"]
    assert changed(clone, trained) == []
