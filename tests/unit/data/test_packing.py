from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data.packing import Packer, Row

BOS = 0
# Documents of distinct tokens, so that each can be traced: (n,) lengths without the mark.
LENGTHS = st.lists(st.integers(1, 60), max_size=60)


def _documents(lengths: list[int]) -> list[np.ndarray]:
    ends = np.cumsum([0, *lengths])
    return [np.concatenate([[BOS], np.arange(a + 1, b + 1)]) for a, b in pairwise(ends)]


def _pack(
    documents: list[np.ndarray], masks: list[np.ndarray], row: int, divisible: bool, buffer: int
) -> tuple[list[Row], Packer]:
    packer = Packer(row, BOS, divisible, buffer)
    rows = [row for ids, mask in zip(documents, masks, strict=True) for row in packer.add(ids, mask)]
    return rows + list(packer.finish()), packer


@given(lengths=LENGTHS, row=st.integers(9, 40), buffer=st.integers(1, 12))
def test_text_loses_nothing_and_fills_every_position(lengths: list[int], row: int, buffer: int) -> None:
    documents = _documents(lengths)
    rows, packer = _pack(documents, [np.ones(len(ids), np.uint8) for ids in documents], row, True, buffer)
    for each in rows:
        assert len(each.ids) == len(each.mask) == row
        assert each.ids[0] == BOS
        assert each.mask.tolist() == [1] * each.filled + [0] * (row - each.filled)
    assert all(each.filled == row for each in rows[:-1])
    tokens = np.concatenate([each.ids for each in rows]) if rows else np.array([])
    assert sorted(tokens[tokens != BOS]) == list(range(1, sum(lengths) + 1))
    # Every document's tokens stay in order, and a part starts after a mark.
    position = {token: at for at, token in enumerate(tokens)}
    parts = 0
    for ids in documents:
        for previous, token in pairwise(ids):
            if previous == BOS or position[token] != position[previous] + 1:
                assert tokens[position[token] - 1] == BOS
                parts += 1
    long = sum(-(-(len(ids) - 1) // (row - 1)) for ids in documents)
    assert long <= parts <= long + packer.divided
    assert packer.continued == sum(len(ids) > row for ids in documents)


@given(lengths=LENGTHS, row=st.integers(9, 40), buffer=st.integers(1, 12), seed=st.integers(0, 9))
def test_chats_are_whole_and_padding_is_never_learned(lengths: list[int], row: int, buffer: int, seed: int) -> None:
    documents = _documents(lengths)
    random = np.random.default_rng(seed)
    masks = [np.concatenate([[0], random.integers(0, 2, len(ids) - 1)]).astype(np.uint8) for ids in documents]
    rows, _ = _pack(documents, masks, row, False, buffer)
    learned: Counter[int] = Counter()
    for each in rows:
        assert each.ids[0] == BOS
        assert each.mask[1:].any()  # a row with nothing to learn is not written
        assert not each.mask[each.filled :].any()
        assert (each.ids[each.filled :] == BOS).all()
        learned.update(each.ids[each.mask == 1].tolist())
    wanted = Counter(int(t) for ids, mask in zip(documents, masks, strict=True) for t in ids[mask == 1])
    assert learned == wanted
    # A conversation that fits a row stands in one row, in one piece.
    lines = [f" {' '.join(map(str, each.ids))} " for each in rows]
    for ids, mask in zip(documents, masks, strict=True):
        if len(ids) <= row and mask.any():
            assert sum(f" {' '.join(map(str, ids))} " in line for line in lines) == 1


def test_chats_pack_tightly() -> None:
    random = np.random.default_rng(0)
    documents = _documents(random.integers(5, 120, 3000).tolist())
    rows, _ = _pack(documents, [np.ones(len(ids), np.uint8) for ids in documents], 257, False, 1024)
    assert sum(each.filled for each in rows) / (257 * len(rows)) > 0.998


def test_text_is_seldom_divided() -> None:
    random = np.random.default_rng(0)
    documents = _documents(random.integers(5, 120, 3000).tolist())
    rows, packer = _pack(documents, [np.ones(len(ids), np.uint8) for ids in documents], 257, True, 1024)
    assert packer.divided < 0.01 * len(documents)  # cutting a stream at the rows' ends divides 24 %
    assert all(each.filled == 257 for each in rows[:-1])


def test_many_tiny_documents_fill_long_rows() -> None:
    documents = _documents([1] * 5000)  # the buffer of 16 holds far less than a row
    rows, _ = _pack(documents, [np.ones(2, np.uint8)] * 5000, 1000, True, 16)
    assert [each.filled for each in rows] == [1000] * 10


def test_a_document_of_the_mark_alone_gives_no_row() -> None:
    rows, packer = _pack([np.array([BOS])], [np.ones(1, np.uint8)], 9, True, 4)
    assert rows == []
    assert packer.without_targets == 0


def test_an_unlearned_stretch_of_a_long_chat_is_dropped_and_counted() -> None:
    ids = np.arange(30)
    mask = (ids >= 25).astype(np.uint8)
    rows, packer = _pack([ids], [mask], 9, False, 4)
    assert packer.continued == 1
    assert packer.without_targets == 3
    assert [int(row.mask.sum()) for row in rows] == [5]
