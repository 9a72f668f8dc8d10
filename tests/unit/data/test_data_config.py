import pytest
from pydantic import TypeAdapter, ValidationError

from data.config import DataConfig, Source, TokenizerConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one"),
        ({"path": "x", "builtin": "chats", "count": 1}, "exactly one"),
        ({"path": "x", "count": 5}, "count"),
        ({"builtin": "chats"}, "count"),
        ({"builtin": "chats", "count": 0}, "count"),
        ({"path": "x", "weight": 0.0}, "weight"),
        ({"path": "x", "weight": -1.0}, "weight"),
        ({"path": "x", "weight": float("nan")}, "weight"),
        ({"path": "x", "weigth": 1.0}, "weigth"),
        ({"path": 3}, "string"),
        ({"path": "x", "url": "http://host/x.txt"}, "exactly one of .* found `path` and `url`"),
        ({"url": "ftp://host/x.txt"}, "`url` must be http"),
        ({"url": "http:///x.txt"}, "`url` must be http"),
        ({"url": "http://me:secret@[host/x.txt"}, "`url` must be http"),
        ({"url": "http://host/x.zip"}, "`format`"),
        ({"url": "http://host/x.txt", "format": "zip"}, "format"),
        ({"url": "http://host/x.txt", "sha256": "abc"}, "64 hexadecimal"),
        ({"url": "http://host/x.txt", "bytes": -1}, "at least 0"),
        ({"path": "x", "sha256": "0" * 64}, "`sha256` goes with `url`"),
        ({"url": "http://host/x.txt", "split": "train"}, "`split` goes with `hub`"),
        ({"hub": "not a name"}, "must be a data set's name"),
        ({"hub": "a/b/c"}, "must be a data set's name"),
    ],
)
def test_impossible_sources(settings: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Source(**settings)


@pytest.mark.parametrize(
    "settings",
    [{"context": 4}, {"validation_share": 0.9}, {"validation_share": -0.1}, {"pretrain": ()}],
)
def test_impossible_data(settings: dict) -> None:
    with pytest.raises(ValidationError, match=next(iter(settings))):
        DataConfig(**{"context": 64, "pretrain": (Source(path="x"),), **settings})


def test_reads_what_yaml_holds() -> None:
    text = '{"context": 64, "pretrain": [{"path": "a", "weight": 2}], "sft": [{"builtin": "chats", "count": 9}]}'
    config = TypeAdapter(DataConfig).validate_json(text)
    assert config.pretrain == (Source(path="a", weight=2.0),)
    assert config.sft[0].name == "builtin:chats"


def test_names_show_no_secret() -> None:
    assert Source(url="https://me:word@host:8/a/b.txt?key=1#part").name == "https://host:8/a/b.txt"
    assert Source(hub="a/b").name == "hub:a/b"
    assert Source(hub="a/b", subset="c", split="d", files="*1*").name == "hub:a/b:c:d:*1*"


def test_vocabulary_holds_bytes_and_marks() -> None:
    assert TokenizerConfig(vocab_size=265).vocab_size == 265
    for wrong in (264, 0, 1 << 21):
        with pytest.raises(ValidationError, match="vocab_size"):
            TokenizerConfig(vocab_size=wrong)
