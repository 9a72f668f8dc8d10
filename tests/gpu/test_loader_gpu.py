"""The ring on the GPU: the right rows on the device, whoever is slow, nothing allocated, and waits seen by events."""

import threading
import time

import pytest
import torch

from data.loader import Loader, update_rows
from data.rows import IGNORE
from tests.small_job import MemoryRows

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
ROWS = 64


class Slow(MemoryRows):
    """Rows that take longer to read than to use."""

    def read(self, *args) -> None:
        time.sleep(0.003)
        super().read(*args)


class Waiting(MemoryRows):
    """Rows that are read one micro-batch at a time, each when it is allowed: by one thread, or the order is open."""

    def __init__(self) -> None:
        super().__init__(ROWS)
        self.allowed = threading.Semaphore(0)

    def read(self, *args) -> None:
        assert self.allowed.acquire(timeout=60)
        super().read(*args)


def expected(rows: MemoryRows, index: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = update_rows(index, size, len(rows), 0)
    ids, mask = torch.from_numpy(rows.ids(numbers)), torch.from_numpy(rows.mask(numbers))
    return ids[:, :-1], torch.where(mask[:, 1:] > 0, ids[:, 1:], IGNORE)


def busy(milliseconds: int) -> None:
    """Keep the current stream at work."""
    torch.cuda._sleep(2_000_000 * milliseconds)


@pytest.mark.parametrize(("slots", "threads"), [(1, 1), (2, 1), (8, 3)])
@pytest.mark.parametrize("slow", ["nobody", "consumer", "producer"])
def test_rows_on_the_device_are_right_whoever_is_slow(slots: int, threads: int, slow: str) -> None:
    rows, seen = (Slow if slow == "producer" else MemoryRows)(ROWS), []
    with Loader(rows, 8, 4, slots=slots, threads=threads, device=GPU) as loader:
        for _ in range(30):
            for batch in next(loader).micro_batches:
                if slow == "consumer":  # the copy is queued long before what is computed from the slot is over
                    busy(2)
                seen.append((batch.inputs * 1, batch.targets * 1))
    torch.cuda.synchronize()
    for index in range(30):
        inputs, targets = (torch.cat([pair[which] for pair in seen[2 * index : 2 * index + 2]]) for which in (0, 1))
        assert inputs.device.type == "cuda"
        wanted = expected(rows, index, 8)
        assert torch.equal(inputs.cpu(), wanted[0]) and torch.equal(targets.cpu(), wanted[1])


def test_no_batch_takes_memory_of_the_gpu() -> None:
    with Loader(MemoryRows(ROWS), 8, 4, slots=4, threads=2, device=GPU) as loader:
        list(next(loader).micro_batches)
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        addresses = {batch.inputs.data_ptr() for _ in range(50) for batch in next(loader).micro_batches}
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
        assert len(addresses) == 4


def test_a_wait_of_the_gpu_is_measured_and_what_it_hides_is_not() -> None:
    rows = Waiting()
    with Loader(rows, 4, 4, slots=2, device=GPU) as loader:
        rows.allowed.release(2)
        for _ in range(2):  # ready before they are asked for, or nearly
            list(next(loader).micro_batches)
            busy(50)
        torch.cuda.synchronize()
        before = loader.waited_seconds
        threading.Timer(0.3, rows.allowed.release, (2,)).start()
        list(next(loader).micro_batches)  # the GPU has nothing else to do
        torch.cuda.synchronize()
        waited = loader.waited_seconds - before
        assert 0.2 < waited < 5
        rows.allowed.release(10)
        busy(500)
        list(next(loader).micro_batches)  # read while the GPU was at work
        torch.cuda.synchronize()
        assert loader.waited_seconds - before - waited < 0.05
        rows.allowed.release(10)  # for the thread that reads ahead, so that it ends
