import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.loader import IGNORE, Loader, Update, update_rows


class FakeRows:
    """Rows whose tokens tell row and column; the first `row % 3` targets are masked."""

    context = 4

    def __init__(self, n: int) -> None:
        self.n = n
        self.target_counts = np.array([4 - row % 3 for row in range(n)])

    def __len__(self) -> int:
        return self.n

    def ids(self, indices: np.ndarray) -> np.ndarray:
        return indices[:, None] * 10 + np.arange(5)

    def mask(self, indices: np.ndarray) -> np.ndarray:
        return (np.arange(5) > indices[:, None] % 3).astype(np.uint8)


def _take(n: int, **settings: int) -> list[Update]:
    count = settings.pop("count")
    with Loader(FakeRows(n), **settings) as loader:
        return [next(loader) for _ in range(count)]


@given(
    n=st.integers(1, 20),
    size=st.integers(1, 9),
    micro=st.integers(1, 4),
    world=st.integers(1, 4),
    resumed=st.integers(1, 4),
    start=st.integers(0, 6),
)
def test_an_update_sees_the_same_rows_on_any_ranks_and_after_any_interruption(
    n: int, size: int, micro: int, world: int, resumed: int, start: int
) -> None:
    rows = FakeRows(n)
    for index in range(start, start + 3):
        wanted = Counter(update_rows(index, size, n, 7).tolist())
        for ranks in (world, resumed):
            seen: Counter[int] = Counter()
            learned = 0
            shapes = set()
            for rank in range(ranks):
                loader = Loader(rows, size, micro, rank, ranks, seed=7, start=index)
                update = next(loader)
                loader.close()
                assert update.index == index
                seen.update(update.row_ids)
                shapes.add(tuple(batch.inputs.shape for batch in update.micro_batches))
                learned += sum(int((batch.targets != IGNORE).sum()) for batch in update.micro_batches)
            assert seen == wanted
            assert len(shapes) == 1  # every rank has the same number of micro-batches
            assert learned == update.targets == sum(rows.target_counts[row] * c for row, c in wanted.items())


@given(n=st.integers(1, 50), size=st.integers(1, 20), seed=st.integers(0, 5))
def test_every_epoch_has_every_row_once_in_another_order(n: int, size: int, seed: int) -> None:
    updates = -(-3 * n // size)
    order = np.concatenate([update_rows(index, size, n, seed) for index in range(updates)])[: 3 * n].reshape(3, n)
    assert all(sorted(epoch) == list(range(n)) for epoch in order.tolist())
    if n > 20:
        assert len({tuple(epoch) for epoch in order.tolist()}) == 3


def test_targets_are_the_next_tokens_and_ignore_what_is_masked() -> None:
    (update,) = _take(6, rows_per_update=6, micro_batch=4, count=1)
    assert [batch.inputs.shape for batch in update.micro_batches] == [(4, 4), (4, 4)]
    inputs = torch.cat([batch.inputs for batch in update.micro_batches])
    targets = torch.cat([batch.targets for batch in update.micro_batches])
    assert inputs.dtype == targets.dtype == torch.int64
    for at, row in enumerate(update.row_ids):
        assert inputs[at].tolist() == [row * 10 + column for column in range(4)]
        learned = [row * 10 + column if column > row % 3 else IGNORE for column in range(1, 5)]
        assert targets[at].tolist() == learned
    assert (targets[6:] == IGNORE).all()
    assert update.epoch == 1.0


def test_a_corpus_of_one_row_never_ends() -> None:
    updates = _take(1, rows_per_update=3, micro_batch=2, count=5)
    assert [update.row_ids for update in updates] == [[0, 0, 0]] * 5
    assert [update.epoch for update in updates] == [3.0, 6.0, 9.0, 12.0, 15.0]
    assert {update.targets for update in updates} == {12}


def test_more_ranks_than_rows() -> None:
    updates = [_take(5, rows_per_update=2, micro_batch=2, rank=rank, world=3, count=1)[0] for rank in range(3)]
    assert [len(update.row_ids) for update in updates] == [1, 1, 0]
    assert all((batch.targets == IGNORE).all() for batch in updates[2].micro_batches)
    assert len({update.targets for update in updates}) == 1


def test_an_interrupted_loader_goes_on_where_it_stopped() -> None:
    settings = {"rows_per_update": 4, "micro_batch": 2, "seed": 3}
    whole = _take(7, count=6, **settings)
    rest = _take(7, count=3, start=3, **settings)
    for a, b in zip(whole[3:], rest, strict=True):
        assert (a.index, a.epoch, a.targets, a.row_ids) == (b.index, b.epoch, b.targets, b.row_ids)
        assert all(torch.equal(x.inputs, y.inputs) for x, y in zip(a.micro_batches, b.micro_batches, strict=True))


def test_closing_ends_the_thread_even_when_nobody_reads() -> None:
    before = threading.active_count()
    loader = Loader(FakeRows(9), 2, 1, prefetch=3)
    time.sleep(0.05)
    assert threading.active_count() == before + 1
    loader.close()
    loader.close()
    assert threading.active_count() == before
    assert list(loader) == []


def test_closing_frees_a_consumer_that_waits() -> None:
    class Slow(FakeRows):
        def ids(self, indices: np.ndarray) -> np.ndarray:
            time.sleep(0.2)
            return super().ids(indices)

    loader = Loader(Slow(9), 2, 2)
    got: list[list[Update]] = []
    consumer = threading.Thread(target=lambda: got.append(list(loader)))
    consumer.start()
    time.sleep(0.05)
    loader.close()
    consumer.join(5)
    assert not consumer.is_alive()


def test_waiting_is_measured() -> None:
    class Slow(FakeRows):
        def ids(self, indices: np.ndarray) -> np.ndarray:
            time.sleep(0.05)
            return super().ids(indices)

    with Loader(Slow(9), 2, 2) as loader:
        for _ in range(3):
            next(loader)
        assert loader.waited_seconds > 0.1
    with Loader(FakeRows(9), 2, 2) as loader:
        while not loader._ready:
            time.sleep(0.01)
        next(loader)
        assert loader.waited_seconds < 0.05


def test_an_error_in_the_thread_reaches_the_consumer_each_time() -> None:
    class Broken(FakeRows):
        def ids(self, indices: np.ndarray) -> np.ndarray:
            raise OSError("the disk is gone")

    with Loader(Broken(9), 2, 2) as loader:
        for _ in range(2):
            with pytest.raises(OSError, match="disk is gone"):
                next(loader)


@pytest.mark.parametrize(
    "settings",
    [{"rows_per_update": 0}, {"micro_batch": 0}, {"rank": 1}, {"world": 0}, {"start": -1}, {"prefetch": 0}],
)
def test_impossible_settings_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a loader of 9 rows"):
        Loader(FakeRows(9), **{"rows_per_update": 2, "micro_batch": 1, **settings})


def test_over_real_shards(tmp_path: Path, chats: Path, configure, tok) -> None:
    from data.rows import Rows
    from data.shards import build

    config = configure(sft=chats)
    build("sft", config.sft, tok, config, tmp_path / "m.json", tmp_path / "work")
    rows = Rows(tmp_path / "m.json", "train")
    with Loader(rows, 8, 3, seed=1) as loader:
        for _ in range(2 * len(rows) // 8):
            update = next(loader)
            counted = sum(int((batch.targets != IGNORE).sum()) for batch in update.micro_batches)
            assert counted == update.targets == rows.target_counts[update.row_ids].sum()
