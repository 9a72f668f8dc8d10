"""The kernels behind model.kernels.quantize; imports Triton, so it is imported on a GPU alone.

All go through the matrix in tiles: read along its rows, written along its rows and, transposed, along its columns.
Transposed as bf16 first and rounded to 8 bits then: what was rounded in the kernel and transposed after came out wrong
on an H200 (Triton 3.6), unlike bytes that were loaded so.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, WARPS = 64, 128, 8  # a tile; transposed, its rows have 64 bytes, two whole sectors


@triton.jit
def _tile(m, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where this program's tile begins, and offsets and mask within it (32 bits: they fill registers)."""
    row = tl.program_id(1) * ROWS
    column = tl.program_id(0) * COLUMNS
    i = tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, COLUMNS)[None, :]
    return row.to(tl.int64) * n + column, i * n + j, (row + i < m) & (column + j < n)


@triton.jit
def _flipped(m, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The same of its place in the transposed matrix."""
    row = tl.program_id(1) * ROWS
    column = tl.program_id(0) * COLUMNS
    i = tl.arange(0, ROWS)[None, :]
    j = tl.arange(0, COLUMNS)[:, None]
    return column.to(tl.int64) * m + row, j * m + i, (row + i < m) & (column + j < n)


@triton.jit
def _rounded(x, scale, LARGEST: tl.constexpr):
    return tl.minimum(tl.maximum(x.to(tl.float32) * scale, -LARGEST), LARGEST)


@triton.jit
def _quantize(x, scale, rows, columns, m, n, LARGEST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    base, at, inside = _tile(m, n, ROWS, COLUMNS)
    flipped_base, flipped, inside_flipped = _flipped(m, n, ROWS, COLUMNS)
    factor = tl.load(scale)
    value = tl.load(x + base + at, mask=inside, other=0.0).to(tl.bfloat16)
    tl.store(rows + base + at, _rounded(value, factor, LARGEST).to(rows.dtype.element_ty), mask=inside)
    value = _rounded(tl.trans(value), factor, LARGEST)
    tl.store(columns + flipped_base + flipped, value.to(columns.dtype.element_ty), mask=inside_flipped)


@triton.jit
def _quantize_relu2_backward(
    gradient, a8, unscale, gradient_scale, rows, columns, a_columns, m, n,
    LARGEST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    base, at, inside = _tile(m, n, ROWS, COLUMNS)
    flipped_base, flipped, inside_flipped = _flipped(m, n, ROWS, COLUMNS)
    factor = tl.load(gradient_scale)
    a = tl.load(a8 + base + at, mask=inside, other=0.0)
    slope = 2 * tl.sqrt(a.to(tl.float32) * tl.load(unscale))
    value = tl.load(gradient + base + at, mask=inside, other=0.0).to(tl.float32) * slope
    value = value.to(tl.bfloat16)
    tl.store(rows + base + at, _rounded(value, factor, LARGEST).to(rows.dtype.element_ty), mask=inside)
    value = _rounded(tl.trans(value), factor, LARGEST)
    tl.store(columns + flipped_base + flipped, value.to(columns.dtype.element_ty), mask=inside_flipped)
    tl.store(a_columns + flipped_base + flipped, tl.trans(a.to(tl.uint8, bitcast=True)), mask=inside_flipped)


@triton.jit
def _transpose(x, out, m, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    base, at, inside = _tile(m, n, ROWS, COLUMNS)
    flipped_base, flipped, inside_flipped = _flipped(m, n, ROWS, COLUMNS)
    tl.store(out + flipped_base + flipped, tl.trans(tl.load(x + base + at, mask=inside)), mask=inside_flipped)


def _grid(x: Tensor) -> tuple[int, int]:
    m, n = x.shape
    return triton.cdiv(n, COLUMNS), triton.cdiv(m, ROWS)


def launch(x: Tensor, scale: Tensor, rows: Tensor, columns: Tensor, largest: float) -> None:
    """Fill rows (M, N) and columns (N, M); see model.kernels.quantize.quantize."""
    _quantize[_grid(x)](x, scale, rows, columns, *x.shape, largest, ROWS, COLUMNS, num_warps=WARPS)


def launch_relu2_backward(
    gradient: Tensor,
    a8: Tensor,
    unscale: Tensor,
    gradient_scale: Tensor,
    rows: Tensor,
    columns: Tensor,
    a_columns: Tensor,
    largest: float,
) -> None:
    """Fill rows (M, N), columns and a_columns (N, M); see model.kernels.quantize.relu2_backward."""
    _quantize_relu2_backward[_grid(a8)](
        gradient, a8, unscale, gradient_scale, rows, columns, a_columns.view(torch.uint8), *a8.shape, largest,
        ROWS, COLUMNS, num_warps=WARPS,
    )  # fmt: skip


def launch_transpose(x: Tensor, out: Tensor) -> None:
    """Write xᵀ into out; both uint8 and contiguous."""
    _transpose[_grid(x)](x, out, *x.shape, ROWS, COLUMNS, num_warps=WARPS)
