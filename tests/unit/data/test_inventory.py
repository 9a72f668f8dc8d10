import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import data.inventory as module
from config.errors import UserError
from data.config import DataConfig, Source
from data.inventory import take

Configure = Callable[..., DataConfig]


def test_files_of_each_mixture(tmp_path: Path, corpus: Path, chats: Path, configure: Configure) -> None:
    config = configure(pretrain=corpus, sft=chats, midtrain=(Source(path=str(corpus)), Source(path=str(chats))))
    listing = take(config, tmp_path / "cache.json")
    text = corpus / "texts.jsonl"
    assert listing["pretrain"] == [
        {"path": str(text), "bytes": text.stat().st_size, "sha256": hashlib.sha256(text.read_bytes()).hexdigest()}
    ]
    assert [entry["path"] for entry in listing["midtrain"]] == sorted([str(text), str(chats)])
    assert len(listing["sft"]) == 1


def test_built_in_sources_have_no_files(tmp_path: Path, configure: Configure) -> None:
    assert take(configure(), tmp_path / "cache.json") == {"pretrain": [], "midtrain": [], "sft": []}


def test_only_changed_files_are_read_again(
    tmp_path: Path, corpus: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, cache = configure(pretrain=corpus), tmp_path / "cache.json"
    first = take(config, cache)
    with monkeypatch.context() as patch:
        patch.setattr(module.hashlib, "file_digest", None)  # reading would fail
        assert take(config, cache) == first
    text = corpus / "texts.jsonl"
    text.write_text(text.read_text().replace("cat", "dog"))
    status = text.stat()
    os.utime(text, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    assert take(config, cache)["pretrain"][0]["sha256"] != first["pretrain"][0]["sha256"]


@pytest.mark.parametrize("content", ["", "[]", '{"x": ', "null"])
def test_a_damaged_cache_is_ignored(tmp_path: Path, corpus: Path, configure: Configure, content: str) -> None:
    cache = tmp_path / "cache.json"
    cache.write_text(content)
    assert len(take(configure(pretrain=corpus), cache)["pretrain"]) == 1
    assert len(json.loads(cache.read_text())) == 1


def test_relative_sources_stay_relative(tmp_path: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    import data.sources as sources

    repository = tmp_path / "clone"
    repository.mkdir()
    (tmp_path / "text.txt").write_text("x")
    monkeypatch.setattr(sources, "ROOT", repository)
    monkeypatch.setattr(module, "ROOT", repository)
    listing = take(configure(pretrain=Path("../text.txt")), tmp_path / "cache.json")
    assert listing["pretrain"][0]["path"] == "../text.txt"


def test_a_missing_source_is_an_error(tmp_path: Path, configure: Configure) -> None:
    with pytest.raises(UserError, match="nowhere"):
        take(configure(pretrain=tmp_path / "nowhere"), tmp_path / "cache.json")
