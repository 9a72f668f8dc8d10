"""How fast one full training step is: forward, backward and optimizer, over random tokens, nothing loaded.

    python -m bench.step --depth 20 --precision fp8 --micro-batch 32 --accum 8 --json

Prints one JSON line: ms (median step), tok_s, tflops, mfu, gib (peak), loss, params, seconds to the first step's end.
With `--data TOKENS.bin` (uint16 ids below the vocabulary) it trains on rows of seq + 1 tokens of that file, in order,
with the schedule of a run of `--steps` updates; the line then holds every update's loss.
"""

import argparse
import gc
import json
import statistics
import time
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from bench.timing import ceiling_of, ceilings, header
from config.errors import run_main
from model.config import GPTConfig, ModelConfig, flops_per_token, shape
from model.linear import refresh
from training.assemble import Assembled, assemble
from training.config import TrainConfig
from training.distributed import Ranks
from training.schedule import rate_scale


@dataclass
class Step:
    """A model with its optimizer, and the micro-batches of its next update."""

    config: GPTConfig
    train: TrainConfig
    parts: Assembled
    rows: "Rows"
    accum: int
    updates: int
    done: int = 0

    def run(self) -> Tensor:
        """One full update; returns its mean loss, on the device."""
        summed = self.gradients()
        self.update()
        return summed / (self.accum * self.rows.count)

    def gradients(self) -> Tensor:
        """Forward and backward of all micro-batches; returns the summed loss."""
        summed = torch.zeros((), device=self.rows.device)
        for _ in range(self.accum):
            ids, targets = self.rows.take()
            loss = self.parts.loss_sum(ids, targets)
            loss.backward()
            summed += loss.detach()
        return summed

    def update(self) -> None:
        """The optimizer's step, and the formats' casts of the new weights."""
        scale = rate_scale(min(self.done, self.updates - 1), self.updates, self.train)
        self.parts.optimizer.step(scale, 1 / (self.accum * self.rows.count))
        refresh(self.parts.model)
        self.parts.model.zero_grad(set_to_none=True)
        self.done += 1


class Rows:
    """Micro-batches of ids and targets (B, T), int64 on the device: random, or a file's rows in order."""

    def __init__(self, micro_batch: int, seq: int, vocab: int, device: torch.device, path: str | None) -> None:
        self.micro_batch, self.seq, self.vocab, self.device = micro_batch, seq, vocab, device
        self.count = micro_batch * seq
        self.at = 0
        self.generator = torch.Generator(device=device).manual_seed(0)
        self.file = None
        if path is not None:
            ids = torch.from_numpy(numpy.fromfile(path, dtype=numpy.uint16).astype(numpy.int64))
            self.file = ids[: ids.numel() // (seq + 1) * (seq + 1)].view(-1, seq + 1)

    def take(self) -> tuple[Tensor, Tensor]:
        if self.file is None:
            size = (self.micro_batch, self.seq + 1)
            rows = torch.randint(0, self.vocab, size, device=self.device, generator=self.generator)
        else:
            pick = [(self.at + index) % len(self.file) for index in range(self.micro_batch)]
            self.at += self.micro_batch
            rows = self.file[pick].to(self.device)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--window", default="SSSL")
    parser.add_argument("--micro-batch", type=int, default=32)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--vocab", type=int, default=32_768)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--compile", default="auto", choices=["auto", "on", "off"])
    parser.add_argument("--recompute", default="K", help="as model.recompute_pattern: K keeps, R recomputes a layer")
    parser.add_argument("--data", help="train on this file of uint16 ids instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def build(args: argparse.Namespace) -> Step:
    """The step that the arguments name, on the first GPU or the CPU."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    wanted = ModelConfig(
        depth=args.depth,
        window_pattern=args.window,
        precision=args.precision,
        attention=args.attention,
        compile=args.compile,
        recompute_pattern=args.recompute,
    )
    config = shape(wanted, args.vocab, args.seq)
    batch = args.micro_batch * args.seq * args.accum
    updates = args.steps if args.data else args.warmup + args.steps
    # The depth dial's rates, which scale with the root of the batch.
    ratio = (batch / 2**19) ** 0.5
    rate = args.learning_rate or 0.02 * ratio
    train = TrainConfig(
        tokens=batch * updates, batch_tokens=batch, micro_batch=args.micro_batch, learning_rate=rate, seed=args.seed
    )
    parts = assemble(wanted, config, train, Ranks(0, 1, device), None)
    rows = Rows(args.micro_batch, args.seq, args.vocab, device, args.data)
    return Step(config, train, parts, rows, args.accum, updates)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    started = time.perf_counter()
    step = build(args)
    built = time.perf_counter() - started
    device = step.rows.device
    gc.disable()
    seconds, losses = [], []
    first = 0.0
    for _ in range(step.updates):
        synchronize(device)
        start = time.perf_counter()
        loss = step.run()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
        losses.append(round(loss.item(), 4))
        first = first or time.perf_counter() - started
    median = statistics.median(seconds[min(args.warmup, len(seconds) - 1) :])
    tokens = args.accum * step.rows.count
    tflops = flops_per_token(step.config) * tokens / median / 1e12
    gib = round(torch.cuda.max_memory_allocated() / 2**30, 1) if device.type == "cuda" else None
    limits = ceilings(device)  # after the peak was read: the probes take memory too
    ceiling, own = limits["ceiling_bf16_tflops"], ceiling_of(step.parts.recipe.name, limits)
    line = {
        **header("step", device),
        **limits,
        "depth": args.depth,
        "precision": step.parts.recipe.name,
        "attention": step.parts.attention.name,
        "window": args.window,
        "micro_batch": args.micro_batch,
        "accum": args.accum,
        "seq": args.seq,
        "ms": round(median * 1e3, 1),
        "tok_s": round(tokens / median),
        "tflops": round(tflops, 1),
        "mfu": round(tflops / ceiling, 3) if ceiling else None,
        "share_of_own_ceiling": round(tflops / own, 3) if own else None,
        "gib": gib,
        "loss": losses[-1],
        "params": sum(parameter.numel() for parameter in step.parts.model.parameters()),
        "built_s": round(built, 1),
        "first_step_s": round(first, 1),
        "recompute": args.recompute,
        "seed": args.seed,
        "choices": step.parts.choices,
    }
    if args.data:
        line["losses"] = losses
    if args.json:
        print(json.dumps(line))
    else:
        print("\n".join(f"{key:>20}  {value}" for key, value in line.items() if key != "losses"))


if __name__ == "__main__":
    run_main(main)
