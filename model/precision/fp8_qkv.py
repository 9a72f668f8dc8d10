"""The projection to queries, keys and values in fp8, with the rotation and norms behind it: their backward pass rounds
the gradient to fp8, in both layouts, as it is computed."""

import torch
from torch import Tensor, nn

from model.kernels.quantize import E4M3, to_fp8, transpose
from model.kernels.rotary import rotary
from model.kernels.rotary_fp8 import rotary_backward_fp8
from model.linear import Linear
from model.precision.fp8 import scaled_product


class _Projection(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, rows, columns, scales, cos, sin, heads):
        """x (B, T, C) bf16; weight (K, C), for its gradient alone; rows, columns and scales as in Fp8."""
        scale, unscale, backward, gradient, gradient_scale, one = scales
        batch, length, width = x.shape
        x8 = to_fp8(x.view(-1, width), scale, E4M3)
        qkv = scaled_product(x8, rows, unscale, one, torch.bfloat16, fast=True)
        q, k, v, inverse = rotary(qkv.view(batch, length, -1, 2 * cos.shape[-1]), cos, sin, heads)
        ctx.save_for_backward(transpose(x8), columns, backward, gradient, gradient_scale, one, q, k, inverse, cos, sin)
        return q, k, v

    @staticmethod
    def backward(ctx, dq, dk, dv):
        x_columns, columns, backward, gradient, gradient_scale, one, *rest = ctx.saved_tensors
        dy8, dy_columns = rotary_backward_fp8(dq, dk, dv, *rest, gradient_scale)
        dx = scaled_product(dy8, columns, backward, one, torch.bfloat16, fast=False)
        dw = scaled_product(dy_columns, x_columns, gradient, one, torch.float32, fast=False)
        return dx.view(*dq.shape[:2], -1), dw, None, None, None, None, None, None


class Fp8Projection(nn.Module):
    """From a block's normed input to queries, keys and values."""

    def forward(self, x: Tensor, qkv: Linear, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, C) bf16, cos and sin (T, D/2); the format of qkv is Fp8 -> as gpt.queries_keys_values."""
        form = qkv.format
        return _Projection.apply(x, qkv.weight, form.rows, form.columns, form.scales, cos, sin, heads)
