"""Corpora that nobody would call one, from a profile through the stages: they work, or are refused with the reason."""

import json
from pathlib import Path

import numpy as np
import pytest

from config.errors import UserError
from data.rows import Rows
from data.tokenizer import Tokenizer
from stages import resolve, shard, tokenize
from tests.little_repository import run_stages, write_profile

WORDS = "the cat sat on the mat and ran to the other dog. 12 + 30 = 42, so the sum is 42 "


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_profile(tmp_path)
    return tmp_path


def _sharded(root: Path, path: Path, **data: object) -> dict:
    """The manifest of pretrain from one file; tokenizer from that and the profile's chats."""
    write_profile(root, pretrain=[{"path": str(path)}], **data)
    run_stages(root, resolve, tokenize, shard)
    return json.loads(_manifest(root).read_text())


def _manifest(root: Path) -> Path:
    return root / "runs" / "little" / "shards" / "pretrain.json"


def _text(root: Path, split: str) -> str:
    """What stands in the rows, one after the other."""
    rows = Rows(_manifest(root), split)
    tok = Tokenizer.load(root / "runs" / "little" / "tokenizer" / "tokenizer.json")
    return tok.decode(rows.ids(np.arange(len(rows))).ravel())


@pytest.mark.parametrize(
    "text", ["One document.", "x", "\n\nx", "猫", WORDS * 20], ids=["document", "token", "", "", ""]
)
def test_one_document(root: Path, text: str) -> None:
    (root / "one.txt").write_text(text)
    manifest = _sharded(root, root / "one.txt")
    assert manifest["validation"].startswith("not held out: too few documents")
    for split in ("train", "validation"):
        assert manifest["splits"][split]["documents"] == 1
        assert manifest["splits"][split]["targets"] > 0
        assert _text(root, split) == text


@pytest.mark.parametrize("name", ["bad.txt", "bad.md", "bad.jsonl"])
def test_one_byte_of_invalid_utf8(root: Path, name: str) -> None:
    run_stages(root, resolve, tokenize)
    (root / name).write_bytes(b"\xff")
    write_profile(root, pretrain=[{"path": str(root / name)}])
    run_stages(root, resolve)
    for stage in (tokenize, shard):
        with pytest.raises(UserError, match=rf"{name}: not UTF-8: byte 0xff at offset 0; convert it"):
            run_stages(root, stage)
    assert not _manifest(root).exists()


@pytest.mark.parametrize("content", [b"", b" ", b"\xef\xbb\xbf", b"\n\n\t"], ids=["empty", "space", "bom", "blank"])
@pytest.mark.parametrize("name", ["nothing.txt", "nothing.jsonl"])
def test_nothing_at_all(root: Path, name: str, content: bytes) -> None:
    (root / name).write_bytes(content)
    with pytest.raises(UserError, match=r"data\.pretrain: its sources hold no document to train on.*at least one"):
        _sharded(root, root / name)


def _line(path: Path, size: int) -> None:
    """One line of so many bytes, as text or as a record."""
    with path.open("w") as file:
        file.write('{"text": "' if path.suffix == ".jsonl" else "")
        for _ in range(size // len(WORDS)):
            file.write(WORDS)
        file.write('"}' if path.suffix == ".jsonl" else "")


@pytest.mark.parametrize("size", [2_000_000, pytest.param(200_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_a_single_long_line(root: Path, suffix: str, size: int) -> None:
    path = root / f"line.{suffix}"
    _line(path, size)
    manifest = _sharded(root, path, context=2048)
    text_bytes = size // len(WORDS) * len(WORDS)
    figures = manifest["splits"]["train"]
    assert figures["documents"] == 1 and figures["text_bytes"] == text_bytes
    assert figures["padding"] < 2049
    if size < 10_000_000:
        assert _text(root, "train") == WORDS * (size // len(WORDS))


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_many_documents_of_ten_bytes(root: Path, count: int) -> None:
    with (root / "many.jsonl").open("w") as file:
        for number in range(count):
            file.write(f'{{"text": "doc{number:07d}"}}\n')
    manifest = _sharded(root, root / "many.jsonl")
    train, validation = manifest["splits"]["train"], manifest["splits"]["validation"]
    assert train["documents"] + validation["documents"] == count
    assert train["text_bytes"] + validation["text_bytes"] == 10 * count
    assert train["padding"] < 33
