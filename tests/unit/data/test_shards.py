import errno
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import data.shard_files as shard_files
from config.errors import UserError
from data import shards
from data.bulk import BulkEncoder
from data.chat import render
from data.config import DataConfig, Source
from data.manifest import read_manifest, verify
from data.mixture import content_hash, in_validation
from data.rows import IGNORE, Rows
from data.sources import read_source
from data.tokenizer import Tokenizer
from tests.shard_builds import build, from_scratch

Configure = Callable[..., DataConfig]


def _all(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    return rows.ids(np.arange(len(rows))), rows.mask(np.arange(len(rows)))


def test_text_comes_back_from_the_shards(tmp_path: Path, corpus: Path, configure: Configure, tok: Tokenizer) -> None:
    manifest = build("pretrain", configure(pretrain=corpus), tok, tmp_path)
    texts = [json.loads(line)["text"] for line in (corpus / "texts.jsonl").read_text().splitlines()]
    characters, found = 0, ""
    for split in ("train", "validation"):
        rows = Rows(tmp_path / "m.json", split)
        figures = manifest["splits"][split]
        ids, mask = _all(rows)
        held = [text for text in texts if in_validation(content_hash(text), 0.1) == (split == "validation")]
        assert figures["documents"] == len(held)
        assert figures["text_bytes"] == sum(len(text.encode()) for text in held)
        assert figures["tokens"] == mask.sum() == ids.size - figures["padding"]
        assert figures["targets"] == rows.target_counts.sum() == mask[:, 1:].sum()
        assert figures["target_bytes"] == tok.byte_lengths[ids[:, 1:][mask[:, 1:] > 0]].sum() == figures["text_bytes"]
        assert (ids[:, 0] == tok.bos).all()
        found += tok.decode(ids.ravel())
        characters += sum(map(len, held))
    assert sorted(found) == sorted("".join(texts))
    assert len(found) == characters
    assert manifest["validation"] == "held out"
    assert manifest["tokenizer_sha256"] == tok.sha256
    assert manifest["sources"][0]["documents"] + manifest["sources"][0]["validation_documents"] == 300


def test_chats_keep_their_masks(tmp_path: Path, chats: Path, configure: Configure, tok: Tokenizer) -> None:
    config = configure(sft=chats, context=64)
    manifest = build("sft", config, tok, tmp_path)
    assert manifest["masked"]
    rows = Rows(tmp_path / "m.json", "train")
    ids, mask = _all(rows)
    lines = [list(zip(i.tolist(), m.tolist(), strict=True)) for i, m in zip(ids, mask, strict=True)]
    for document in read_source(config.sft[0], "sft", 0, tmp_path / "cache", Counter()):
        if in_validation(content_hash(document.content), 0.1):
            continue
        wanted = list(zip(*render(document.content, tok), strict=True))
        assert any(line[at : at + len(wanted)] == wanted for line in lines for at in range(65) if line[at] == wanted[0])
    assert rows.target_counts.tolist() == mask[:, 1:].sum(axis=1).tolist()
    assert (rows.target_counts > 0).all()


def test_chats_in_an_unmasked_mixture_are_learned_whole(
    tmp_path: Path, chats: Path, corpus: Path, configure: Configure, tok: Tokenizer
) -> None:
    config = configure(midtrain=(Source(path=str(chats)), Source(path=str(corpus))))
    manifest = build("midtrain", config, tok, tmp_path)
    assert not manifest["masked"]
    ids, mask = _all(Rows(tmp_path / "m.json", "train"))
    assert tok.user_start in ids
    assert mask.sum() == manifest["splits"]["train"]["tokens"]


def test_a_wide_vocabulary(
    tmp_path: Path, corpus: Path, configure: Configure, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = build("pretrain", configure(pretrain=corpus), tok, tmp_path)
    assert narrow["dtype"] == "<u2"
    whole = _all(Rows(tmp_path / "m.json", "train"))
    monkeypatch.setattr(shards, "_dtype", lambda size: np.dtype("<u4"))
    wide = build("pretrain", configure(pretrain=corpus, shard_folder=str(tmp_path / "wide")), tok, tmp_path)
    assert wide["dtype"] == "<u4"
    again = _all(Rows(tmp_path / "m.json", "train"))
    assert np.array_equal(whole[0], again[0])
    assert np.array_equal(whole[1], again[1])


def test_several_files_hold_the_same_text(
    tmp_path: Path, corpus: Path, configure: Configure, tok: Tokenizer, small_files: None
) -> None:
    manifest = build("pretrain", configure(pretrain=corpus), tok, tmp_path)
    train = manifest["splits"]["train"]
    assert len(train["files"]) > 5
    assert sum(entry["rows"] for entry in train["files"]) == train["rows"]
    rows = Rows(tmp_path / "m.json", "train")
    ids, mask = _all(rows)
    assert tok.byte_lengths[ids[:, 1:][mask[:, 1:] > 0]].sum() == train["target_bytes"] == train["text_bytes"]
    assert mask.size - mask.sum() == train["padding"] == sum(entry["padding"] for entry in train["files"])
    some = np.array([len(rows) - 1, 0, 31, 5, 5, *(np.cumsum([entry["rows"] for entry in train["files"]]) - 1)])
    assert np.array_equal(rows.ids(some), ids[some])
    inputs, targets = np.empty((2, len(some), 32), np.int64)
    rows.read(some, inputs, targets)
    assert np.array_equal(inputs, ids[some, :-1])
    assert np.array_equal(targets, np.where(mask[some, 1:] > 0, ids[some, 1:], IGNORE))
    assert rows.targets(some) == (targets != IGNORE).sum() == rows.target_counts[some].sum()


def test_processes_change_no_byte(
    tmp_path: Path, corpus: Path, configure: Configure, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(pretrain=corpus)
    manifests = []
    for workers in (1, 2):
        monkeypatch.setattr(shards, "BulkEncoder", partial(BulkEncoder, workers=workers, alone=0))
        manifests.append(from_scratch(config, "pretrain", tok, tmp_path / str(workers)))
    assert manifests[0] == manifests[1]


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, chats: Path, configure: Configure, tok: Tokenizer) -> None:
    config = configure(sft=chats)
    first = build("sft", config, tok, tmp_path)
    assert build("sft", config, tok, tmp_path, "again.json") == first
    assert (tmp_path / "m.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    assert from_scratch(config, "sft", tok, tmp_path / "scratch") == first


def test_validation_rows_do_not_depend_on_the_order(
    tmp_path: Path, corpus: Path, configure: Configure, tok: Tokenizer
) -> None:
    first = build("pretrain", configure(pretrain=corpus), tok, tmp_path)
    lines = (corpus / "texts.jsonl").read_text().splitlines()
    (corpus / "texts.jsonl").write_text("\n".join(lines[:100:-1]))
    (corpus / "more.jsonl").write_text("\n".join(lines[:101] + lines[:20]))  # a few twice
    second = build("pretrain", configure(pretrain=corpus), tok, tmp_path)
    assert second["splits"]["validation"] == first["splits"]["validation"]
    (before,), (after,) = first["sources"], second["sources"]
    assert after["validation_documents"] == before["validation_documents"]
    assert after["validation_duplicates"] == 320 - 300 - (after["documents"] - before["documents"]) > 0


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("text", ["a", "one short text", "a text longer than a row " * 20])
def test_a_corpus_of_one_document_trains(
    tmp_path: Path, configure: Configure, tok: Tokenizer, share: float, text: str
) -> None:
    (tmp_path / "a.txt").write_text(text)
    manifest = build("pretrain", configure(pretrain=tmp_path / "a.txt", validation_share=share), tok, tmp_path)
    assert manifest["validation"].startswith("not held out")
    for split in ("train", "validation"):
        rows = Rows(tmp_path / "m.json", split)
        assert rows.target_counts.sum() == manifest["splits"][split]["targets"] > 0
        assert tok.decode(_all(rows)[0].ravel()) == text


def test_no_text_is_an_error_that_says_what_is_needed(tmp_path: Path, configure: Configure, tok: Tokenizer) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": " "}\n')
    with pytest.raises(UserError, match=r"data\.pretrain: .*left out: 2 empty.*at least one"):
        build("pretrain", configure(pretrain=tmp_path / "a.jsonl"), tok, tmp_path)
    assert not (tmp_path / "m.json").exists()
    with pytest.raises(UserError, match=r"data\.sft names no source"):
        build("sft", configure(pretrain=tmp_path / "a.jsonl"), tok, tmp_path)


def test_plain_text_in_sft_is_an_error(tmp_path: Path, corpus: Path, configure: Configure, tok: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"plain text in data\.sft"):
        build("sft", configure(sft=corpus), tok, tmp_path)


def test_a_chat_longer_than_a_row_is_continued_and_counted(
    tmp_path: Path, configure: Configure, tok: Tokenizer
) -> None:
    chat = [{"role": "user", "content": "q" * 80}, {"role": "assistant", "content": "z" * 100}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": chat}))
    figures = build("sft", configure(sft=tmp_path / "a.jsonl"), tok, tmp_path)["splits"]["train"]
    assert figures["continued"] == 1
    assert figures["without_targets"] == 2
    assert figures["targets"] == len(tok.encode("z" * 100)) + 1
    ids, mask = _all(Rows(tmp_path / "m.json", "train"))
    assert "".join(tok.decode(i[m > 0]) for i, m in zip(ids, mask, strict=True)) == "z" * 100


@pytest.mark.parametrize("content", [None, "", "[]", '{"format": 99}'])
def test_a_bad_manifest_is_one_clear_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "m.json").write_text(content)
    with pytest.raises(UserError, match=r"m\.json: .*dvc repro"):
        read_manifest(tmp_path / "m.json")


@pytest.mark.parametrize("where", ["write", "finish"])
def test_a_full_disk_is_one_clear_error_and_leaves_nothing(
    tmp_path: Path, chats: Path, configure: Configure, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shard_files._Writing, where, full)
    with pytest.raises(UserError, match=r"shards: disk full: about [\d.]+ k?B needed, [\d.]+ [kMG]?B free"):
        build("sft", configure(sft=chats), tok, tmp_path)
    assert list((tmp_path / "shards").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_clear_error(
    tmp_path: Path, chats: Path, configure: Configure, tok: Tokenizer
) -> None:
    (tmp_path / "shards").write_text("a file")
    with pytest.raises(UserError, match=r"shards: .*data\.shard_folder"):
        build("sft", configure(sft=chats), tok, tmp_path)


def test_leftovers_of_a_killed_build_are_removed(
    tmp_path: Path, chats: Path, configure: Configure, tok: Tokenizer
) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    (folder / ".writing-4194305.bin").write_text("x")  # above the largest process id
    (folder / ".writing-1.bin").write_text("x")  # a running process
    build("sft", configure(sft=chats), tok, tmp_path)
    assert [path.name for path in folder.glob(".writing*")] == [".writing-1.bin"]


def test_pruning_keeps_what_manifests_name(
    tmp_path: Path, chats: Path, corpus: Path, configure: Configure, tok: Tokenizer
) -> None:
    config = configure(pretrain=corpus, sft=chats)
    old, new = (build(mixture, config, tok, tmp_path, f"{mixture}.json") for mixture in ("pretrain", "sft"))
    folder = tmp_path / "shards"
    (folder / "notes.txt").write_text("not ours")
    assert shard_files.prune(folder, [new], 1e9) == []
    gone = shard_files.prune(folder, [new], 0)
    assert {name for name, _ in gone} == {e["name"] for split in old["splits"].values() for e in split["files"]}
    verify(new)
    assert (folder / "notes.txt").exists()
