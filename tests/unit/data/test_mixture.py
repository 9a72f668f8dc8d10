import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from config.errors import UserError
from data.config import Cleaning, DataConfig, Source
from data.conversation import Part, assistant, user
from data.mixture import Placed, content_hash, in_validation, place, sample_texts

Configure = Callable[..., DataConfig]


def _place(tmp_path: Path, *sources: Source, share: float = 0.1) -> list[Placed]:
    counts = [Counter[str]() for _ in sources]
    return list(place("pretrain", sources, 0, share, tmp_path / "cache", counts, Cleaning()))


def _split(placed: list[Placed]) -> tuple[Counter, Counter]:
    train = Counter(each.document.content for each in placed if not each.validation)
    return train, Counter(each.document.content for each in placed if each.validation)


def test_the_split_does_not_depend_on_files_order_or_format(tmp_path: Path, corpus: Path) -> None:
    texts = [json.loads(line)["text"] for line in (corpus / "texts.jsonl").read_text().splitlines()]
    apart = tmp_path / "apart"
    apart.mkdir()
    for number, text in enumerate(texts[:100]):
        (apart / f"{number}.txt").write_text(text)
    (apart / "rest.jsonl").write_text("\n".join(json.dumps({"x": 1, "text": text}) for text in texts[:99:-1]))
    whole = _split(_place(tmp_path, Source(path=str(corpus))))
    assert _split(_place(tmp_path, Source(path=str(apart)))) == whole
    assert 10 < len(whole[1]) < 50
    assert not set(whole[0]) & set(whole[1])


def test_more_documents_move_none_of_the_old(tmp_path: Path, corpus: Path) -> None:
    more = tmp_path / "more.txt"
    more.write_text("another text")
    before = _split(_place(tmp_path, Source(path=str(corpus))))
    after = _split(_place(tmp_path, Source(path=str(more)), Source(path=str(corpus))))
    assert before[0] <= after[0]
    assert before[1] <= after[1]


@pytest.mark.parametrize("weight", [0.25, 0.5, 2.0, 2.5])
def test_weights(tmp_path: Path, corpus: Path, weight: float) -> None:
    once, held = _split(_place(tmp_path, Source(path=str(corpus))))
    train, validation = _split(_place(tmp_path, Source(path=str(corpus), weight=weight)))
    if weight >= 1:
        assert validation == held
        assert set(train) == set(once)
        assert min(train.values()) == int(weight)
    else:
        assert train <= once
        assert validation <= held
    assert abs(sum(train.values()) / sum(once.values()) - weight) < 0.1
    assert _split(_place(tmp_path, Source(path=str(corpus), weight=weight))) == (train, validation)


def test_a_half_is_part_of_three_quarters(tmp_path: Path, corpus: Path) -> None:
    half = _split(_place(tmp_path, Source(path=str(corpus), weight=0.5)))
    more = _split(_place(tmp_path, Source(path=str(corpus), weight=0.75)))
    assert half[0] < more[0]


def test_content_hashes_tell_contents_apart() -> None:
    chats = [
        (user("a"), assistant("b")),
        (user("ab"), assistant("")),
        (user("a"), assistant("b", "")),
        (user("a"), assistant(Part("output", "b"))),
    ]
    assert len({content_hash(content) for content in ("a", "b", *chats)}) == 6
    assert content_hash("a") == content_hash("a")


def test_shares_are_met() -> None:
    held = sum(in_validation(content_hash(str(number)), 0.05) for number in range(10_000))
    assert abs(held - 500) < 100
    assert not any(in_validation(content_hash(str(number)), 0.0) for number in range(100))


def test_the_tokenizer_never_sees_validation(tmp_path: Path, corpus: Path, chats: Path, configure: Configure) -> None:
    config = configure(pretrain=corpus, sft=chats)
    sample = sample_texts(config, 100, tmp_path / "cache")
    train, held = _split(_place(tmp_path, Source(path=str(corpus)), share=config.validation_share))
    assert set(train) < set(sample)
    assert not set(held) & set(sample)
    assert "cat 1?" in sample


def test_a_bounded_sample_is_the_same_in_any_order(tmp_path: Path, corpus: Path, configure: Configure) -> None:
    backwards = tmp_path / "backwards.jsonl"
    lines = (corpus / "texts.jsonl").read_text().splitlines()
    backwards.write_text("\n".join(reversed(lines)) + "\n" + "\n".join(lines[:50]))
    sample = sample_texts(configure(pretrain=corpus), 0.002, tmp_path / "cache")
    assert sample == sample_texts(configure(pretrain=backwards), 0.002, tmp_path / "cache")
    assert 1900 < sum(map(len, sample)) <= 2000


def test_a_sample_of_one_document_that_is_all_validation(tmp_path: Path, configure: Configure) -> None:
    (tmp_path / "a.txt").write_text("some words")
    config = configure(pretrain=tmp_path / "a.txt", validation_share=0.5)
    number = 0
    while not in_validation(content_hash(text := f"some words {number}"), 0.5):
        number += 1
    (tmp_path / "a.txt").write_text(text)
    assert sample_texts(config, 1, tmp_path / "cache") == [text]


def test_no_text_at_all_is_an_error(tmp_path: Path, configure: Configure) -> None:
    (tmp_path / "a.txt").write_text(" \n")
    with pytest.raises(UserError, match="no text"):
        sample_texts(configure(pretrain=tmp_path / "a.txt"), 1, tmp_path / "cache")


def test_duplicates_go_whatever_the_order_of_the_sources(tmp_path: Path) -> None:
    for name, texts in (("a", "one two three two"), ("b", "two four")):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts.split()))
    for weights in ((1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.5, 0.25)):
        sources = [Source(path=str(tmp_path / f"{n}.jsonl"), weight=w) for n, w in zip("ab", weights, strict=True)]
        found = []
        for order in (sources, sources[::-1]):
            counts = [Counter[str]() for _ in order]
            cleaning = Cleaning(drop_duplicates=True)
            placed = place("pretrain", tuple(order), 0, 0.0, tmp_path / "cache", counts, cleaning)
            found.append(Counter(entry.document.content for entry in placed))
        assert found[0] == found[1]
        assert max(found[0].values()) <= math.ceil(max(weights))


def test_a_source_may_have_cleaning_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in range(1, 9)))
    counts = [Counter[str](), Counter[str]()]
    sources = (Source(path=str(path)), Source(path=str(path), cleaning=Cleaning(max_characters=2)))
    placed = place("pretrain", sources, 0, 0.0, tmp_path / "cache", counts, Cleaning(min_characters=5))
    assert Counter(entry.source for entry in placed) == {0: 4, 1: 2}
    assert counts == [{"too short": 4}, {"too long": 6}]
