"""Softcapped cross-entropy of rows of logits, and the gradient of the loss in their place: one kernel, a row a program.

Imports Triton, so it is imported on a GPU alone. With z = c·tanh(l / c), z lies within ±c: exp(z - c) neither overflows
nor vanishes in float32 for the usual c of 15 to 50, so no pass is needed to find the largest logit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

IGNORE = -1  # as in model.loss
LARGEST_BLOCK = 8192  # logits at once: more take so many registers that fewer rows are under way


@triton.jit
def _tanh(x):
    """The GPU's own approximation, right to 11 bits where the logits' bf16 has 8: the kernel's time goes into it."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _cross_entropy(
    logits, targets, losses, gradients, softcap, gradient_scale, largest, V, BLOCK: tl.constexpr, IGNORE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    line = logits + row * V
    out = gradients + row * V
    total = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, V, BLOCK):
        column = at + tl.arange(0, BLOCK)
        x = tl.load(line + column, mask=column < V, other=float("-inf")).to(tl.float32)
        total += tl.where(column < V, tl.exp(softcap * _tanh(x / softcap) - softcap), 0.0)
    total = tl.sum(total, axis=0)
    counts = target != IGNORE
    hit = tl.load(line + tl.where(counts, target, 0)).to(tl.float32)
    loss = tl.log(total) + softcap - softcap * _tanh(hit / softcap)
    tl.store(losses + row, tl.where(counts, loss, 0.0))
    weight = tl.where(counts, gradient_scale, 0.0)
    inverse = 1 / total
    for at in range(0, V, BLOCK):
        column = at + tl.arange(0, BLOCK)
        x = tl.load(line + column, mask=column < V, other=0.0).to(tl.float32)
        t = _tanh(x / softcap)
        p = tl.exp(softcap * t - softcap) * inverse
        g = (p - tl.where(column == target, 1.0, 0.0)) * (1 - t * t) * weight
        g = tl.minimum(tl.maximum(g, -largest), largest)
        tl.store(out + column, g.to(out.dtype.element_ty), mask=column < V)


def cross_entropy_(
    logits: Tensor,
    targets: Tensor,
    losses: Tensor,
    softcap: float,
    gradients: Tensor | None = None,
    gradient_scale: float = 1.0,
) -> None:
    """Write the losses (N) in nats of logits (N, V) against targets (N), 0 where the target is IGNORE, and the
    gradient by the uncapped logits × `gradient_scale` into `gradients`, or else over the logits."""
    gradients = logits if gradients is None else gradients
    vocab = logits.shape[1]
    block = min(LARGEST_BLOCK, triton.next_power_of_2(vocab))
    largest = torch.finfo(gradients.dtype).max
    _cross_entropy[(len(logits),)](
        logits, targets, losses, gradients, softcap, gradient_scale, largest, vocab, block, IGNORE,
        num_warps=max(1, block // 512),
    )  # fmt: skip
