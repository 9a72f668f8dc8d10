"""How well the loader feeds a device: a training step on shards, with and without the ring, from a source that stalls.

    python -m bench.loader --depth 12 --json

On a GPU: milliseconds of a step over one batch that stays on the device, and over batches from shards, through the ring
and read when they are due; each from a source that answers at once, and from one that stalls. `waited` is the share of
the time in which the computing stream stood still for data, by the ring's own events; `slower` how much longer a step
took than over the batch that stays. On any machine: tokens a second of the loader alone, and the memory a batch takes.
The shards are random tokens, written to a temporary folder by the code that writes all shards.
"""

import argparse
import json
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench import step as bench_step
from bench.step import Step
from bench.timing import collector_off, first_device, header, report
from config.errors import run_main
from data.loader import Loader, update_rows
from data.manifest import FORMAT
from data.packing import Packer
from data.ring import MicroBatch
from data.rows import Rows
from data.shard_files import ShardWriter
from model.linear import refresh

ROWS = 4096  # of the shards: enough that caches of the processor don't hold them
STALL_SECONDS, EVERY_SECONDS = 0.2, 2.0
Batches = Iterator[MicroBatch]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=12, help="of the model that trains, on a GPU")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--micro-batch", type=int, default=32)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement: three stalls by default")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


class Stalling:
    """Rows from a disk that does nothing for a while, every so often, whoever asks."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self.context, self.targets = rows, rows.context, rows.targets
        self._lock, self._next = threading.Lock(), time.monotonic() + EVERY_SECONDS

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> None:
        with self._lock:
            if time.monotonic() > self._next:
                time.sleep(STALL_SECONDS)
                self._next = time.monotonic() + EVERY_SECONDS - STALL_SECONDS
        self._rows.read(indices, inputs, targets)


def write_shards(folder: Path, context: int, vocab: int = 32_768) -> Rows:
    """ROWS rows of random tokens in `folder`."""
    draw = np.random.default_rng(0)
    packer = Packer(context + 1, bos=0, divisible=True)
    writer = ShardWriter(folder, packer, np.dtype("<u2"), False, np.ones(vocab, np.int64))
    for _ in range(ROWS):
        ids = draw.integers(1, vocab, context + 1, dtype=np.int32)
        ids[0] = 0
        writer.add(ids, np.ones_like(ids))
    entry, figures = writer.finish()
    splits = {"train": figures | {"files": [entry]}}
    content = {"format": FORMAT, "context": context, "dtype": "<u2", "folder": str(folder), "splits": splits}
    path = folder / "manifest.json"
    path.write_text(json.dumps(content))
    return Rows(path, "train")


def through_the_ring(loader: Loader) -> Batches:
    for update in loader:
        yield from update.micro_batches


def when_due(rows: Rows, micro_batch: int, device: torch.device) -> Batches:
    """The same rows, read into new memory and copied at the moment they are asked for."""
    for index in count():
        shape = (micro_batch, rows.context)
        inputs, targets = np.empty(shape, np.int64), np.empty(shape, np.int64)
        rows.read(update_rows(index, micro_batch, len(rows), 0), inputs, targets)
        yield MicroBatch(*(torch.from_numpy(array).to(device) for array in (inputs, targets)))


def loader_of(rows: Rows, args: argparse.Namespace, device: torch.device) -> Loader:
    return Loader(rows, args.micro_batch, args.micro_batch, slots=args.slots, threads=args.threads, device=device)


def alone(rows: Rows, args: argparse.Namespace) -> dict[str, Any]:
    """The loader with a consumer that does nothing, on the CPU."""
    tokens = args.micro_batch * args.seq
    with loader_of(rows, args, torch.device("cpu")) as loader, collector_off():
        batches = through_the_ring(loader)
        for _ in range(2 * args.slots):
            next(batches)
        started, taken = time.perf_counter(), 0
        while time.perf_counter() - started < args.seconds:
            next(batches)
            taken += 1
        seconds = time.perf_counter() - started
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(100):
                next(batches)
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    return {
        "alone_tok_s": taken * tokens / seconds,
        "batch_bytes": 2 * 8 * tokens,
        "kept_bytes_a_batch": max(0, after - before) / 100,
        "most_bytes_at_a_time": peak - before,
    }


def train(step: Step, batch: Callable[[], tuple[Tensor, Tensor]]) -> None:
    loss = step.parts.loss_sum(*batch())
    loss.backward()
    step.parts.optimizer.step(1.0, 1 / step.rows.count)
    refresh(step.parts.model)
    step.parts.model.zero_grad(set_to_none=True)


def step_ms(step: Step, batch: Callable[[], tuple[Tensor, Tensor]], seconds: float) -> tuple[float, int]:
    """Mean milliseconds of a full step over `seconds`, and how many there were. Nothing waits for the GPU but the end,
    and every tenth step: the host must not run ahead without bound."""
    bench_step.synchronize(step.rows.device)
    started, done = time.perf_counter(), 0
    with collector_off():
        while time.perf_counter() - started < seconds:
            for _ in range(10):
                train(step, batch)
            bench_step.synchronize(step.rows.device)
            done += 10
    return 1e3 * (time.perf_counter() - started) / done, done


def fed(step: Step, rows: Rows, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Steps of training by how they are fed."""
    device = step.rows.device
    batch = step.rows.take()
    for _ in range(5):  # compiles
        train(step, lambda: batch)
    resident, _ = step_ms(step, lambda: batch, args.seconds)
    table = [{"source": "one batch on the device", "feed": None, "ms": resident, "slower": 0.0}]
    for name, wrap in (("page cache", lambda rows: rows), ("stalls 200 ms every 2 s", Stalling)):
        with loader_of(wrap(rows), args, device) as loader:
            batches = through_the_ring(loader)
            before, started = loader.waited_seconds, time.perf_counter()
            ms, _ = step_ms(step, lambda batches=batches: pair(batches), args.seconds)
            waited = (loader.waited_seconds - before) / (time.perf_counter() - started)
        table.append({"source": name, "feed": "ring", "ms": ms, "slower": ms / resident - 1, "waited": waited})
        batches = when_due(wrap(rows), args.micro_batch, device)
        ms, _ = step_ms(step, lambda batches=batches: pair(batches), args.seconds)
        table.append({"source": name, "feed": "when due", "ms": ms, "slower": ms / resident - 1})
    return table


def pair(batches: Batches) -> tuple[Tensor, Tensor]:
    batch = next(batches)
    return batch.inputs, batch.targets


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    device = first_device()
    result = header("loader", device) | {
        key: getattr(args, key) for key in ("micro_batch", "seq", "slots", "threads", "seconds")
    }
    with tempfile.TemporaryDirectory() as folder:
        rows = write_shards(Path(folder), args.seq)
        result |= alone(rows, args)
        if device.type == "cuda":
            options = ["--depth", args.depth, "--precision", args.precision, "--micro-batch", args.micro_batch]
            step = bench_step.build(bench_step.arguments([*map(str, options), "--seq", str(args.seq)]))
            result |= {"depth": args.depth, "precision": step.parts.recipe.name, "steps": fed(step, rows, args)}
    report(result, args.json)


if __name__ == "__main__":
    run_main(main)
