"""A look at the data: shares, compression, lengths, rows that say what is learned."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

import data.gpt2 as gpt2
import data.peek as module
from data.config import DataConfig, Source
from data.peek import look
from data.shards import build
from data.tokenizer import Tokenizer

Configure = Callable[..., DataConfig]


@pytest.fixture(autouse=True)
def no_gpt2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpt2, "SHARED", tmp_path / "nowhere")


@pytest.fixture
def config(corpus: Path, chats: Path, configure: Configure, tmp_path: Path) -> DataConfig:
    return configure(pretrain=corpus, sft=chats, context=64, cache_folder=str(tmp_path / "cache"))


def test_before_there_are_shards(config: DataConfig, tok: Tokenizer, tmp_path: Path) -> None:
    found = look(config, tok, {"pretrain": tmp_path / "missing.json"})
    assert json.loads(json.dumps(found)) == found
    (source,) = found["mixtures"]["pretrain"]["sources"]
    assert source["whole"] and source["documents"] == 300 and source["share"] is None
    texts = [json.loads(line)["text"] for line in Path(config.pretrain[0].path, "texts.jsonl").read_text().splitlines()]
    assert source["bytes"] == sum(len(text.encode()) for text in texts)
    assert source["tokens"] == sum(len(tok.encode(text)) for text in texts)
    assert source["bytes_per_token"] == source["bytes"] / source["tokens"]
    assert source["gpt2_bytes_per_token"] is None and "encoder.json" in found["gpt2"]
    assert sum(count for *_, count in found["mixtures"]["sft"]["lengths"]) == 200
    assert found["mixtures"]["pretrain"]["rows"] == []
    assert "midtrain" not in found["mixtures"]


def test_rows_of_the_shards_say_what_is_learned(config: DataConfig, tok: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "sft.json"
    build("sft", config.sft, tok, config, path, tmp_path / "work")
    mixture = look(config, tok, {"sft": path})["mixtures"]["sft"]
    assert mixture["sources"][0]["share"] == 1.0
    assert len(mixture["rows"]) == 3
    for row in mixture["rows"]:
        assert row[0] == ["document", ""] or row[0] == ("document", "")
        kinds = [kind for kind, _ in row]
        assert set(kinds) <= {"document", "mark", "learned", "read", "padding"}
        assert "mat" in "".join(text for kind, text in row if kind == "learned") or "It is" in str(row)
        assert all("?" not in text for kind, text in row if kind == "learned")
        assert all("cat" in text or "+" in text or text.isdigit() for kind, text in row if kind == "read")


def test_shares_are_of_tokens_as_often_as_they_are_used(tok: Tokenizer, tmp_path: Path, configure: Configure) -> None:
    for name, words in (("a", "the cat sat "), ("b", "a dog ran ")):
        lines = "".join(json.dumps({"text": f"{words * 3}{n}"}) + "\n" for n in range(50))
        (tmp_path / f"{name}.jsonl").write_text(lines)
    sources = (Source(path=str(tmp_path / "a.jsonl"), weight=3.0), Source(path=str(tmp_path / "b.jsonl")))
    config = configure(midtrain=sources, validation_share=0.0)
    build("midtrain", sources, tok, config, tmp_path / "m.json", tmp_path / "work")
    first, second = look(config, tok, {"midtrain": tmp_path / "m.json"})["mixtures"]["midtrain"]["sources"]
    assert first["share"] + second["share"] == pytest.approx(1)
    assert first["share"] > 0.6


def test_a_large_source_is_sampled(
    config: DataConfig, tok: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAMPLE_DOCUMENTS", 20)
    (source,) = look(config, tok, {})["mixtures"]["pretrain"]["sources"]
    assert (source["documents"], source["whole"]) == (20, False)
    monkeypatch.setattr(module, "SAMPLE_CHARACTERS", 100)
    (tmp_path / "long.txt").write_text("the cat sat " * 1000)
    long = DataConfig(context=64, pretrain=(Source(path=str(tmp_path / "long.txt")),))
    mixture = look(long, tok, {})["mixtures"]["pretrain"]
    assert mixture["sources"][0]["bytes"] == 100
    (low, high, count) = mixture["lengths"][-1]
    assert count == 1 and low <= len(tok.encode("the cat sat " * 1000)) * 1.05 and high > 2000


def test_gpt2_is_compared_with_where_it_is(config: DataConfig, tok: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "gpt2"
    folder.mkdir(parents=True)
    alphabet = sorted(set(gpt2.pre_tokenizers.ByteLevel.alphabet()))
    (folder / "encoder.json").write_text(json.dumps({letter: index for index, letter in enumerate(alphabet)}))
    (folder / "vocab.bpe").write_text("#version: 0.2\n")
    backend = gpt2.load(tmp_path / "cache")
    assert isinstance(backend, Backend)
    found = look(config, tok, {})
    assert found["gpt2"] is None
    assert found["mixtures"]["pretrain"]["sources"][0]["gpt2_bytes_per_token"] == 1.0, "no merges: a token a byte"


def test_gpt2s_own_files_give_its_ids(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shared = gpt2.ROOT.parent / "shared" / "data" / "tokenizer"
    if not (shared / "gpt2_encoder.json").exists():
        pytest.skip(f"no GPT-2 vocabulary in {shared}")
    monkeypatch.setattr(gpt2, "SHARED", shared)
    backend = gpt2.load(tmp_path)
    assert isinstance(backend, Backend)
    assert backend.encode("Hello world").ids == [15496, 995]
