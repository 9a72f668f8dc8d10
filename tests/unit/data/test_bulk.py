"""Bulk encoding: the ids of the tokenizers library, whatever the text."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.bulk import BulkEncoder, Encoder
from data.tokenizer import Tokenizer

FRAGMENTS = [
    "hello",
    " world",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "it's",
    "WE'LL",
    "1234",
    "é",
    "日本",
    "🙂",
    "aaaa",
    "--",
    "<|bos|>",
    "ab",
]


def same(tok: Tokenizer, texts: list[str]) -> None:
    for text, ids in zip(texts, Encoder(tok).encode(texts), strict=True):
        assert ids.tolist() == tok.encode(text), text[:200]


@given(texts=st.lists(st.one_of(st.text(), st.lists(st.sampled_from(FRAGMENTS)).map("".join)), max_size=8))
def test_ids_are_those_of_the_tokenizer(tok: Tokenizer, texts: list[str]) -> None:
    same(tok, texts)


def test_every_known_character_is_split_alike(tok: Tokenizer) -> None:
    unlike = ("Cn", "Cs", "Co")  # unknown, surrogates, private: the last are 137,000 of a kind
    known = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in unlike]
    same(tok, ["".join(f"a{c}1{c} {c}\n" for c in known[at : at + 4000]) for at in range(0, len(known), 4000)])


@pytest.mark.parametrize("unit", [" ", "\n", "a", "7", "é", "🙂", "ab ", "\u0378", "\ufffd"])
def test_long_runs_of_anything(tok: Tokenizer, unit: str) -> None:
    same(tok, [unit * 300_000, "x" + unit * 1000])


def test_processes_give_what_one_gives_in_order(tok: Tokenizer) -> None:
    batches = [["", "a", "", "b" * 500_000, "c"], [], ["ä\udcffö"], [f"number {at}" for at in range(1000)]]
    results = []
    for workers, alone in ((1, 0), (2, 0), (2, 10**9)):
        with BulkEncoder(tok, workers, alone) as bulk:
            waiting = [bulk.submit(batch) for batch in batches]
            results.append([[ids.tolist() for ids in wait()] for wait in waiting])
    assert results[0] == results[1] == results[2]
    assert results[0] == [[tok.encode(text) for text in batch] for batch in batches]
