"""What must not move when a corpus is told in another way: other files, other formats, another order of the sources.

That is the validation set with its bytes and bits, the documents trained on, and the tokenizer, to the byte.
"""

import gzip
import json
import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from data.config import Cleaning, DataConfig, Source
from data.mixture import place, sample_texts
from data.rows import Rows
from data.shards import build
from data.tokenizer import Tokenizer

Corpus = list[list[str]]  # the documents of each source

# Line breaks as "\n" alone: the others are a text file's own business, and become that one when it is read.
_TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\x00\ufeff"), min_size=1, max_size=40)
_CORPUS = st.lists(st.lists(_TEXT.filter(str.strip), min_size=1, max_size=25), min_size=1, max_size=3)
_WEIGHTS = st.lists(st.sampled_from([0.3, 0.5, 1.0, 1.5, 2.0]), min_size=3, max_size=3)


def _store(documents: list[str], folder: Path, draw: random.Random) -> None:
    """Write documents to a folder in any order, split into any files of any kind."""
    folder.mkdir(parents=True)
    documents = draw.sample(documents, len(documents))
    number = 0
    while documents:
        kind = draw.choice(["txt", "md", "jsonl", "jsonl.gz", "parquet"])
        size = 1 if kind in ("txt", "md") else draw.randint(1, len(documents))
        part, documents = documents[:size], documents[size:]
        path = folder / f"{draw.randint(0, 999)}-{number}.{kind}"
        number += 1
        if kind == "parquet":
            pq.write_table(pa.table({"n": list(range(size)), "text": part}), path, row_group_size=draw.randint(1, size))
            continue
        lines = "".join(json.dumps({"text": text}, ensure_ascii=draw.random() < 0.5) + "\n" for text in part)
        content = (lines if kind.startswith("jsonl") else part[0]).encode()
        path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)


def _told(corpus: Corpus, weights: list[float], folder: Path, seed: int) -> tuple[Source, ...]:
    """The corpus as sources in some order, each a folder."""
    draw = random.Random(seed)
    sources = []
    for number, documents in enumerate(corpus):
        _store(documents, folder / str(number), draw)
        sources.append(Source(path=str(folder / str(number)), weight=weights[number]))
    draw.shuffle(sources)
    return tuple(sources)


def _placed(sources: tuple[Source, ...], share: float, cleaning: Cleaning, cache: Path) -> tuple[Counter, set]:
    """How often each document is trained on, and which are held out."""
    counts = [Counter[str]() for _ in sources]
    train, validation = Counter[str](), set[str]()
    for each in place("pretrain", sources, 0, share, cache, counts, cleaning):
        if each.validation:
            validation.add(str(each.document.content))
        else:
            train[str(each.document.content)] += 1
    return train, validation


@settings(max_examples=50)
@given(_CORPUS, _WEIGHTS, st.sampled_from([0.0, 0.2, 0.5]), st.booleans(), st.integers(0, 999))
def test_documents_and_their_side_stay(
    corpus: Corpus, weights: list[float], share: float, unique: bool, seed: int
) -> None:
    cleaning = Cleaning(drop_duplicates=unique)
    with TemporaryDirectory() as name:
        folder = Path(name)
        first, second = (
            _placed(_told(corpus, weights, folder / str(n), n), share, cleaning, folder / "cache")
            for n in (seed, seed + 1)
        )
    assert first == second
    train, validation = first
    assert not set(train) & validation


@settings(max_examples=15)
@given(_CORPUS, _WEIGHTS, st.integers(0, 999))
def test_bits_per_byte_and_the_tokenizer_stay(corpus: Corpus, weights: list[float], seed: int) -> None:
    with TemporaryDirectory() as name:
        results = [_result(corpus, weights, Path(name) / str(n), n) for n in (seed, seed + 1)]
    assert results[0] == results[1]


def _result(corpus: Corpus, weights: list[float], folder: Path, seed: int) -> tuple:
    """The tokenizer, and of the validation rows: ids, what is learned, and the bytes that bits are counted over."""
    common = [f"the cat sat on the mat and the dog ran {number}" for number in range(40)]
    sources = _told([[*documents, *common] for documents in corpus], weights, folder, seed)
    config = DataConfig(
        context=16,
        pretrain=sources,
        validation_share=0.3,
        shard_folder=str(folder / "s"),
        cache_folder=str(folder / "c"),
    )
    tok = Tokenizer.train(sample_texts(config, 0.001, folder / "c"), 280)
    manifest = build("pretrain", sources, tok, config, folder / "m.json", folder / "work")
    rows = Rows(folder / "m.json", "validation")
    everything = range(len(rows))
    return (
        tok.sha256,
        manifest["splits"]["validation"],
        manifest["validation"],
        rows.ids(everything).tolist(),
        rows.mask(everything).tolist(),
    )


def test_a_seed_decides_the_part_that_a_weight_keeps(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": str(n)}) + "\n" for n in range(400)))
    kept = []
    for seed in (1, 1, 2):
        source = Source(path=str(tmp_path / "a.jsonl"), weight=0.5)
        found = place("pretrain", (source,), seed, 0.0, tmp_path / "cache", [Counter()], Cleaning())
        kept.append([each.document.content for each in found])
    assert kept[0] == kept[1] != kept[2]
    assert 150 < len(kept[0]) < 250
    assert 50 < len(set(kept[0]) & set(kept[2])) < 150
