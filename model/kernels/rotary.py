"""From the fused projection to queries, keys and values: RoPE and QK-norm in one pass each way.

A rotation changes no length, so norm(rotate(x)) is rotate(x) times the row's 1/RMS: backward needs what came out, which
attention keeps anyway, and one number a head; what went in need not be kept.
"""

import torch
from torch import Tensor

EPSILON = 2.0**-23  # as in model.gpt


@torch.library.custom_op("tandem::rotary", mutates_args=())
def rotary(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """qkv (B, T, H + 2 H_kv, D) in bf16, contiguous; cos and sin (T, D/2) float32; H query heads ->
    q (B, T, H, D) and k (B, T, H_kv, D) rotated and normed, v (B, T, H_kv, D), and 1/RMS (B, T, H + H_kv) float32."""
    q, k, v, inverse = _outputs(qkv, heads)
    if qkv.is_cuda:
        from model.kernels.rotary_triton import launch_forward

        launch_forward(qkv, cos, sin, q, k, v, inverse, EPSILON)
        return q, k, v, inverse
    x = qkv[:, :, : inverse.shape[2]].float()
    inverse = (x.square().mean(dim=-1) + EPSILON).rsqrt()
    y = _turn(x, cos, sin) * inverse[..., None]
    q.copy_(y[:, :, :heads])
    k.copy_(y[:, :, heads:])
    v.copy_(qkv[:, :, inverse.shape[2] :])
    return q, k, v, inverse


@rotary.register_fake
def _(qkv, cos, sin, heads):
    return _outputs(qkv, heads)


@torch.library.custom_op("tandem::rotary_backward", mutates_args=())
def rotary_backward(
    dq: Tensor, dk: Tensor, dv: Tensor, q: Tensor, k: Tensor, inverse: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    """The gradient by qkv (B, T, H + 2 H_kv, D) of the gradients by q, k and v; the rest as `rotary` gave it."""
    batch, length, heads, dim = q.shape
    kv_heads = k.shape[2]
    if q.is_cuda:
        from model.kernels.rotary_triton import launch_backward

        out = torch.empty(batch, length, heads + 2 * kv_heads, dim, dtype=q.dtype, device=q.device)
        launch_backward(dq, dk, dv, q, k, inverse, cos, sin, out)
        return out
    y, dy = torch.cat((q, k), dim=2).float(), torch.cat((dq, dk), dim=2).float()
    turned = (dy - y * (y * dy).mean(dim=-1, keepdim=True)) * inverse[..., None]
    return torch.cat((_turn(turned, cos, -sin).to(q.dtype), dv), dim=2)


@rotary_backward.register_fake
def _(dq, dk, dv, q, k, inverse, cos, sin):
    batch, length, heads, dim = q.shape
    return q.new_empty(batch, length, heads + 2 * k.shape[2], dim)


def _outputs(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length, total, dim = qkv.shape
    kv_heads = (total - heads) // 2
    q = qkv.new_empty(batch, length, heads, dim)
    k, v = (qkv.new_empty(batch, length, kv_heads, dim) for _ in range(2))
    return q, k, v, qkv.new_empty(batch, length, heads + kv_heads, dtype=torch.float32)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def _keep(ctx, inputs, output):
    _, cos, sin, _ = inputs
    q, k, _, inverse = output
    ctx.save_for_backward(q, k, inverse, cos, sin)


def _backward(ctx, dq, dk, dv, _inverse):
    q, k, inverse, cos, sin = ctx.saved_tensors
    return rotary_backward(dq, dk, dv, q, k, inverse, cos, sin), None, None, None


rotary.register_autograd(_backward, setup_context=_keep)
