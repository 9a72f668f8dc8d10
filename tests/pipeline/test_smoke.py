"""The smoke profile from text to chat, through `dvc repro` in a copy of the working tree."""

import json

import pytest

from config.paths import TRAINING_STAGES
from tests.pipeline.clone import Clone, Done
from training.telemetry import read_events

pytestmark = pytest.mark.pipeline

FILES = [
    "profile.yaml",
    "sources.json",
    "tokenizer/tokenizer.json",
    "shards/manifest.json",
    *(f"{stage}/{file}" for stage in TRAINING_STAGES for file in ("model.safetensors", "config.json", "tokenizer.json")),
    *(f"{pattern}".format(stage) for stage in TRAINING_STAGES for pattern in ("metrics/{}.json", "plots/{}.csv", "events/{}.jsonl")),
    "metrics/evaluate.json",
    "report.html",
    "chat.json",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Clone, Done]:
    """The clone and what `dvc repro` said."""
    clone = Clone.make(tmp_path_factory.mktemp("smoke") / "clone")
    clone.params("smoke")
    clone.commit()
    return clone, clone.repro()


def test_every_file_of_the_contract_is_there(run: tuple[Clone, Done]) -> None:
    clone, done = run
    assert done.stages == "resolve tokenize shard pretrain midtrain sft evaluate report chat".split()
    folder = clone.paths("smoke").run
    assert [name for name in FILES if not (folder / name).stat().st_size] == []
    assert not [path for path in folder.rglob(".*")], "nothing half-written"
    for stage in TRAINING_STAGES:
        events = read_events(folder / "events" / f"{stage}.jsonl")
        assert events[0]["event"] == "start" and events[-1]["event"] == "end"
        assert clone.json("runs", "smoke", "metrics", f"{stage}.json")["loss"] == pytest.approx(events[-1]["loss"], abs=1e-5)


def test_it_has_learned(run: tuple[Clone, Done]) -> None:
    tasks = run[0].json("runs", "smoke", "metrics", "evaluate.json")["tasks"]
    assert {name: task["floor"] for name, task in tasks.items()} == {"calculator": 0.90, "questions": 0.85}
    for task in tasks.values():
        assert task["n"] >= 500 and task["share"] >= task["floor"], tasks


def test_the_chat_stage_answered(run: tuple[Clone, Done]) -> None:
    capital, total = run[0].json("runs", "smoke", "chat.json")["chats"]
    assert "Paris" in capital["reply"] and "936" in total["reply"]


def test_the_command_line_prints_the_reply_alone(run: tuple[Clone, Done]) -> None:
    done = run[0].python("app.cli", "-p", "What is 347 + 589?", "--temperature", "0")
    reply = json.loads((run[0].paths("smoke").run / "chat.json").read_text())["chats"][1]["reply"]
    assert done.status == 0 and done.err == ""
    assert done.out == f"{reply}\n"


def test_with_nothing_to_do_only_resolve_runs_and_git_sees_nothing_new(run: tuple[Clone, Done]) -> None:
    clone, _ = run
    weights = clone.weights("smoke")
    done = clone.repro()
    assert done.stages == ["resolve"]
    assert done.out.count("didn't change, skipping") == 8
    assert clone.weights("smoke") == weights
    assert clone.git("status", "--porcelain") == "?? dvc.lock\n"
