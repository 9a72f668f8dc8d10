"""The kernel behind model.kernels.transpose; imports Triton, so it is imported on a GPU alone."""

import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 128, 128


@triton.jit
def _transpose(x, out, m, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row[:, None] < m) & (column[None, :] < n)
    tile = tl.load(x + row[:, None].to(tl.int64) * n + column[None, :], mask=inside)
    tl.store(out + column[:, None].to(tl.int64) * m + row[None, :], tl.trans(tile), mask=tl.trans(inside))


def launch(x: Tensor, out: Tensor) -> None:
    """Write xᵀ into out; both uint8 and contiguous."""
    m, n = x.shape
    _transpose[(triton.cdiv(m, ROWS), triton.cdiv(n, COLUMNS))](x, out, m, n, ROWS, COLUMNS, num_warps=8)
