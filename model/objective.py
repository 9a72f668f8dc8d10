"""What training minimises: summed cross-entropy, the logits of a batch never in memory at once."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from model.gpt import GPT
from model.kernels import head_loss
from model.linear import Linear
from model.loss import token_losses
from model.precision.bf16 import Bf16
from model.precision.fp8 import Fp8

CHUNK_LOGITS = 2**26  # logits computed at once without the fused kernel: 256 MiB in float32


def loss_sum(model: GPT, ids: Tensor, targets: Tensor) -> Tensor:
    """Summed cross-entropy in nats (a scalar) of token ids (B, T) against targets (B, T).

    A sum, not a mean: gradients are divided by the targets of the whole update, over all micro-batches and ranks, when
    the optimizer steps. A batch in which everything is masked gives 0, and no gradient.
    """
    hidden = model(ids)
    if hidden.is_cuda and isinstance(model.head.format, Bf16 | Fp8):
        return fused(hidden.flatten(0, -2), model.head, targets.flatten(), model.config.softcap)
    rows = max(1, CHUNK_LOGITS // (ids.shape[1] * model.config.vocab_size))
    if rows >= len(ids):
        return token_losses(model, hidden, targets).sum()

    def chunk(hidden_rows: Tensor, target_rows: Tensor) -> Tensor:
        return token_losses(model, hidden_rows, target_rows).sum()

    # Recomputed in the backward pass: one more head product, instead of keeping (B, T, V) in float32.
    parts = [
        checkpoint(chunk, hidden[at : at + rows], targets[at : at + rows], use_reentrant=False)
        for at in range(0, len(ids), rows)
    ]
    return torch.stack(parts).sum()


def fused(hidden: Tensor, head: Linear, targets: Tensor, softcap: float) -> Tensor:
    """The summed loss of hidden (N, C) against targets (N), its gradients made on the way forward, chunk by chunk."""
    hidden = hidden.to(torch.bfloat16)
    form = head.format
    if isinstance(form, Fp8):
        return head_loss.fp8(hidden, head.weight, form.rows, form.columns, list(form.scales), targets, softcap)[0]
    return head_loss.bf16(hidden, head.weight, form.copy, targets, softcap)[0]
