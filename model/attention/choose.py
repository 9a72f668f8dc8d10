"""Which attention a run uses: chosen once, at start, by trying it on this device; the reason is printed."""

from dataclasses import dataclass

import torch

from config.errors import UserError
from model.attention.backends import BACKENDS, Attend, Backend, Request, reference

# In the order they are tried: fastest first where each was measured; sdpa serves everything without a window.
ORDER = {"cuda": ("varlen", "flex", "sdpa"), "cpu": ("matmul", "sdpa")}


@dataclass(frozen=True)
class Choice:
    """The backend that a run uses, and why; `rejected` holds (name, reason) of those that came before it."""

    name: str
    attend: Attend
    reason: str
    rejected: tuple[tuple[str, str], ...]


def choose(wanted: str, request: Request) -> Choice:
    """The backend named by `wanted`, or for `auto` the first of this device's order that agrees with the reference.

    Raises UserError when the named one refuses or fails its check, or when none is left.
    """
    names = ORDER.get(request.device.type, ("sdpa",)) if wanted == "auto" else (wanted,)
    rejected: list[tuple[str, str]] = []
    for name in names:
        backend = BACKENDS[name]
        problem = backend.refuses(request) or check(backend, request)
        if problem is None:
            reason = "named by the profile" if wanted != "auto" else f"first that works on {request.architecture}"
            return Choice(name, backend.attend, f"{reason}, checked forward and backward", tuple(rejected))
        rejected.append((name, problem))
    reasons = "; ".join(f"{name} {why}" for name, why in rejected)
    raise UserError(f"no attention backend serves this run on {request.architecture}: {reasons}")


def check(backend: Backend, request: Request) -> str | None:
    """Run one small forward and backward and compare with the reference; the failure as text, or None.

    A package that imports proves nothing: kernels have died at their first call, or in the backward pass alone.
    """
    length, window = 256, 100 if request.windowed else 256
    heads, kv_heads = (4, 2) if request.grouped else (2, 2)
    generator = torch.Generator(device="cpu").manual_seed(0)
    shapes = [(2, length, count, request.head_dim) for count in (heads, kv_heads, kv_heads, heads)]
    q, k, v, gradient = (torch.randn(s, generator=generator).to(request.device, request.dtype) for s in shapes)
    tolerance = 1e-4 if request.dtype == torch.float32 else 2e-2

    def run(attend: Attend) -> list[torch.Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        out = attend(*leaves, window)
        out.backward(gradient)
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    try:
        pairs = zip(("output", "dq", "dk", "dv"), run(backend.attend), run(reference), strict=True)
        for name, found, expected in pairs:
            error = ((found.float() - expected.float()).norm() / expected.float().norm()).item()
            if not error <= tolerance:
                return (
                    f"is wrong on this device: {name} is off by {error:.1e} of the reference, {tolerance:.0e} allowed"
                )
    except Exception as error:
        return f"fails on this device: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None
