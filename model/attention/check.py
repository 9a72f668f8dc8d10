"""Whether a backend can be trusted on this device: one small forward and backward, held against the reference.

A package that imports proves nothing: kernels have died at their first call, or in the backward pass alone.
"""

import torch
from torch import Tensor

from model.attention.protocol import Attend, Backend, Request, one_line, reference

BATCH, LENGTH, WINDOW = 2, 512, 128  # several tiles of any kernel along queries and keys, and tiles a window skips
# Of the reference's norm. bf16 arithmetic is 2e-3 to 4e-3 off, a window of 128 that misses or adds a key 5e-2 to 1e-1.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}


def check(backend: Backend, request: Request) -> str | None:
    """What is wrong with the backend on the request's device, as text, or None.

    Runs it once with full attention and, if the request has windows, once with a window; backward too, if training.
    """
    try:
        for window in (LENGTH, WINDOW) if request.windowed else (LENGTH,):
            found, expected = (_run(attend, request, window) for attend in (backend.attend, reference))
            if problem := _difference(found, expected, TOLERANCE[request.dtype]):
                span = f"a window of {window}" if window < LENGTH else "full attention"
                return f"is wrong on this device with {span}: {problem}"
    except Exception as error:  # whatever it raises, another backend may still work
        return f"fails on this device: {one_line(error)}"
    return None


def _run(attend: Attend, request: Request, window: int) -> dict[str, Tensor]:
    """Output and gradients, by name, on inputs that are views into one fused QKV tensor, as the model's are."""
    heads, kv_heads = (2 * request.groups, 2) if request.grouped else (2, 2)
    sizes = [heads, kv_heads, kv_heads]
    generator = torch.Generator(device="cpu").manual_seed(0)

    def random(count: int) -> Tensor:
        values = torch.randn(BATCH, LENGTH, count, request.head_dim, generator=generator)
        return values.to(request.device, request.dtype)

    qkv, gradient = random(sum(sizes)).requires_grad_(request.training), random(heads)
    with torch.set_grad_enabled(request.training):
        out = attend(*qkv.split(sizes, dim=2), window)
    results = {"output": out.detach()}
    if request.training:
        out.backward(gradient)
        results |= zip(("dq", "dk", "dv"), qkv.grad.split(sizes, dim=2), strict=True)
    return results


def _difference(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> str | None:
    """The first result that is off by more than the tolerance, or None."""
    for name, right in expected.items():
        error = ((found[name].float() - right.float()).norm() / right.float().norm()).item()
        if not error <= tolerance:  # true of NaN too
            return f"{name} is off by {error:.1e} of the reference, {tolerance:.0e} allowed"
    return None
