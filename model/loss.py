"""Next-token cross-entropy over capped logits, token by token."""

from torch import Tensor
from torch.nn import functional as F

from model.gpt import GPT

IGNORE = -1  # target of a position that carries no loss


def token_losses(model: GPT, hidden: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats (B, T), float32, 0 where the target is IGNORE; hidden (B, T, C), targets (B, T)."""
    logits = model.logits(hidden)
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction="none")
    return losses.view(targets.shape)
