"""The smoke profile from text to chat, through `dvc repro` in a copy of the working tree."""

import json

import pytest

from config.paths import TRAINING_STAGES
from tests.pipeline.clone import Clone, Done
from training.telemetry import read_events

pytestmark = pytest.mark.pipeline

MODEL_FILES = ("model.safetensors", "config.json", "tokenizer.json")
FILES = [
    "profile.yaml",
    "sources.json",
    "tokenizer/tokenizer.json",
    "shards/manifest.json",
    *(f"{stage}/{file}" for stage in TRAINING_STAGES for file in MODEL_FILES),
    *(f"metrics/{stage}.json" for stage in (*TRAINING_STAGES, "evaluate")),
    *(f"plots/{stage}.csv" for stage in TRAINING_STAGES),
    *(f"events/{stage}.jsonl" for stage in TRAINING_STAGES),
    "peek.json",
    "report.html",
    "chat.json",
]
STAGES = ["resolve", "tokenize", "shard", *TRAINING_STAGES, "evaluate", "report", "chat"]


def test_every_file_of_the_contract_is_there(smoke: tuple[Clone, Done]) -> None:
    clone, done = smoke
    assert done.stages == STAGES
    folder = clone.paths("smoke").run
    assert [name for name in FILES if not (folder / name).stat().st_size] == []
    assert list(folder.rglob(".*")) == [], "something half-written"
    for stage in TRAINING_STAGES:
        events = read_events(folder / "events" / f"{stage}.jsonl")
        assert events[0]["event"] == "start" and events[-1]["event"] == "end"
        loss = clone.json("runs", "smoke", "metrics", f"{stage}.json")["loss"]
        assert loss == pytest.approx(events[-1]["loss"], abs=1e-5)


def test_it_has_learned(smoke: tuple[Clone, Done]) -> None:
    tasks = smoke[0].json("runs", "smoke", "metrics", "evaluate.json")["tasks"]
    assert {name: task["floor"] for name, task in tasks.items()} == {"calculator": 0.90, "questions": 0.85}
    for task in tasks.values():
        assert task["n"] >= 500 and task["share"] >= task["floor"], tasks


def test_the_chat_stage_answered(smoke: tuple[Clone, Done]) -> None:
    capital, total = smoke[0].json("runs", "smoke", "chat.json")["chats"]
    assert "Paris" in capital["reply"] and "936" in total["reply"]


def test_the_command_line_prints_the_reply_alone(smoke: tuple[Clone, Done]) -> None:
    done = smoke[0].python("app.cli", "-p", "What is 347 + 589?", "--temperature", "0")
    reply = json.loads((smoke[0].paths("smoke").run / "chat.json").read_text())["chats"][1]["reply"]
    assert done.status == 0 and done.err == ""
    assert done.out == f"{reply}\n"


def test_with_nothing_to_do_only_resolve_runs_and_git_sees_nothing_new(smoke: tuple[Clone, Done]) -> None:
    clone, _ = smoke
    weights = clone.weights("smoke")
    done = clone.repro()
    assert done.stages == ["resolve"]
    assert done.out.count("didn't change, skipping") == len(STAGES) - 1
    assert clone.weights("smoke") == weights
    assert clone.git("status", "--porcelain") == "?? dvc.lock\n"
