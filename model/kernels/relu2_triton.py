"""The kernel behind model.kernels.relu2; imports Triton, so it is imported on a GPU alone."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4096, 8


@triton.jit
def _relu2_backward(gradient, h, d_h, a, count, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    inside = base + at < count
    positive = tl.maximum(tl.load(h + base + at, mask=inside, other=0.0).to(tl.float32), 0.0)
    value = tl.load(gradient + base + at, mask=inside, other=0.0).to(tl.float32) * 2 * positive
    tl.store(d_h + base + at, value.to(d_h.dtype.element_ty), mask=inside)
    tl.store(a + base + at, (positive * positive).to(a.dtype.element_ty), mask=inside)


def launch(gradient: Tensor, h: Tensor, d_h: Tensor, a: Tensor) -> None:
    """Fill d_h and a, both like h."""
    _relu2_backward[(triton.cdiv(h.numel(), BLOCK),)](gradient, h, d_h, a, h.numel(), BLOCK, num_warps=WARPS)
