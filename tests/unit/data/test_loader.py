"""Batches: the same rows on any ranks and after any interruption, read ahead through a ring that allocates nothing."""

import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.loader import Loader, Update, update_rows
from data.ring import MicroBatch
from data.rows import IGNORE


class FakeRows:
    """Rows whose tokens tell row and column; the first `row % 3` targets are masked."""

    context = 4

    def __init__(self, n: int) -> None:
        self.n = n
        self.target_counts = np.array([4 - row % 3 for row in range(n)])

    def __len__(self) -> int:
        return self.n

    def read(self, indices: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> None:
        tokens = indices[:, None] * 10 + np.arange(5)
        inputs[:] = tokens[:, :-1]
        targets[:] = np.where(np.arange(4) < indices[:, None] % 3, IGNORE, tokens[:, 1:])

    def targets(self, indices: np.ndarray) -> int:
        return int(self.target_counts[indices].sum())


@dataclass
class Taken:
    """An update whose micro-batches were all taken, and copied: the loader's own are gone with the next."""

    update: Update
    micro_batches: list[MicroBatch]


def taken(update: Update) -> Taken:
    return Taken(update, [MicroBatch(batch.inputs.clone(), batch.targets.clone()) for batch in update.micro_batches])


def _take(n: int, **settings: int) -> list[Taken]:
    count = settings.pop("count")
    with Loader(FakeRows(n), **settings) as loader:
        return [taken(next(loader)) for _ in range(count)]


@given(
    n=st.integers(1, 20),
    size=st.integers(1, 9),
    micro=st.integers(1, 4),
    world=st.integers(1, 4),
    resumed=st.integers(1, 4),
    start=st.integers(0, 6),
    slots=st.integers(1, 3),
    threads=st.integers(1, 3),
)
@settings(deadline=None)
def test_an_update_sees_the_same_rows_on_any_ranks_and_after_any_interruption(
    n: int, size: int, micro: int, world: int, resumed: int, start: int, slots: int, threads: int
) -> None:
    rows = FakeRows(n)
    for first, ranks in ((start, world), (start + 1, resumed)):  # interrupted after an update, resumed on other ranks
        seen: list[Counter[int]] = [Counter(), Counter()]
        learned, shapes = [0, 0], set()
        for rank in range(ranks):
            with Loader(rows, size, micro, rank, ranks, 7, first, slots, threads) as loader:
                for at in range(2):
                    update = next(loader)
                    assert update.index == first + at
                    batches = taken(update).micro_batches
                    shapes.add(tuple(batch.inputs.shape for batch in batches))
                    learned[at] += sum(int((batch.targets != IGNORE).sum()) for batch in batches)
                    read = torch.cat([batch.inputs[:, 0] for batch in batches]) // 10
                    assert read[: len(update.row_ids)].tolist() == update.row_ids
                    seen[at].update(update.row_ids)
        for at in range(2):
            wanted = Counter(update_rows(first + at, size, n, 7).tolist())
            assert seen[at] == wanted
            assert learned[at] == sum(rows.target_counts[row] * count for row, count in wanted.items())
        assert len(shapes) == 1  # every rank has the same number of micro-batches


@given(n=st.integers(1, 50), size=st.integers(1, 20), seed=st.integers(0, 5))
def test_every_epoch_has_every_row_once_in_another_order(n: int, size: int, seed: int) -> None:
    updates = -(-3 * n // size)
    order = np.concatenate([update_rows(index, size, n, seed) for index in range(updates)])[: 3 * n].reshape(3, n)
    assert all(sorted(epoch) == list(range(n)) for epoch in order.tolist())
    if n > 20:
        assert len({tuple(epoch) for epoch in order.tolist()}) == 3


def test_targets_are_the_next_tokens_and_ignore_what_is_masked() -> None:
    (found,) = _take(6, rows_per_update=6, micro_batch=4, count=1)
    update = found.update
    assert [batch.inputs.shape for batch in found.micro_batches] == [(4, 4), (4, 4)]
    inputs = torch.cat([batch.inputs for batch in found.micro_batches])
    targets = torch.cat([batch.targets for batch in found.micro_batches])
    assert inputs.dtype == targets.dtype == torch.int64
    for at, row in enumerate(update.row_ids):
        assert inputs[at].tolist() == [row * 10 + column for column in range(4)]
        learned = [row * 10 + column if column > row % 3 else IGNORE for column in range(1, 5)]
        assert targets[at].tolist() == learned
    assert (targets[6:] == IGNORE).all()
    assert update.epoch == 1.0


def test_a_corpus_of_one_row_never_ends() -> None:
    updates = [found.update for found in _take(1, rows_per_update=3, micro_batch=2, count=5)]
    assert [update.row_ids for update in updates] == [[0, 0, 0]] * 5
    assert [update.epoch for update in updates] == [3.0, 6.0, 9.0, 12.0, 15.0]
    assert {update.targets for update in updates} == {12}


def test_more_ranks_than_rows() -> None:
    updates = [_take(5, rows_per_update=2, micro_batch=2, rank=rank, world=3, count=1)[0] for rank in range(3)]
    assert [len(found.update.row_ids) for found in updates] == [1, 1, 0]
    assert all((batch.targets == IGNORE).all() for batch in updates[2].micro_batches)
    assert len({found.update.targets for found in updates}) == 1


def test_an_interrupted_loader_goes_on_where_it_stopped() -> None:
    settings = {"rows_per_update": 4, "micro_batch": 2, "seed": 3}
    whole = _take(7, count=6, **settings)
    rest = _take(7, count=3, start=3, **settings)
    for a, b in zip(whole[3:], rest, strict=True):
        assert a.update.row_ids == b.update.row_ids and a.update.index == b.update.index
        assert all(torch.equal(x.inputs, y.inputs) for x, y in zip(a.micro_batches, b.micro_batches, strict=True))


def test_micro_batches_that_nobody_took_are_passed_over() -> None:
    settings = {"rows_per_update": 4, "micro_batch": 2, "seed": 3}
    whole = _take(7, count=3, **settings)
    with Loader(FakeRows(7), **settings) as loader:
        next(iter(next(loader).micro_batches))  # one of two
        skipped = next(loader)
        third = taken(next(loader))
        assert all(
            torch.equal(x.inputs, y.inputs) for x, y in zip(third.micro_batches, whole[2].micro_batches, strict=True)
        )
        with pytest.raises(ValueError, match="micro-batch 2 is gone"):
            next(iter(skipped.micro_batches))


def test_closing_ends_the_threads_even_when_nobody_reads() -> None:
    before = threading.active_count()
    loader = Loader(FakeRows(9), 2, 1, slots=3, threads=2)
    assert threading.active_count() == before + 2
    loader.close()
    loader.close()
    assert threading.active_count() == before
    assert list(loader) == []


class Gated(FakeRows):
    """Rows that are read only while the gate is open; `reading` tells that a thread stands before it."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.gate, self.reading = threading.Event(), threading.Event()

    def read(self, indices: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> None:
        self.reading.set()
        self.gate.wait(20)
        super().read(indices, inputs, targets)


def batches_of(loader: Loader) -> Iterator[MicroBatch]:
    for update in loader:
        yield from update.micro_batches


def test_closing_frees_a_consumer_that_waits() -> None:
    rows = Gated(9)
    loader = Loader(rows, 2, 2)
    got: list[list[MicroBatch]] = []
    consumer = threading.Thread(target=lambda: got.append(list(batches_of(loader))))
    consumer.start()
    assert rows.reading.wait(20)
    closing = threading.Thread(target=loader.close)
    closing.start()
    consumer.join(20)
    assert got == [[]], "the consumer ends while a thread is still reading"
    rows.gate.set()
    closing.join(20)
    assert not closing.is_alive()


def test_waiting_is_measured() -> None:
    class Slow(FakeRows):
        def read(self, indices: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> None:
            time.sleep(0.05)
            super().read(indices, inputs, targets)

    with Loader(Slow(9), 2, 2) as loader:
        for _ in range(3):
            taken(next(loader))
        assert loader.waited_seconds > 0.1


def test_a_slot_is_not_filled_again_while_its_batch_is_in_use() -> None:
    """The ring reads as far ahead as it has slots; what was taken last stays as it is."""
    numbers: list[int] = []
    full = threading.Condition()

    class Counting(FakeRows):
        def read(self, indices: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> None:
            super().read(indices, inputs, targets)
            with full:
                numbers.append(int(indices[0]))
                full.notify_all()

    with Loader(Counting(50), 1, 1, slots=3) as loader:
        for at in range(20):
            (batch,) = next(loader).micro_batches
            with full:  # in use: this one; ready: the two others
                assert full.wait_for(lambda at=at: len(numbers) == at + 3, 20)
            assert batch.inputs[0, 0] == numbers[at] * 10


def test_an_error_in_a_thread_reaches_the_consumer_where_the_batch_was_due_and_each_time() -> None:
    class Broken(FakeRows):
        def read(self, indices: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> None:
            if indices[0] == bad:
                raise OSError("the disk is gone")
            super().read(indices, inputs, targets)

    bad = update_rows(2, 2, 9, 0)[0]
    for threads in (1, 3):
        with Loader(Broken(9), 2, 2, threads=threads, slots=4) as loader:
            for _ in range(2):
                taken(next(loader))
            for _ in range(2):
                with pytest.raises(OSError, match="disk is gone"):
                    taken(next(loader))


def test_in_steady_state_no_batch_takes_memory() -> None:
    rows = FakeRows(1000)
    with Loader(rows, 64, 32, slots=4, threads=2) as loader:
        for _ in range(20):
            for batch in next(loader).micro_batches:
                assert batch.inputs.shape == (32, 4)
        tracemalloc.start()
        try:
            addresses, before = set(), tracemalloc.get_traced_memory()[0]
            for _ in range(200):
                for batch in next(loader).micro_batches:
                    addresses.add(batch.inputs.data_ptr())
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert len(addresses) <= 4
    assert grown < 20_000, "a hundred bytes an update at most, of what is freed later"


@pytest.mark.parametrize(
    "settings",
    [
        {"rows_per_update": 0},
        {"micro_batch": 0},
        {"rank": 1},
        {"world": 0},
        {"start": -1},
        {"slots": 0},
        {"threads": 0},
    ],
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
            counted = 0
            for at, batch in enumerate(update.micro_batches):
                counted += int((batch.targets != IGNORE).sum())
                here = np.array(update.row_ids[3 * at : 3 * at + 3])
                learned = np.where(rows.mask(here)[:, 1:] != 0, rows.ids(here)[:, 1:], IGNORE)
                assert (batch.inputs[: len(here)].numpy() == rows.ids(here)[:, :-1]).all()
                assert (batch.targets[: len(here)].numpy() == learned).all()
            assert counted == update.targets == rows.target_counts[update.row_ids].sum()
