"""Batches for the training loop: an order that needs no state, read ahead through a ring (data.ring).

Update u takes rows [u R, (u+1) R) of an endless sequence: epoch after epoch of the split's rows, each epoch in a
shuffle of its own (data.permutation). So the cursor is the update's number, and neither the number of ranks nor an
interruption changes which rows an update sees.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from data.permutation import permute
from data.ring import MicroBatch, Ring
from data.rows import IGNORE, Rows


class MicroBatches:
    """The micro-batches of one update, to be gone through once and before the next update's; each is valid until the
    next is taken."""

    def __init__(self, loader: "Loader", index: int, count: int) -> None:
        self._loader, self._index, self._count = loader, index, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[MicroBatch]:
        for at in range(self._count):
            batch = self._loader.take(self._index * self._count + at)
            if batch is None:  # closed meanwhile
                return
            yield batch


@dataclass(frozen=True)
class Update:
    """One optimizer step's data. `epoch` is passes over the split at its end, `targets` the number of learned tokens
    over all ranks, `row_ids` the rows of this rank."""

    index: int
    epoch: float
    micro_batches: MicroBatches
    targets: int
    row_ids: list[int]


def rows_at(positions: np.ndarray, n: int, seed: int) -> np.ndarray:
    """int64: the rows at these positions of the endless sequence over a split of `n` rows."""
    epochs, offsets = positions // n, positions % n
    rows = np.empty_like(positions)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        rows[here] = permute(offsets[here], n, (seed, int(epoch)))
    return rows


def update_rows(index: int, rows_per_update: int, n: int, seed: int) -> np.ndarray:
    """(R,) int64: the rows of update `index` over a split of `n` rows, for all ranks together."""
    return rows_at(np.arange(index * rows_per_update, (index + 1) * rows_per_update, dtype=np.int64), n, seed)


class Loader:
    """An endless iterator of Updates from update `start` on, whose micro-batches are read ahead into `slots` slots by
    `threads` threads, and lie on `device` (by default the CPU).

    Every rank gets a contiguous slice of an update's rows and the same number of micro-batches of `micro_batch` rows;
    short ones end in rows that hold no target. `waited_seconds` is the time that the device (on a CPU, the consumer)
    has waited for data. Close it, or use it as a context manager: that ends the threads. An error while reading is
    raised where the batch was due.
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
        slots: int = 4,
        threads: int = 1,
        device: torch.device | None = None,
    ) -> None:
        if (
            min(rows_per_update, micro_batch, world, slots, threads) < 1
            or not 0 <= rank < world
            or start < 0
            or not len(rows)
        ):
            raise ValueError(
                f"a loader of {len(rows)} rows, {rows_per_update} an update, {micro_batch} a micro-batch, "
                f"rank {rank} of {world}, from update {start}, {slots} slots filled by {threads} threads"
            )
        self._rows, self._rows_per_update, self._micro_batch, self._seed = rows, rows_per_update, micro_batch, seed
        least, more = divmod(rows_per_update, world)
        self._first = rank * least + min(rank, more)  # this rank's slice of an update
        self._stop = self._first + least + (rank < more)
        self._count = math.ceil(math.ceil(rows_per_update / world) / micro_batch)  # rank 0's slice is a longest one
        self._index = start
        self._taken = start * self._count
        shape = (micro_batch, rows.context)
        self._ring = Ring(self._fill, self._taken, shape, device or torch.device("cpu"), slots, threads)
        self._closed = False

    def __iter__(self) -> Iterator[Update]:
        return self

    def __next__(self) -> Update:
        if self._closed:
            raise StopIteration
        index = self._index
        self._index += 1
        everyone = update_rows(index, self._rows_per_update, len(self._rows), self._seed)
        return Update(
            index=index,
            epoch=(index + 1) * self._rows_per_update / len(self._rows),
            micro_batches=MicroBatches(self, index, self._count),
            targets=self._rows.targets(everyone),
            row_ids=everyone[self._first : self._stop].tolist(),
        )

    def take(self, number: int) -> MicroBatch | None:
        """Micro-batch `number` since the first update's, which what was not taken before it is passed over for; None
        once the loader is closed."""
        if number < self._taken:
            raise ValueError(f"micro-batch {number} is gone: {self._taken} is the next")
        batch = None
        while self._taken <= number:
            batch = self._ring.take()
            if batch is None:
                return None
            self._taken += 1
        return batch

    @property
    def waited_seconds(self) -> float:
        return self._ring.waited_seconds

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads; afterwards the iterator is exhausted. May be called again."""
        self._closed = True
        self._ring.close()

    def _fill(self, number: int, batch: MicroBatch) -> None:
        index, at = divmod(number, self._count)
        first = self._first + at * self._micro_batch
        stop = max(first, min(first + self._micro_batch, self._stop))
        positions = index * self._rows_per_update + np.arange(first, stop, dtype=np.int64)
        rows = rows_at(positions, len(self._rows), self._seed)
        inputs, targets = batch.inputs.numpy(), batch.targets.numpy()
        self._rows.read(rows, inputs[: len(rows)], targets[: len(rows)])
        inputs[len(rows) :] = 0
        targets[len(rows) :] = IGNORE
