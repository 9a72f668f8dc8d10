"""How long an update's end takes: Muon, AdamW, and the casts of the new weights, part by part.

    python -m bench.optimizer --json --depth 20

Muon's FLOPs are those of its matrix products as written, the symmetry of some not used. Bytes are those that can't be
avoided: each weight and each number of the state read and written once, each gradient read once.
"""

import argparse
from typing import Any

import torch

from bench import step
from bench.timing import ceiling_of, ceilings, first_device, header, median_ms, report
from config.errors import run_main
from hardware.limits import normal
from model.gpt import GPT
from model.linear import formatted, refresh
from training.optim.muon import POLAR_EXPRESS
from training.optim.optimizer import Group, Optimizer


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--vocab", type=int, default=32_768)
    parser.add_argument("--precision", default="auto", help="the recipe whose casts follow the step")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--compile", default="auto", choices=["auto", "on", "off"])
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def parameters(group: Group) -> int:
    """How many numbers a group steps."""
    return sum(piece.of(piece.parameter).numel() for piece in group.pieces)


def flops(group: Group) -> int:
    """Of the matrix products of a group's step: x xᵀ, its square, and the product of both with x, five times."""
    if group.kind != "muon":
        return 0
    sizes = group.pieces[0].of(group.pieces[0].parameter).shape
    short, long = min(sizes), max(sizes)
    return len(group.pieces) * len(POLAR_EXPRESS) * (4 * short * short * long + 2 * short**3)


def traffic(group: Group) -> int:
    """Bytes that a group's step can't avoid on one rank."""
    weights = parameters(group) * group.pieces[0].parameter.element_size()
    state = sum(tensor.nbytes for tensor in group.state.values())
    return 2 * weights + weights + 2 * state


def floor_ms(groups: list[Group], ceiling: float | None, gbps: float) -> float | None:
    """The products at the ceiling (TFLOP/s), then the bytes at the copy's bandwidth (GB/s)."""
    work = sum(map(flops, groups))
    if work and ceiling is None:
        return None
    return (work / ceiling / 1e9 if work else 0.0) + sum(map(traffic, groups)) / gbps / 1e6


def cast_bytes(model: GPT) -> int:
    """Read by the formats' casts after an update, and written: float32 weights, and what is kept of them."""
    modules = formatted(model).values()
    return sum(
        module.weight.nbytes + sum(buffer.nbytes for buffer in module.format.buffers() if buffer.ndim)
        for module in modules
    )


def build(args: argparse.Namespace) -> tuple[GPT, Optimizer]:
    """A GPT with random gradients, and its optimizer, as training assembles them."""
    options = ["--depth", args.depth, "--vocab", args.vocab, "--precision", args.precision, "--compile", args.compile]
    parts = step.build(step.arguments([*map(str, options), "--micro-batch", "1"])).parts
    for seed, parameter in enumerate(parts.model.parameters()):
        parameter.grad = normal(tuple(parameter.shape), torch.float32, parameter.device, 1e-3, seed)
    return parts.model, parts.optimizer


def measure(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """The whole result: the limits, the whole step, and each group of parameters by itself."""
    model, optimizer = build(args)
    limits = ceilings(device)
    ceiling = ceiling_of("bf16" if optimizer.dtype == torch.bfloat16 else "fp32", limits)
    gbps = limits["copy_gbps"]

    def timed() -> float:
        return median_ms(lambda: optimizer.step(1.0), device, warmup=3, repeats=args.repeats)

    everything = optimizer.groups
    whole = timed()
    parts = []
    for group in everything:
        optimizer.groups = [group]
        parts.append(
            {
                "part": group.name,
                "kind": group.kind,
                "count": len(group.pieces),
                "parameters": parameters(group),
                "ms": timed(),
                "floor_ms": floor_ms([group], ceiling, gbps),
                "gflops": flops(group) / 1e9,
                "mib": traffic(group) / 2**20,
            }
        )
    optimizer.groups = everything
    casts = median_ms(lambda: refresh(model), device, warmup=3, repeats=args.repeats)
    result = header("optimizer", device) | limits
    return result | {
        "depth": args.depth,
        "parameters": sum(map(parameters, everything)),
        "ms": whole,
        "floor_ms": floor_ms(everything, ceiling, gbps),
        "tflops": sum(map(flops, everything)) / whole / 1e9,
        "muon_ms": sum(part["ms"] for part in parts if part["kind"] == "muon"),
        "adamw_ms": sum(part["ms"] for part in parts if part["kind"] == "adamw"),
        "casts_ms": casts,
        "casts_floor_ms": cast_bytes(model) / gbps / 1e6,
        "state_gib": sum(tensor.nbytes for group in everything for tensor in group.state.values()) / 2**30,
        "parts": parts,
    }


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    report(measure(args, first_device()), args.json)


if __name__ == "__main__":
    run_main(main)
