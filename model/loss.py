"""Next-token cross-entropy over capped logits, in chunks, so that the logits of a batch never lie in memory at once."""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from model.gpt import GPT

IGNORE = -1  # target of a position that carries no loss
CHUNK_LOGITS = 2**26  # logits computed at once: 256 MiB in float32


def token_losses(model: GPT, hidden: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats (B, T), float32, 0 where the target is IGNORE; hidden (B, T, C), targets (B, T)."""
    logits = model.logits(hidden)
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction="none")
    return losses.view(targets.shape)


def loss_sum(model: GPT, ids: Tensor, targets: Tensor) -> Tensor:
    """Summed cross-entropy in nats (a scalar) of token ids (B, T) against targets (B, T).

    A sum, not a mean: the caller divides by the targets of the whole update, over all micro-batches and ranks.
    A batch in which everything is masked gives 0, and no gradient.
    """
    hidden = model(ids)
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
