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

import math
from typing import Literal

import torch
from torch import Tensor

from model.kernels.quantize import E4M3, E5M2, LARGEST, quantize, quantize_into, to_fp8, transpose
from model.linear import Format

# Gradients of single tokens' losses lie between 1e-8 and 1: this puts them between 2^-14, the least normal number, and
# 57,344, with a factor of 14 to spare.
GRADIENT_SCALE = 2.0**12
VALUES_SCALE = 8.0  # of averaged values, which attention puts out: of the order of 1
# The factor on the input; what turns the sums of the forward, the backward and the weight's product into values; the
# factor on the gradient. Each in a tensor of its own, since cuBLAS wants them aligned.
SCALES = ("input", "unscale_forward", "unscale_backward", "unscale_gradient", "gradient_scale", "one")
Bound = Literal["norm", "values", "relu2"]  # what a product's input is


def power_of_two_below(value: Tensor) -> Tensor:
    """The largest power of two that is at most `value` (float32, positive)."""
    mantissa, exponent = torch.frexp(value)  # value = mantissa × 2^exponent, mantissa in [0.5, 1)
    return torch.ldexp(torch.ones_like(mantissa), exponent - 1)


def scaled_product(a: Tensor, b: Tensor, unscale: Tensor, one: Tensor, dtype: torch.dtype, fast: bool) -> Tensor:
    """a (M, K) and b (N, K), both fp8 and contiguous -> a bᵀ × unscale (M, N) in `dtype`; `one` is 1, on the device.

    `fast` sums without leaving the matrix unit, with about 14 bits: enough for activations, not for gradients. Summed
    over a vocabulary, say, the many small probabilities would vanish beside the one target. Off a GPU the same product
    of the same numbers, in float32.
    """
    if a.is_cuda:
        return torch._scaled_mm(a, b.mT, scale_a=unscale, scale_b=one, out_dtype=dtype, use_fast_accum=fast)
    return (a.float() @ b.float().mT * unscale).to(dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, rows, columns, scales, bound):
        """x (M, K) bf16; weight (N, K), for its gradient alone; rows (N, K) and columns (K, N): it in E4M3; scales as
        in Fp8."""
        scale, forward, backward, gradient, gradient_scale, one = scales
        x8 = to_fp8(x, scale, E4M3)  # which the compiler fuses into a norm before it
        ctx.bound = bound
        # What attention puts out it keeps itself, in bf16; a norm's result would be kept for this alone.
        kept = transpose(x8) if bound == "norm" else x
        ctx.save_for_backward(kept, columns, scale, backward, gradient, gradient_scale, one)
        return scaled_product(x8, rows, forward, one, torch.bfloat16, fast=True)

    @staticmethod
    def backward(ctx, dy):
        kept, columns, scale, backward, gradient, gradient_scale, one = ctx.saved_tensors
        if ctx.bound == "norm":
            x_columns = kept
            dy8, dy_columns = quantize(dy, gradient_scale, E5M2)
        else:  # what follows goes into the stream: the compiler fuses the rounding into the next norm's backward
            _, x_columns = quantize(kept, scale, E4M3)
            dy8 = to_fp8(dy, gradient_scale, E5M2)
            dy_columns = transpose(dy8)
        dx = scaled_product(dy8, columns, backward, one, torch.bfloat16, fast=False)
        dw = scaled_product(dy_columns, x_columns, gradient, one, torch.float32, fast=False)
        return dx, dw, None, None, None, None


class Fp8(Format):
    """A product in fp8."""

    def __init__(self, weight: Tensor, bound: Bound, source: Tensor | None = None) -> None:
        """`source` is the weight before the ReLU² (its outputs are this one's inputs), for the bound `relu2`."""
        super().__init__()
        outputs, inputs = weight.shape
        self.bound = bound
        self._source = (source,)  # in a tuple, which hides it: it is not a parameter of this module
        for name, shape in (("rows", (outputs, inputs)), ("columns", (inputs, outputs))):
            self.register_buffer(name, torch.empty(shape, dtype=E4M3, device=weight.device), persistent=False)
        for name in SCALES:
            self.register_buffer(name, torch.ones((), device=weight.device), persistent=False)
        self.gradient_scale.fill_(GRADIENT_SCALE)
        if bound == "norm":
            self.input.fill_(2.0 ** math.floor(math.log2(LARGEST[E4M3] / inputs**0.5)))
        elif bound == "values":
            self.input.fill_(VALUES_SCALE)
        self.unscale_gradient.copy_(1 / (self.input * GRADIENT_SCALE))

    @property
    def source(self) -> Tensor:
        return self._source[0]

    @property
    def scales(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, name) for name in SCALES)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        y = _Product.apply(flat, weight, self.rows, self.columns, self.scales, self.bound)
        return y.view(*x.shape[:-1], len(weight))

    def refresh(self, weight: Tensor) -> None:
        self.refresh_all([self], [weight])

    @classmethod
    def refresh_all(cls, formats: "list[Fp8]", weights: list[Tensor]) -> None:
        """All scales in a few kernels, then one for each weight: an update must not wait for hundreds of launches."""
        scales = power_of_two_below(LARGEST[E4M3] / _stacked(weights, float("inf")).clamp_min(1e-12))
        squared = [form for form in formats if form.bound == "relu2"]
        if squared:
            # |w·x| for the longest row w of the weight before, and x as long as RMSNorm makes it
            rows = [torch.linalg.vector_norm(form.source, dim=1).amax() for form in squared]
            widths = torch.tensor([form.source.shape[1] for form in squared], device=scales.device)
            bounds = (torch.stack(rows).square() * widths / 4).clamp_min(1e-6)
            inputs = power_of_two_below(LARGEST[E4M3] / bounds).unbind()
            torch._foreach_copy_([form.input for form in squared], list(inputs))
        inputs = torch.stack([form.input for form in formats])
        for name, values in (
            ("unscale_forward", scales * inputs),
            ("unscale_backward", scales * GRADIENT_SCALE),
            ("unscale_gradient", inputs * GRADIENT_SCALE),
        ):
            torch._foreach_copy_([getattr(form, name) for form in formats], list((1 / values).unbind()))
        for form, weight, scale in zip(formats, weights, scales.unbind(), strict=True):
            quantize_into(weight, scale, form.rows, form.columns)


def _stacked(tensors: list[Tensor], order: float) -> Tensor:
    """The norms of tensors, as one vector."""
    return torch.stack(torch._foreach_norm(tensors, order))
