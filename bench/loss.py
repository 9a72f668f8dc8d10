"""How fast the head's product and the loss are, forward and backward, and what memory they take.

    python -m bench.loss --json --rows 65536 --width 1280 --vocab 32768 --recipes bf16,fp8

Each recipe is measured twice: the model's own loss, and the same in two lines of torch, compiled, whose logits lie in
memory in float32. The floor is the three products at the matrix ceiling, and one pass over the logits between them.
"""

import argparse
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.timing import ceiling_of, ceilings, first_device, header, median_ms, number_format, peak_gib, report
from config.errors import UserError, run_main
from hardware.limits import normal
from model.gpt import GPT, cap
from model.linear import Linear, refresh
from model.loss import IGNORE
from model.objective import loss_sum
from model.precision import te
from model.precision.recipes import resolve

CONTEXT = 2048  # tokens a row, where the rows allow it
SOFTCAP = 15.0


class HeadAlone(nn.Module):
    """A GPT without layers, for `loss_sum`: its hidden states (B, T, C) are a leaf, whatever the ids."""

    def __init__(self, hidden: Tensor, vocab: int) -> None:
        super().__init__()
        self.hidden = nn.Parameter(hidden)
        self.head = Linear(hidden.shape[-1], vocab)
        self.config = SimpleNamespace(vocab_size=vocab, softcap=SOFTCAP)

    def forward(self, ids: Tensor) -> Tensor:
        return self.hidden

    logits = GPT.logits


def naive_loss(model: HeadAlone, ids: Tensor, targets: Tensor) -> Tensor:
    """The same loss with all logits in float32 at once."""
    logits = cap(model.head(model(ids)).float(), model.config.softcap)
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction="sum")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=65_536, help="tokens")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--vocab", type=int, default=32_768)
    parser.add_argument("--recipes", default="bf16,fp8")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--compile", default="auto", choices=["auto", "on", "off"], help="auto: on a GPU")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def build(args: argparse.Namespace, recipe_name: str, device: torch.device) -> HeadAlone:
    """The head in the recipe's format under normed hidden states. UserError when the device can't run the recipe."""
    recipe = resolve(recipe_name, device)
    context = math.gcd(args.rows, CONTEXT)
    hidden = F.rms_norm(normal((args.rows // context, context, args.width), recipe.compute, device), (args.width,))
    with torch.device(device):
        model = HeadAlone(hidden, args.vocab)
    with torch.no_grad():
        # Logits of deviation 1 or so, as a model that has learnt a little has them.
        model.head.weight.copy_(normal((args.vocab, args.width), torch.float32, device, args.width**-0.5, seed=1))
    if recipe.compute != torch.float32:
        model.head.format = recipe.format_for(model.head, "head")
    refresh(model)
    return model


def pass_ms(rows: int, vocab: int, gbps: float, gradient_bytes: int = 2) -> float:
    """The logits read once in bf16 and their gradients written once, at the copy's bandwidth (GB/s): the loss needs a
    whole row before it knows any gradient of it."""
    return rows * vocab * (2 + gradient_bytes) / gbps / 1e6


def floor_ms(rows: int, width: int, vocab: int, ceiling: float, gbps: float, gradient_bytes: int = 2) -> float:
    """The head's three products at the ceiling (TFLOP/s), and the pass over the logits between them."""
    return 6 * rows * width * vocab / ceiling / 1e9 + pass_ms(rows, vocab, gbps, gradient_bytes)


def measure_one(
    loss: Callable[..., Tensor], model: HeadAlone, recipe: str, compiled: bool, repeats: int, device: torch.device
) -> dict[str, Any]:
    """ms, peak memory beyond weights and hidden states, and the mean loss; ms is None when memory runs out."""
    rows = model.hidden.shape[:-1]
    generator = torch.Generator(device=device).manual_seed(1)
    ids, targets = (
        torch.randint(0, model.config.vocab_size, rows, device=device, generator=generator) for _ in range(2)
    )
    if compiled:
        torch.compiler.reset()

    def compute(ids: Tensor, targets: Tensor) -> Tensor:
        return loss(model, ids, targets)

    call = torch.compile(compute, dynamic=False) if compiled else compute

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        with te.context(recipe, device):
            summed = call(ids, targets)
        summed.backward()
        return summed.detach()

    try:
        mean = step().item() / rows.numel()
        ms = median_ms(step, device, warmup=2, repeats=repeats)
        model.zero_grad(set_to_none=True)
        return {"ms": ms, "peak_gib": peak_gib(step, device), "loss": mean}
    except torch.OutOfMemoryError:
        return {"ms": None, "peak_gib": None, "loss": None}
    finally:
        model.zero_grad(set_to_none=True)


def measure(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """The whole result: the limits, and both losses under each recipe."""
    compiled = args.compile == "on" or (args.compile == "auto" and device.type == "cuda")
    limits = ceilings(device)
    flops = 6 * args.rows * args.width * args.vocab
    results, refused = [], {}
    for name in args.recipes.split(","):
        try:
            model = build(args, name, device)
        except UserError as error:
            refused[name] = str(error)
            continue
        ceiling = ceiling_of(name, limits)
        gradient_bytes = 1 if number_format(name) == "fp8" else 2
        floor = (
            floor_ms(args.rows, args.width, args.vocab, ceiling, limits["copy_gbps"], gradient_bytes)
            if ceiling
            else None
        )
        for kind, loss in (("model", loss_sum), ("float32 logits", naive_loss)):
            found = measure_one(loss, model, name, compiled, args.repeats, device)
            rate = flops / found["ms"] / 1e9 if found["ms"] else None
            share = floor / found["ms"] if floor and found["ms"] else None
            results.append(
                {"recipe": name, "loss_of": kind, **found, "tflops": rate, "floor_ms": floor, "floor_share": share}
            )
        del model
    sizes = {"rows": args.rows, "width": args.width, "vocab": args.vocab, "compiled": compiled}
    return header("loss", device) | limits | sizes | {"refused": refused, "results": results}


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    report(measure(args, first_device()), args.json)


if __name__ == "__main__":
    run_main(main)
