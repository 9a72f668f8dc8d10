"""The head's product and the softcapped cross-entropy as one operator, whose gradients are ready when it returns.

A chunk of rows at a time: logits in bf16, the loss and, over the logits, their gradient in one kernel, and at once the
two products that use it. So the logits of a batch are never all there, none is float32, and nothing is recomputed. The
loss is a sum, so a logit's gradient needs to know of no other chunk.
"""

import torch
from torch import Tensor

from model.kernels.quantize import E4M3, E5M2, quantize, transpose

CHUNK_ROWS = 8192  # half a GiB of logits at a vocabulary of 32,768


@torch.library.custom_op("tandem::head_loss_bf16", mutates_args=())
def bf16(
    hidden: Tensor, weight: Tensor, copy: Tensor, targets: Tensor, softcap: float
) -> tuple[Tensor, Tensor, Tensor]:
    """hidden (N, C) and copy (V, C) of `weight` in bf16, targets (N) -> loss (), its gradients (N, C) and (V, C)."""
    from model.kernels.cross_entropy import cross_entropy_

    losses = torch.empty(len(hidden), device=hidden.device)
    d_hidden = torch.empty_like(hidden)
    d_weight = torch.zeros_like(weight)
    for at in range(0, len(hidden), CHUNK_ROWS):
        rows = slice(at, at + CHUNK_ROWS)
        logits = hidden[rows] @ copy.mT
        cross_entropy_(logits, targets[rows], losses[rows], softcap)
        torch.mm(logits, copy, out=d_hidden[rows])
        torch.addmm(d_weight, logits.mT, hidden[rows], out_dtype=torch.float32, out=d_weight)
    return losses.sum(), d_hidden, d_weight


@torch.library.custom_op("tandem::head_loss_fp8", mutates_args=())
def fp8(
    hidden: Tensor,
    weight: Tensor,
    rows8: Tensor,
    columns8: Tensor,
    scales: list[Tensor],
    targets: Tensor,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with the head's weight as model.precision.fp8 keeps it."""
    from model.kernels.cross_entropy import cross_entropy_
    from model.precision.fp8 import GRADIENT_SCALE, scaled_product

    scale, forward, backward, gradient, _, one = scales
    losses = torch.empty(len(hidden), device=hidden.device)
    d_hidden = torch.empty_like(hidden)
    d_weight = torch.zeros_like(weight)
    for at in range(0, len(hidden), CHUNK_ROWS):
        rows = slice(at, at + CHUNK_ROWS)
        x8, x_columns = quantize(hidden[rows], scale, E4M3)
        logits = scaled_product(x8, rows8, forward, one, torch.bfloat16, fast=True)
        d_logits = torch.empty_like(logits, dtype=E5M2)
        cross_entropy_(logits, targets[rows], losses[rows], softcap, d_logits, GRADIENT_SCALE)
        d_hidden[rows] = scaled_product(d_logits, columns8, backward, one, torch.bfloat16, fast=False)
        d_weight += scaled_product(transpose(d_logits), x_columns, gradient, one, torch.float32, fast=False)
    return losses.sum(), d_hidden, d_weight


@bf16.register_fake
def _(hidden, weight, copy, targets, softcap):
    return hidden.new_empty((), dtype=torch.float32), torch.empty_like(hidden), torch.empty_like(weight)


@fp8.register_fake
def _(hidden, weight, rows8, columns8, scales, targets, softcap):
    return hidden.new_empty((), dtype=torch.float32), torch.empty_like(hidden), torch.empty_like(weight)


def _keep(ctx, inputs, output):
    _, d_hidden, d_weight = output
    ctx.save_for_backward(d_hidden, d_weight)
    ctx.inputs = len(inputs)


def _backward(ctx, gradient, _d_hidden, _d_weight):
    d_hidden, d_weight = ctx.saved_tensors
    if ctx.inputs == 5:
        return gradient * d_hidden, gradient * d_weight, None, None, None
    return gradient * d_hidden, gradient * d_weight, None, None, [None] * 6, None, None


bf16.register_autograd(_backward, setup_context=_keep)
fp8.register_autograd(_backward, setup_context=_keep)
