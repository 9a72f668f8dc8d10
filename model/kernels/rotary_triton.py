"""The kernels behind model.kernels.rotary; imports Triton, so it is imported on a GPU alone. A program takes some
tokens of one head; the heads of a token lie side by side, so what it reads and writes is whole rows of D."""

import triton
import triton.language as tl
from torch import Tensor

TOKENS, WARPS = 32, 4
TOKENS_FP8, WARPS_FP8 = 64, 8  # transposed, rows of 64 bytes: two whole sectors


@triton.jit
def _forward(
    qkv, cos, sin, q, k, v, inverse, tokens, length, H: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr,
    EPSILON: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    start = tl.program_id(1) * TOKENS
    token = tl.arange(0, TOKENS)
    at = tl.arange(0, HALF)
    inside = (start + token < tokens)[:, None]
    D: tl.constexpr = 2 * HALF
    first_token = start.to(tl.int64)
    source = qkv + (first_token * (H + 2 * KV) + head) * D + token[:, None] * ((H + 2 * KV) * D) + at[None, :]
    first = tl.load(source, mask=inside, other=0.0)
    second = tl.load(source + HALF, mask=inside, other=0.0)
    if head >= H + KV:
        out = v + (first_token * KV + head - H - KV) * D + token[:, None] * (KV * D) + at[None, :]
        tl.store(out, first, mask=inside)
        tl.store(out + HALF, second, mask=inside)
    else:
        angle = ((start + token) % length)[:, None] * HALF + at[None, :]
        c = tl.load(cos + angle, mask=inside, other=0.0)
        s = tl.load(sin + angle, mask=inside, other=0.0)
        x1 = first.to(tl.float32)
        x2 = second.to(tl.float32)
        r = tl.rsqrt(tl.sum(x1 * x1 + x2 * x2, axis=1) / D + EPSILON)
        tl.store(inverse + first_token * (H + KV) + head + token * (H + KV), r, mask=start + token < tokens)
        if head < H:
            out = q + (first_token * H + head) * D + token[:, None] * (H * D) + at[None, :]
        else:
            out = k + (first_token * KV + head - H) * D + token[:, None] * (KV * D) + at[None, :]
        y1 = (x1 * c - x2 * s) * r[:, None]
        y2 = (x1 * s + x2 * c) * r[:, None]
        tl.store(out, y1.to(q.dtype.element_ty), mask=inside)
        tl.store(out + HALF, y2.to(q.dtype.element_ty), mask=inside)


@triton.jit
def _gradient(
    dq, dk, dv, q, k, inverse, cos, sin, tokens, length, H: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    """The gradient by this program's head of some tokens, in halves (TOKENS, HALF), float32."""
    head = tl.program_id(0)
    start = tl.program_id(1) * TOKENS
    token = tl.arange(0, TOKENS)
    at = tl.arange(0, HALF)
    inside = (start + token < tokens)[:, None]
    D: tl.constexpr = 2 * HALF
    first_token = start.to(tl.int64)
    if head >= H + KV:
        source = dv + (first_token * KV + head - H - KV) * D + token[:, None] * (KV * D) + at[None, :]
        first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    else:
        if head < H:
            base = (first_token * H + head) * D
            offsets = token[:, None] * (H * D) + at[None, :]
            y, dy = q + base + offsets, dq + base + offsets
        else:
            base = (first_token * KV + head - H) * D
            offsets = token[:, None] * (KV * D) + at[None, :]
            y, dy = k + base + offsets, dk + base + offsets
        y1 = tl.load(y, mask=inside, other=0.0).to(tl.float32)
        y2 = tl.load(y + HALF, mask=inside, other=0.0).to(tl.float32)
        g1 = tl.load(dy, mask=inside, other=0.0).to(tl.float32)
        g2 = tl.load(dy + HALF, mask=inside, other=0.0).to(tl.float32)
        r = tl.load(inverse + first_token * (H + KV) + head + token * (H + KV), mask=start + token < tokens, other=0.0)
        r = r[:, None]
        mean = (tl.sum(y1 * g1 + y2 * g2, axis=1) / D)[:, None]
        g1 = (g1 - y1 * mean) * r
        g2 = (g2 - y2 * mean) * r
        angle = ((start + token) % length)[:, None] * HALF + at[None, :]
        c = tl.load(cos + angle, mask=inside, other=0.0)
        s = tl.load(sin + angle, mask=inside, other=0.0)
        first = g1 * c + g2 * s
        second = g2 * c - g1 * s
    return first, second


@triton.jit
def _backward(
    dq, dk, dv, q, k, inverse, cos, sin, out, tokens, length, H: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    first, second = _gradient(dq, dk, dv, q, k, inverse, cos, sin, tokens, length, H, KV, HALF, TOKENS)
    start = tl.program_id(1) * TOKENS
    token = tl.arange(0, TOKENS)[:, None]
    WIDTH: tl.constexpr = (H + 2 * KV) * 2 * HALF
    base = start.to(tl.int64) * WIDTH + tl.program_id(0) * 2 * HALF
    target = out + base + token * WIDTH + tl.arange(0, HALF)[None, :]
    tl.store(target, first.to(out.dtype.element_ty), mask=start + token < tokens)
    tl.store(target + HALF, second.to(out.dtype.element_ty), mask=start + token < tokens)


@triton.jit
def _rounded(x, scale, LARGEST: tl.constexpr):
    return tl.minimum(tl.maximum(x.to(tl.float32) * scale, -LARGEST), LARGEST)


@triton.jit
def _backward_fp8(
    dq, dk, dv, q, k, inverse, cos, sin, gradient_scale, rows, columns, tokens, length,
    H: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, LARGEST: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    first, second = _gradient(dq, dk, dv, q, k, inverse, cos, sin, tokens, length, H, KV, HALF, TOKENS)
    # Through bf16, as the gradient would be without this kernel, and transposed as bf16: see quantize_triton.
    first = first.to(tl.bfloat16)
    second = second.to(tl.bfloat16)
    scale = tl.load(gradient_scale)
    start = tl.program_id(1) * TOKENS
    at = tl.program_id(0) * 2 * HALF
    i = tl.arange(0, TOKENS)
    j = tl.arange(0, HALF)
    WIDTH: tl.constexpr = (H + 2 * KV) * 2 * HALF
    target = rows + start.to(tl.int64) * WIDTH + at + i[:, None] * WIDTH + j[None, :]
    inside = (start + i < tokens)[:, None]
    tl.store(target, _rounded(first, scale, LARGEST).to(rows.dtype.element_ty), mask=inside)
    tl.store(target + HALF, _rounded(second, scale, LARGEST).to(rows.dtype.element_ty), mask=inside)
    flipped = columns + at.to(tl.int64) * tokens + start + j[:, None] * tokens + i[None, :]
    inside = (start + i < tokens)[None, :]
    tl.store(flipped, _rounded(tl.trans(first), scale, LARGEST).to(columns.dtype.element_ty), mask=inside)
    flipped += HALF * tokens
    tl.store(flipped, _rounded(tl.trans(second), scale, LARGEST).to(columns.dtype.element_ty), mask=inside)


def launch_forward(
    qkv: Tensor, cos: Tensor, sin: Tensor, q: Tensor, k: Tensor, v: Tensor, inverse: Tensor, epsilon: float
) -> None:
    """Fill q, k, v and inverse; see model.kernels.rotary.rotary. D/2 has to be a power of two."""
    batch, length, heads, dim = q.shape
    kv_heads, tokens = k.shape[2], batch * length
    grid = (heads + 2 * kv_heads, triton.cdiv(tokens, TOKENS))
    _forward[grid](
        qkv, cos, sin, q, k, v, inverse, tokens, length, heads, kv_heads, dim // 2, epsilon, TOKENS, num_warps=WARPS
    )


def launch_backward(
    dq: Tensor, dk: Tensor, dv: Tensor, q: Tensor, k: Tensor, inverse: Tensor, cos: Tensor, sin: Tensor, out: Tensor
) -> None:
    """Fill out (B, T, H + 2 H_kv, D); see model.kernels.rotary.rotary_backward."""
    batch, length, heads, dim = q.shape
    kv_heads, tokens = k.shape[2], batch * length
    grid = (heads + 2 * kv_heads, triton.cdiv(tokens, TOKENS))
    dq, dk, dv = dq.contiguous(), dk.contiguous(), dv.contiguous()
    _backward[grid](
        dq, dk, dv, q, k, inverse, cos, sin, out, tokens, length, heads, kv_heads, dim // 2, TOKENS, num_warps=WARPS
    )


def launch_backward_fp8(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    q: Tensor,
    k: Tensor,
    inverse: Tensor,
    cos: Tensor,
    sin: Tensor,
    gradient_scale: Tensor,
    rows: Tensor,
    columns: Tensor,
    largest: float,
) -> None:
    """Fill rows (N, K) and columns (K, N); see model.kernels.rotary_fp8."""
    batch, length, heads, dim = q.shape
    kv_heads, tokens = k.shape[2], batch * length
    grid = (heads + 2 * kv_heads, triton.cdiv(tokens, TOKENS_FP8))
    dq, dk, dv = dq.contiguous(), dk.contiguous(), dv.contiguous()
    _backward_fp8[grid](
        dq, dk, dv, q, k, inverse, cos, sin, gradient_scale, rows, columns, tokens, length, heads, kv_heads, dim // 2,
        largest, TOKENS_FP8, num_warps=WARPS_FP8,
    )  # fmt: skip
