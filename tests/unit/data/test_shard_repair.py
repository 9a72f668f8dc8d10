"""Shards that were cut off, damaged, or whose sources changed: only what is wanted is built again."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from config.errors import UserError
from data.config import DataConfig
from data.manifest import VERIFIED, verify, verify_once
from data.rows import Rows
from data.shard_files import ShardWriter
from data.tokenizer import Tokenizer
from tests.shard_builds import build, from_scratch

Configure = Callable[..., DataConfig]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("mixture", ["pretrain", "sft"])
def test_a_killed_build_goes_on_after_the_last_finished_file(
    tmp_path: Path,
    corpus: Path,
    chats: Path,
    configure: Configure,
    tok: Tokenizer,
    small_files: None,
    monkeypatch: pytest.MonkeyPatch,
    mixture: str,
) -> None:
    config = configure(pretrain=corpus, sft=chats)
    expected = from_scratch(config, mixture, tok, tmp_path / "scratch")
    add, finish, added, finished = ShardWriter.add, ShardWriter.finish, [], []

    def counted(writer: ShardWriter, ids: np.ndarray, mask: np.ndarray) -> None:
        added.append(len(ids))
        add(writer, ids, mask)

    def killed(writer: ShardWriter) -> object:
        if len(finished) == 3:
            raise Killed
        finished.append(len(added))
        return finish(writer)

    monkeypatch.setattr(ShardWriter, "add", counted)
    monkeypatch.setattr(ShardWriter, "finish", killed)
    with pytest.raises(Killed):
        build(mixture, config, tok, tmp_path)
    monkeypatch.setattr(ShardWriter, "finish", finish)
    added.clear()
    assert build(mixture, config, tok, tmp_path) == expected
    documents = sum(expected["splits"][split]["documents"] for split in ("train", "validation"))
    assert len(added) == documents - finished[-1]


def test_a_damaged_file_is_built_again_alone(
    tmp_path: Path, corpus: Path, configure: Configure, tok: Tokenizer, small_files: None, capsys
) -> None:
    manifest = build("pretrain", configure(pretrain=corpus), tok, tmp_path)
    files = [tmp_path / "shards" / entry["name"] for entry in manifest["splits"]["train"]["files"]]
    before = [file.stat().st_ino for file in files]
    _damage("damaged", files[1])
    _damage("missing", files[3])
    assert build("pretrain", configure(pretrain=corpus), tok, tmp_path) == manifest
    verify(manifest)
    same = [file.stat().st_ino == inode for file, inode in zip(files, before, strict=True)]
    assert same == [at not in (1, 3) for at in range(len(files))]
    assert f"{len(files) - 2} of {len(files)} shards of an earlier build are whole" in capsys.readouterr().out


@pytest.mark.parametrize("change", ["appended", "removed", "edited first", "edited late", "nothing"])
def test_changed_sources_give_what_a_build_from_scratch_gives(
    tmp_path: Path, corpus: Path, configure: Configure, tok: Tokenizer, small_files: None, change: str
) -> None:
    config = configure(pretrain=corpus)
    build("pretrain", config, tok, tmp_path)
    lines = (corpus / "texts.jsonl").read_text().splitlines()
    new = json.dumps({"text": "something else altogether"})
    lines = {
        "appended": [*lines, *(json.dumps({"text": f"more text {at}"}) for at in range(20))],
        "removed": lines[:-30],
        "edited first": [new, *lines[1:]],
        "edited late": [*lines[:200], new, *lines[201:]],
        "nothing": lines,
    }[change]
    (corpus / "texts.jsonl").write_text("\n".join(lines) + "\n")
    again = build("pretrain", config, tok, tmp_path)
    assert again == from_scratch(config, "pretrain", tok, tmp_path / "scratch")
    verify(again)


@pytest.mark.parametrize("content", ["", "[]", "[1]", '[{"entry": 1}]', "not json"])
def test_a_spoilt_ledger_only_costs_time(
    tmp_path: Path, corpus: Path, configure: Configure, tok: Tokenizer, content: str
) -> None:
    manifest = build("pretrain", configure(pretrain=corpus), tok, tmp_path)
    (ledger,) = (tmp_path / "shards").glob(".progress-*.json")
    ledger.write_text(content)
    assert build("pretrain", configure(pretrain=corpus), tok, tmp_path) == manifest


def _damage(kind: str, path: Path) -> None:
    content = path.read_bytes()
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes({"truncated": content[:-8], "too long": content + b"\0", "damaged": b"\1" + content[1:]}[kind])


@pytest.mark.parametrize("kind", ["missing", "truncated", "too long", "damaged"])
@pytest.mark.parametrize("suffix", [".bin", ".mask"])
def test_a_bad_shard_is_named_and_a_new_build_mends_it(
    tmp_path: Path, chats: Path, configure: Configure, tok: Tokenizer, kind: str, suffix: str
) -> None:
    manifest = build("sft", configure(sft=chats), tok, tmp_path)
    verify(manifest)
    name = Path(manifest["splits"]["train"]["files"][0]["name"]).with_suffix(suffix).name
    _damage(kind, tmp_path / "shards" / name)
    with pytest.raises(UserError, match=rf"{name}: {kind}.*dvc repro"):
        verify(manifest)
    if kind == "damaged":
        verify(manifest, full=False)
    else:
        with pytest.raises(UserError, match=kind):
            Rows(tmp_path / "m.json", "train")
    assert build("sft", configure(sft=chats), tok, tmp_path) == manifest
    verify(manifest)


def test_a_file_is_hashed_once_and_again_when_it_was_written(
    tmp_path: Path, chats: Path, configure: Configure, tok: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(sft=chats)
    manifest = build("sft", config, tok, tmp_path)
    hashed, digest = [], hashlib.file_digest

    def counted(stream, name: str):
        hashed.append(Path(stream.name).name)
        return digest(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    verify_once(manifest)
    names = [entry["name"] for split in manifest["splits"].values() for entry in split["files"]]
    assert len(hashed) == 2 * len(set(names))
    hashed.clear()
    verify_once(manifest)
    assert hashed == []
    path = tmp_path / "shards" / names[0]
    _damage("damaged", path)
    os.utime(path, ns=(0, 1))
    for _ in range(2):
        with pytest.raises(UserError, match=f"{names[0]}: damaged.*rebuild it alone"):
            verify_once(manifest)
    assert build("sft", config, tok, tmp_path) == manifest
    verify_once(manifest)
    path.unlink()
    with pytest.raises(UserError, match="missing"):
        verify_once(manifest)
    (tmp_path / "shards" / VERIFIED).write_text("[]")
    assert build("sft", config, tok, tmp_path) == manifest
    verify_once(manifest)
