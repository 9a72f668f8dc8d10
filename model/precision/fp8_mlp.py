"""The MLP in fp8: both products and the ReLU² between them as one, so that nothing is rounded in a pass of its own."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.kernels import mlp_fp8
from model.kernels.quantize import E4M3, E5M2, relu2_backward, to_fp8, transpose
from model.linear import Linear
from model.precision.fp8 import scaled_product


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, up_weight, down_weight, up, down, epilogues):
        """x (M, C) bf16; up and down: rows, columns and scales of the two products."""
        up_rows, up_columns, (scale, forward, *up_rest) = up
        down_rows, down_columns, (a_scale, down_forward, *down_rest) = down
        x8 = to_fp8(x, scale, E4M3)
        if epilogues:
            a8 = mlp_fp8.up(x8, up_rows, forward * a_scale.sqrt())
        else:
            h = scaled_product(x8, up_rows, forward, up_rest[-1], torch.bfloat16, fast=True)
            a8 = to_fp8(F.relu(h.float()).square(), a_scale, E4M3)
        ctx.epilogues = epilogues
        ctx.save_for_backward(transpose(x8), a8, a_scale, up_columns, down_columns, *up_rest, *down_rest)
        return scaled_product(a8, down_rows, down_forward, up_rest[-1], torch.bfloat16, fast=True)

    @staticmethod
    def backward(ctx, dy):
        x_columns, a8, a_scale, up_columns, down_columns, *scales = ctx.saved_tensors
        up_backward, up_gradient, gradient_scale, one, down_backward, down_gradient, *_ = scales
        dy8 = to_fp8(dy, gradient_scale, E5M2)
        if ctx.epilogues:
            slope = 2 * down_backward * gradient_scale / a_scale.sqrt()  # of ReLU² by √a8, and all scales
            dh8, dh_columns, a_columns = mlp_fp8.down_backward(dy8, down_columns, a8, slope)
        else:
            da = scaled_product(dy8, down_columns, down_backward, one, torch.bfloat16, fast=False)
            dh8, dh_columns, a_columns = relu2_backward(da, a8, 1 / a_scale, gradient_scale)
        d_down = scaled_product(transpose(dy8), a_columns, down_gradient, one, torch.float32, fast=False)
        d_up = scaled_product(dh_columns, x_columns, up_gradient, one, torch.float32, fast=False)
        dx = scaled_product(dh8, up_columns, up_backward, one, torch.bfloat16, fast=False)
        return dx, d_up, d_down, None, None, None


class Fp8Mlp(nn.Module):
    """Both products of an MLP and the ReLU² between them: its derivative is rounded to fp8, in both layouts, as it is
    computed."""

    def __init__(self, epilogues: bool = False) -> None:
        """`epilogues`: all between the products within the products' kernels, see model.kernels.mlp_fp8."""
        super().__init__()
        self.epilogues = epilogues

    def forward(self, x: Tensor, up: Linear, down: Linear) -> Tensor:
        """x (…, C) normed, bf16; the formats of up and down are Fp8."""
        flat = x.flatten(0, -2)
        parts = [(linear.format.rows, linear.format.columns, linear.format.scales) for linear in (up, down)]
        return _Mlp.apply(flat, up.weight, down.weight, *parts, self.epilogues).view(x.shape)
