"""How fast each attention backend is, forward alone and with backward, full causal and with a sliding window.

    python -m bench.attention --json --batch 32 --heads 10 --seq 2048 --head-dim 128 --window 512 --backends fa4,flex

Only pairs of positions that are attended count: 4 FLOPs a pair, head and head dimension forward, 10 backward. q and k
are contiguous, as after their norm; v is a view into the fused QKV tensor, as in the model.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.floor import attended_pairs
from bench.timing import ceilings, first_device, header, median_ms, report
from config.errors import UserError, run_main
from hardware.limits import normal
from model.attention.backends import BACKENDS, Request
from model.attention.check import check

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DEFAULTS = {  # by the kind of device
    "cuda": {"batch": 32, "heads": 10, "seq": 2048, "head_dim": 128, "window": 512, "dtype": "bf16"},
    "cpu": {"batch": 2, "heads": 2, "seq": 256, "head_dim": 32, "window": 64, "dtype": "fp32"},
}


@dataclass(frozen=True)
class Shape:
    """What is attended: B, T, H, H_kv, D, and the window (T: all)."""

    batch: int
    seq: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    dtype: torch.dtype

    @property
    def flops(self) -> tuple[int, int]:
        """(forward, forward and backward)."""
        product = 2 * self.head_dim * self.batch * self.heads * attended_pairs(self.seq, self.window)
        return 2 * product, 7 * product

    @property
    def traffic(self) -> int:
        """Bytes of forward and backward at least. Forward reads q, k, v and writes out; backward reads these four and
        out's gradient, and writes three gradients."""
        queries, keys = (self.batch * self.seq * heads * self.head_dim for heads in (self.heads, self.kv_heads))
        return (6 * queries + 6 * keys) * self.dtype.itemsize

    def inputs(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v, each a leaf that wants a gradient, and a gradient of the output."""
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = normal((self.batch, self.seq, sum(sizes), self.head_dim), self.dtype, device).split(sizes, dim=2)
        q, k, v = (x.detach().requires_grad_() for x in (q.contiguous(), k.contiguous(), v))
        return q, k, v, normal(tuple(q.shape), self.dtype, device, seed=1)


def arguments(device: torch.device, argv: list[str] | None = None) -> argparse.Namespace:
    """Raises UserError for backends and sizes that there can't be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    defaults = DEFAULTS[device.type]
    for name in ("batch", "heads", "seq", "head_dim", "window"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=defaults[name])
    parser.add_argument("--kv-heads", type=int, help="fewer than --heads: grouped heads")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default=defaults["dtype"])
    parser.add_argument("--backends", default=",".join(BACKENDS), help="names, separated by commas")
    parser.add_argument("--compile", action="store_true", help="each backend inside a compiled graph")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    args.kv_heads = args.kv_heads or args.heads
    if unknown := set(args.backends.split(",")) - set(BACKENDS):
        raise UserError(f"--backends has {', '.join(sorted(unknown))}; expected some of {', '.join(BACKENDS)}")
    if args.heads % args.kv_heads:
        raise UserError(f"{args.heads} heads cannot share {args.kv_heads} key-value heads evenly")
    return args


def refusal(name: str, shape: Shape, device: torch.device, compiled: bool) -> str | None:
    """Why a backend can't be timed here, wrong numbers included, or None."""
    request = Request(
        device=device,
        dtype=shape.dtype,
        head_dim=shape.head_dim,
        grouped=shape.kv_heads != shape.heads,
        windowed=shape.window < shape.seq,
        compiled=compiled,
        groups=shape.heads // shape.kv_heads,
    )
    return BACKENDS[name].refuses(request) or check(BACKENDS[name], request)


def measure(name: str, shape: Shape, device: torch.device, compiled: bool, repeats: int) -> dict[str, float]:
    """Milliseconds and TFLOP/s, forward (`forward_…`) and forward with backward."""
    attend = BACKENDS[name].attend
    if compiled:
        torch.compiler.reset()  # each is one more graph of the same code, of which torch keeps a few only
        attend = torch.compile(attend, dynamic=False, fullgraph=True)
    q, k, v, gradient = shape.inputs(device)

    @torch.no_grad()
    def forward() -> None:
        attend(q, k, v, shape.window)

    def both() -> None:
        torch.autograd.grad(attend(q, k, v, shape.window), (q, k, v), gradient)

    forward_ms, ms = (median_ms(call, device, repeats=repeats) for call in (forward, both))
    forward_flops, flops = shape.flops
    return {
        "forward_ms": forward_ms,
        "forward_tflops": forward_flops / forward_ms / 1e9,
        "ms": ms,
        "tflops": flops / ms / 1e9,
    }


def floor_ms(shape: Shape, ceiling: float, gbps: float) -> float:
    """Forward and backward at the ceiling, or their least traffic at the bandwidth: whichever is longer."""
    return max(shape.flops[1] / ceiling / 1e9, shape.traffic / gbps / 1e6)


def run(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    limits = ceilings(device)
    ceiling = limits[f"ceiling_{'fp32' if args.dtype == 'fp32' else 'bf16'}_tflops"]
    rows, refused = [], []
    for window in sorted({args.seq, min(args.window, args.seq)}, reverse=True):
        shape = Shape(args.batch, args.seq, args.heads, args.kv_heads, args.head_dim, window, DTYPES[args.dtype])
        for name in args.backends.split(","):
            row = {"backend": name, "window": window}
            if reason := refusal(name, shape, device, args.compile):
                refused.append(row | {"reason": reason})
                continue
            row |= measure(name, shape, device, args.compile, args.repeats)
            row["share_of_ceiling"] = row["tflops"] / ceiling
            row["floor_ms"] = floor_ms(shape, ceiling, limits["copy_gbps"])
            rows.append(row)
    asked = ("batch", "seq", "heads", "kv_heads", "head_dim", "dtype", "compile")
    shape = {name: getattr(args, name) for name in asked}
    return header("attention", device) | shape | limits | {"rows": rows, "refused": refused}


def main(argv: list[str] | None = None) -> None:
    device = first_device()
    args = arguments(device, argv)
    report(run(args, device), args.json)


if __name__ == "__main__":
    run_main(main)
