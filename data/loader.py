"""Batches for the training loop: an order that needs no state, read ahead by a thread.

Update u takes rows [u R, (u+1) R) of an endless sequence: epoch after epoch of the split's rows, each epoch in a
shuffle of its own (data.permutation). So the cursor is the update's number, and neither the number of ranks nor an
interruption changes which rows an update sees.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data.permutation import permute
from data.rows import Rows

IGNORE = -1  # a target that is not learned


@dataclass(frozen=True)
class MicroBatch:
    """`inputs` (B, T) int64 and `targets` (B, T) int64, the next tokens, IGNORE where masked or padding."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Update:
    """One optimizer step's data. `epoch` is passes over the split at its end, `targets` the number of learned tokens
    over all ranks, `row_ids` the rows of this rank."""

    index: int
    epoch: float
    micro_batches: Sequence[MicroBatch]
    targets: int
    row_ids: list[int]


def update_rows(index: int, rows_per_update: int, n: int, seed: int) -> np.ndarray:
    """(R,) int64: the rows of update `index` over a split of `n` rows, for all ranks together."""
    positions = np.arange(index * rows_per_update, (index + 1) * rows_per_update, dtype=np.int64)
    epochs, offsets = positions // n, positions % n
    rows = np.empty_like(positions)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        rows[here] = permute(offsets[here], n, (seed, int(epoch)))
    return rows


class Loader:
    """An endless iterator of Updates from update `start` on; up to `prefetch` are read ahead by a thread.

    Every rank gets a contiguous slice of an update's rows and the same number of micro-batches of `micro_batch` rows;
    short ones end in rows that hold no target. `waited_seconds` is the time the consumer has waited. Close it, or
    use it as a context manager: that ends the thread. An error while reading is raised where the batch was due.
    """

    def __init__(
        self,
        rows: Rows,
        rows_per_update: int,
        micro_batch: int,
        rank: int = 0,
        world: int = 1,
        seed: int = 0,
        start: int = 0,
        prefetch: int = 2,
    ) -> None:
        if (
            min(rows_per_update, micro_batch, world, prefetch) < 1
            or not 0 <= rank < world
            or start < 0
            or not len(rows)
        ):
            raise ValueError(
                f"a loader of {len(rows)} rows, {rows_per_update} an update, {micro_batch} a micro-batch, "
                f"rank {rank} of {world}, from update {start}, {prefetch} ahead"
            )
        self._rows, self._rows_per_update, self._micro_batch = rows, rows_per_update, micro_batch
        self._rank, self._world, self._seed, self._prefetch = rank, world, seed, prefetch
        self._next = start
        self._ready: deque[Update | BaseException] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.waited_seconds = 0.0
        self._thread = threading.Thread(target=self._fill, name="loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Update]:
        return self

    def __next__(self) -> Update:
        started = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._closed)
            self.waited_seconds += time.monotonic() - started
            if self._closed:
                raise StopIteration
            if isinstance(self._ready[0], BaseException):
                raise self._ready[0]
            update = self._ready.popleft()
            self._changed.notify_all()
        return update

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread; afterwards the iterator is exhausted. May be called again."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join()

    def _fill(self) -> None:
        while True:
            try:
                item: Update | BaseException = self.read(self._next)
            except BaseException as error:  # the consumer raises it: a thread that just ends would leave it waiting
                item = error
            self._next += 1
            with self._changed:
                self._changed.wait_for(lambda: len(self._ready) < self._prefetch or self._closed)
                if self._closed:
                    return
                self._ready.append(item)
                self._changed.notify_all()
                if isinstance(item, BaseException):
                    return

    def read(self, index: int) -> Update:
        """Update `index` of this rank, read now."""
        everyone = update_rows(index, self._rows_per_update, len(self._rows), self._seed)
        mine = np.array_split(everyone, self._world)[self._rank]
        longest = math.ceil(self._rows_per_update / self._world)  # rank 0's slice: all have as many micro-batches
        count = math.ceil(longest / self._micro_batch)
        batches = [self._batch(mine[at * self._micro_batch : (at + 1) * self._micro_batch]) for at in range(count)]
        return Update(
            index=index,
            epoch=(index + 1) * self._rows_per_update / len(self._rows),
            micro_batches=batches,
            targets=int(self._rows.target_counts[everyone].sum()),
            row_ids=mine.tolist(),
        )

    def _batch(self, indices: np.ndarray) -> MicroBatch:
        shape = (self._micro_batch, self._rows.context)
        inputs, targets = np.zeros(shape, np.int64), np.full(shape, IGNORE, np.int64)
        ids = self._rows.ids(indices)
        inputs[: len(indices)] = ids[:, :-1]
        targets[: len(indices)] = np.where(self._rows.mask(indices)[:, 1:] > 0, ids[:, 1:], IGNORE)
        return MicroBatch(torch.from_numpy(inputs), torch.from_numpy(targets))
