"""The local profile on real text and chats, in little: it learns, and an edited document is noticed."""

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from config.paths import ROOT
from tests.pipeline.clone import Clone

pytestmark = pytest.mark.pipeline
DATA = ROOT.parent / "shared" / "data"

# local.yaml with a smaller model and fewer tokens; sources and formats are as there.
MINE = {
    "extends": "local",
    "data": {
        "context": 128,
        "validation_share": 0.02,
        "midtrain": [{"path": "chats"}, {"builtin": "chats", "count": 300}],
        "sft": [{"path": "chats"}, {"builtin": "chats", "count": 300}],
    },
    "tokenizer": {"vocab_size": 2048, "sample_megabytes": 2.0},
    "model": {"width": 128, "layers": 2, "heads": 2, "attention": "auto", "compile": "off"},
    "pretrain": {"tokens": 200_000, "batch_tokens": 4096, "warmup_updates": 10},
    "midtrain": {"tokens": 40_000, "batch_tokens": 4096},
    "sft": {"tokens": 40_000, "batch_tokens": 4096},
    "evaluate": {"prompts": 20},
}


def records(name: str, count: int) -> list[dict[str, Any]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in islice(file, count)]


def write_texts(folder: Path) -> None:
    """About 2.5 MB of prose in every format but parquet."""
    folder.mkdir()
    for number, record in enumerate(records("pretrain/us_presidents.jsonl.gz", 30)):
        (folder / f"speech {number:02}.txt").write_text(record["text"], encoding="utf-8")
    for number, record in enumerate(records("pretrain/rust_book.jsonl.gz", 30)):
        (folder / f"chapter {number:02}.md").write_text(record["text"], encoding="utf-8")
    with gzip.open(folder / "books.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records("pretrain/openstax.jsonl.gz", 120))


def write_chats(folder: Path) -> None:
    folder.mkdir()
    for name in ("identity", "rasbt_instructions"):
        lines = [json.dumps(record) + "\n" for record in records(f"sft/{name}.jsonl.gz", 300)]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Clone:
    """A clone with text and chats of its own, trained and evaluated."""
    if not DATA.is_dir():
        pytest.skip(f"the real text is not here: {DATA} does not exist")
    clone = Clone.make(tmp_path_factory.mktemp("local") / "clone")
    write_texts(clone.path / "text")
    write_chats(clone.path / "chats")
    clone.profile("mine", MINE)
    clone.params("mine")
    assert clone.repro("evaluate").stages[-1] == "evaluate"
    return clone


def test_it_beats_xz_on_text_that_it_has_not_seen(local: Clone) -> None:
    figures = local.json("runs", "mine", "metrics", "evaluate.json")["bits_per_byte"]["pretrain"]
    print(f"{figures['bits_per_byte']:.3f} bits per byte; xz -9e: {figures['xz_bits_per_byte']:.3f}")
    assert figures["bytes"] > 20_000
    assert figures["bits_per_byte"] < 0.9 * figures["xz_bits_per_byte"]


def changed_shards(clone: Clone, before: dict[str, str]) -> list[str]:
    """The mixtures whose shards differ from what they were: these train anew, and the stages after them."""
    now = clone.json("runs", "mine", "shards", "manifest.json")
    return [mixture for mixture in now if now[mixture] != before[mixture]]


def test_an_edited_text_is_noticed_and_an_edit_taken_back_too(local: Clone) -> None:
    before = local.json("runs", "mine", "shards", "manifest.json")
    document = local.path / "text" / "chapter 03.md"
    text = document.read_text(encoding="utf-8")
    document.write_text(text.replace("the", "teh"), encoding="utf-8")
    assert local.repro("shard").stages == ["resolve", "tokenize", "shard"]
    assert "pretrain" in changed_shards(local, before)
    assert "runs/mine/shards/pretrain.json" in local.python("dvc", "status", "pretrain").out

    document.write_text(text, encoding="utf-8")
    assert local.repro("evaluate").stages == ["resolve"], "all is taken from the cache"
    assert changed_shards(local, before) == []


def test_an_edited_chat_reaches_pretraining_through_the_tokenizer_alone(local: Clone) -> None:
    """The tokenizer reads the chats too: where a new chat changes it, all shards change with it."""
    before, tokenizer = local.json("runs", "mine", "shards", "manifest.json"), local.paths("mine").tokenizer
    vocabulary = tokenizer.read_bytes()
    chats = local.path / "chats" / "identity.jsonl"
    lines = chats.read_text(encoding="utf-8")
    turns = [{"role": "user", "content": "Who is this?"}, {"role": "assistant", "content": "This is your own model."}]
    chats.write_text(lines + json.dumps({"messages": turns}) + "\n", encoding="utf-8")
    assert local.repro("shard").stages == ["resolve", "tokenize", "shard"]
    same = tokenizer.read_bytes() == vocabulary
    assert changed_shards(local, before) == (["midtrain", "sft"] if same else ["pretrain", "midtrain", "sft"])
    chats.write_text(lines, encoding="utf-8")
    assert local.repro("evaluate").stages == ["resolve"]
