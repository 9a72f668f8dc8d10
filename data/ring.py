"""A ring of slots through which micro-batches go to the device: filled by threads, copied beside the computation.

Micro-batch n lies in slot n mod slots. A slot has a place in (pinned) host memory and, for a GPU, one in its memory;
all are made once, and nothing is allocated for a batch. Threads fill the host's place and queue the copy on a stream of
its own. Nobody waits for more than has to be done:

- a thread fills a host's place again when the copy out of it is done (event `copied`),
- the copy stream overwrites the device's place when what was computed from it is done (event `used`),
- the computing stream waits for the copy (`copied` again), which is over long before when the ring is ahead.

Without a GPU the consumer gets the host's place, and none of the events is there.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MicroBatch:
    """`inputs` (B, T) int64 and `targets` (B, T) int64, the next tokens, negative where they are not learned."""

    inputs: Tensor
    targets: Tensor


Fill = Callable[[int, MicroBatch], None]  # writes micro-batch number n into host memory, from any thread


class _Slot:
    def __init__(self, shape: tuple[int, int], device: torch.device) -> None:
        gpu = device.type == "cuda"
        self.host = MicroBatch(*(torch.empty(shape, dtype=torch.int64, pin_memory=gpu) for _ in range(2)))
        self.batch = self.host
        self.number = -1  # of the micro-batch in it
        if gpu:
            self.batch = MicroBatch(*(torch.empty(shape, dtype=torch.int64, device=device) for _ in range(2)))
            self.copied, self.used = torch.cuda.Event(), torch.cuda.Event()


class _Waits:
    """How long the computing stream stood still for data: events around each wait, read once they have passed."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._passing: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._free: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def begin(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        self.collect()
        pair = self._free.pop() if self._free else tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
        pair[0].record()
        return pair

    def end(self, pair: tuple[torch.cuda.Event, torch.cuda.Event]) -> None:
        pair[1].record()
        self._passing.append(pair)

    def collect(self) -> None:
        """Count the waits that are over, without waiting for those that are not."""
        while self._passing and self._passing[0][1].query():
            pair = self._passing.popleft()
            self.seconds += pair[0].elapsed_time(pair[1]) / 1e3
            self._free.append(pair)


class Ring:
    """Micro-batches `first`, `first` + 1, … of `shape` (B, T) on `device`, one by one, without end.

    `fill` is called by `threads` threads, for several numbers at a time. What it raises is raised by `take` where that
    micro-batch was due. `waited_seconds`: how long the computing stream stood still for data; on a CPU, the consumer.
    """

    def __init__(
        self, fill: Fill, first: int, shape: tuple[int, int], device: torch.device, slots: int, threads: int
    ) -> None:
        self._fill, self._device = fill, device
        self._slots = [_Slot(shape, device) for _ in range(slots)]
        self._next = self._freed = self._claimed = first  # to be taken; no longer in use below it; to be filled
        self._failed: tuple[int, BaseException] | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._waited = 0.0
        gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if gpu else None
        self._waits = _Waits() if gpu else None
        self._threads = [
            threading.Thread(target=self._work, name=f"loader-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def take(self) -> MicroBatch | None:
        """The next micro-batch, valid until the next call; None once the ring is closed."""
        self._free_taken()
        slot = self._slots[self._next % len(self._slots)]
        pair = self._waits.begin() if self._waits else None
        started = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: slot.number == self._next or self._is_due() or self._closed)
            if self._closed:
                return None
            if slot.number != self._next:
                raise self._failed[1]
        self._waited += time.perf_counter() - started
        if pair is not None:
            torch.cuda.current_stream(self._device).wait_event(slot.copied)
            self._waits.end(pair)
        self._next += 1
        return slot.batch

    @property
    def waited_seconds(self) -> float:
        if self._waits is None:
            return self._waited
        self._waits.collect()
        return self._waits.seconds

    def close(self) -> None:
        """End the threads; afterwards there is nothing to take. May be called again, and while a consumer waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        if self._stream is not None:  # the slots' memory may go to others now
            self._stream.synchronize()

    def _free_taken(self) -> None:
        """Give the slot of the micro-batch taken last back, once what was computed from it is done."""
        if self._freed == self._next:
            return
        if self._stream is not None:
            self._slots[self._freed % len(self._slots)].used.record(torch.cuda.current_stream(self._device))
        with self._changed:
            self._freed = self._next
            self._changed.notify_all()

    def _is_due(self) -> bool:
        return self._failed is not None and self._failed[0] <= self._next

    def _work(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or self._failed or self._claimed < self._freed + len(self._slots)
                )
                if self._closed or self._failed:
                    return
                number = self._claimed
                self._claimed += 1
            slot = self._slots[number % len(self._slots)]
            try:
                if self._stream is not None:
                    slot.copied.synchronize()
                self._fill(number, slot.host)
                if self._stream is not None:
                    self._copy(slot)
            except BaseException as error:  # the consumer raises it: a thread that just ends would leave it waiting
                with self._changed:
                    if self._failed is None or number < self._failed[0]:
                        self._failed = number, error
                    self._changed.notify_all()
                return
            with self._changed:
                slot.number = number
                self._changed.notify_all()

    def _copy(self, slot: _Slot) -> None:
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(slot.used)
            slot.batch.inputs.copy_(slot.host.inputs, non_blocking=True)
            slot.batch.targets.copy_(slot.host.targets, non_blocking=True)
            slot.copied.record(self._stream)
