"""A small tokenizer and small corpora that the data tests share."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from data import shards
from data.config import DataConfig, Source
from data.tokenizer import Tokenizer

# A busy machine is no failure: time limits are pytest's matter.
settings.register_profile("data", deadline=None)
settings.load_profile("data")

TRAINING_TEXT = (
    "the cat sat on the mat and the dog ran to the other cat. 12 + 30 = 42, so the sum is 42.\n"
    "What is the capital of France? Paris is the capital of France.\n\n"
    "Ein Käfer fährt über die Straße. 猫が好きです。 猫が来る。 🙂🙂\n"
)


@pytest.fixture(scope="session")
def tok() -> Tokenizer:
    return Tokenizer.train([TRAINING_TEXT] * 4, 300)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of 300 short texts in one .jsonl file."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    lines = [
        json.dumps({"text": f"text {number}: the cat sat on the mat {'and ran ' * (number % 7)}"})
        for number in range(300)
    ]
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """A .jsonl file of 200 short chats, some with a calculator call."""
    path = tmp_path / "chats.jsonl"
    rows = []
    for number in range(200):
        if number % 3:
            rows.append(
                {"messages": [{"role": "user", "content": f"cat {number}?"}, {"role": "assistant", "content": "mat"}]}
            )
        else:
            rows.append({"question": f"{number} + 1?", "answer": f"It is <<{number}+1={number + 1}>>{number + 1}."})
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def configure(tmp_path: Path) -> Callable[..., DataConfig]:
    """A data config with its shards in the test's folder; `pretrain` and `sft` take paths."""

    def make(pretrain: Path | None = None, sft: Path | None = None, **settings) -> DataConfig:
        settings = {"context": 32, "validation_share": 0.1, "shard_folder": str(tmp_path / "shards"), **settings}
        sources = {name: (Source(path=str(path)),) for name, path in (("pretrain", pretrain), ("sft", sft)) if path}
        return DataConfig(**{"pretrain": (Source(builtin="documents", count=1),), **sources, **settings})

    return make


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shard files of 1000 tokens."""
    monkeypatch.setattr(shards, "TOKENS_PER_FILE", 1000)
