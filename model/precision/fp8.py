"""fp8: products of 8-bit floats with one scale a tensor, on torch._scaled_mm. E4M3 forward, E5M2 gradients
(arXiv 2209.05433), sums in float32.

No scale is found by looking at the tensor first, which would cost a pass over it, nor remembered from the last step,
which would be state to save. Each follows from a bound:

- weights: from their own largest entry, once an update;
- what RMSNorm puts out: no entry of a row of root mean square 1 exceeds √C;
- ReLU² of a product of that: |w·x| ≤ ‖w‖ √C, so its square is under C max‖w‖², taken at half that bound for |w·x|,
  which rows that are all but parallel to a weight alone exceed;
- gradients: the loss is a sum of tokens' losses, so a logit's gradient is at most 1. E5M2 has the exponents of fp16,
  for whose gradients one factor on the loss is enough (arXiv 1710.03740): GRADIENT_SCALE.

What exceeds its bound is cut off at the format's end. Scales are powers of two, so that scaling itself never rounds.
"""

from typing import Literal

import torch
from torch import Tensor

from model.kernels.transpose import transpose
from model.linear import Format

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
# Gradients of single tokens' losses lie between 1e-8 and 1: this puts them between 2^-14, the least normal number, and
# 57,344, with a factor of 14 to spare.
GRADIENT_SCALE = 2.0**12
VALUES_SCALE = 8.0  # of averaged values, which attention puts out: of the order of 1
# The factor on the input, and what turns the sums of the forward, the backward and the weight's product into values;
# each in a tensor of its own, since cuBLAS wants them aligned.
SCALES = ("input", "unscale_forward", "unscale_backward", "unscale_gradient", "one")
Bound = Literal["norm", "values", "relu2"]  # what a product's input is


def power_of_two_below(value: Tensor) -> Tensor:
    """The largest power of two that is at most `value` (float32, positive)."""
    mantissa, exponent = torch.frexp(value)  # value = mantissa × 2^exponent, mantissa in [0.5, 1)
    return torch.ldexp(torch.ones_like(mantissa), exponent - 1)


def quantize(x: Tensor, scale: Tensor | float, dtype: torch.dtype) -> Tensor:
    """x × scale, rounded to the nearest number of `dtype`; beyond its range the largest."""
    largest = LARGEST[dtype]
    return (x.float() * scale).clamp(-largest, largest).to(dtype)


def scaled_product(a: Tensor, b: Tensor, unscale: Tensor, one: Tensor, dtype: torch.dtype, fast: bool) -> Tensor:
    """a (M, K) and b (N, K), both fp8 and contiguous -> a bᵀ × unscale (M, N) in `dtype`; `one` is 1, on the device.

    `fast` sums without leaving the matrix unit, with about 14 bits: enough for activations, not for what is summed
    over all tokens. Off a GPU the same product of the same numbers, in float32.
    """
    if a.is_cuda:
        return torch._scaled_mm(a, b.mT, scale_a=unscale, scale_b=one, out_dtype=dtype, use_fast_accum=fast)
    return (a.float() @ b.float().mT * unscale).to(dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, rows, columns, scales):
        """x (M, K) bf16; weight (N, K), for its gradient alone; rows (N, K) and columns (K, N): it in E4M3; scales as
        in Fp8."""
        scale, forward, backward, gradient, one = scales
        x8 = quantize(x, scale, E4M3)
        ctx.save_for_backward(transpose(x8), columns, backward, gradient, one)
        return scaled_product(x8, rows, forward, one, torch.bfloat16, fast=True)

    @staticmethod
    def backward(ctx, dy):
        x_columns, columns, backward, gradient, one = ctx.saved_tensors
        dy8 = quantize(dy, GRADIENT_SCALE, E5M2)
        dx = scaled_product(dy8, columns, backward, one, torch.bfloat16, fast=True)
        dw = scaled_product(transpose(dy8), x_columns, gradient, one, torch.float32, fast=False)
        return dx, dw, None, None, None


class Fp8(Format):
    """A product in fp8."""

    def __init__(self, weight: Tensor, bound: Bound, source: Tensor | None = None) -> None:
        """`source` is the weight before the ReLU² (its outputs are this one's inputs), for the bound `relu2`."""
        super().__init__()
        outputs, inputs = weight.shape
        self.bound = bound
        self._source = (source,)  # a tuple: not a parameter of this module
        empty = torch.empty(outputs, inputs, dtype=E4M3, device=weight.device)
        self.register_buffer("rows", empty, persistent=False)
        self.register_buffer("columns", torch.empty_like(empty.mT.contiguous()), persistent=False)
        for name in SCALES:
            self.register_buffer(name, torch.ones((), device=weight.device), persistent=False)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        scales = tuple(getattr(self, name) for name in SCALES)
        return _Product.apply(flat, weight, self.rows, self.columns, scales).view(*x.shape[:-1], len(weight))

    def input_scale(self, weight: Tensor) -> Tensor:
        """The factor on the input, as a scalar tensor."""
        width = weight.shape[1]
        if self.bound == "norm":
            return power_of_two_below(torch.tensor(LARGEST[E4M3] / width**0.5, device=weight.device))
        if self.bound == "values":
            return torch.tensor(VALUES_SCALE, device=weight.device)
        (source,) = self._source
        bound = source.square().sum(dim=1).amax() * source.shape[1] / 4
        return power_of_two_below(LARGEST[E4M3] / bound.clamp_min(1e-6))

    def refresh(self, weight: Tensor) -> None:
        scale = power_of_two_below(LARGEST[E4M3] / weight.abs().amax().clamp_min(1e-12))
        self.rows.copy_(quantize(weight, scale, E4M3))
        self.columns.copy_(self.rows.mT)
        self.input.copy_(self.input_scale(weight))
        self.unscale_forward.copy_(1 / (scale * self.input))
        self.unscale_backward.copy_(1 / (scale * GRADIENT_SCALE))
        self.unscale_gradient.copy_(1 / (self.input * GRADIENT_SCALE))
