"""Bits per byte: the loss in a unit that doesn't depend on the tokenizer, so that any two models compare."""

import math
from typing import Protocol

import numpy
import torch

from model.gpt import GPT
from model.loss import IGNORE, token_losses

BATCH_TOKENS = 16_384


class Rows(Protocol):
    """Rows of token ids (n, T + 1) and of their loss masks, by index."""

    def __len__(self) -> int: ...
    def ids(self, indices: numpy.ndarray) -> numpy.ndarray: ...
    def mask(self, indices: numpy.ndarray) -> numpy.ndarray: ...


def evenly(count: int, limit: int) -> numpy.ndarray:
    """At most `limit` of `count` row numbers, evenly spread, each once."""
    return numpy.unique(numpy.linspace(0, count - 1, min(limit, count)).astype(int)) if count else numpy.arange(0)


@torch.no_grad()
def bits_per_byte(
    model: GPT,
    rows: Rows,
    byte_lengths: numpy.ndarray,
    limit: int,
) -> dict[str, float]:
    """Mean bits a byte of UTF-8 over at most `limit` rows, taken evenly; `byte_lengths` (V,) of each token.

    Targets without bytes (chat marks) and masked ones count neither as loss nor as bytes. Also the mean loss in nats
    over all unmasked targets, and the bytes seen. The figures are NaN when there is no target at all.
    """
    device = model.embedding.weight.device
    lengths = torch.tensor(byte_lengths, device=device)
    chosen = evenly(len(rows), limit)
    nats, seen, loss, targets_seen = 0.0, 0, 0.0, 0
    batch = max(1, BATCH_TOKENS // model.config.context)
    for at in range(0, len(chosen), batch):
        indices = chosen[at : at + batch]
        ids = torch.from_numpy(rows.ids(indices)).to(device)
        keep = torch.from_numpy(numpy.asarray(rows.mask(indices))[:, 1:] != 0).to(device)
        targets = ids[:, 1:].masked_fill(~keep, IGNORE)
        losses = token_losses(model, model(ids[:, :-1]), targets)
        sizes = lengths[ids[:, 1:]] * keep
        nats += losses[sizes > 0].double().sum().item()
        seen += int(sizes.sum().item())
        loss += losses.double().sum().item()
        targets_seen += int(keep.sum().item())
    return {
        "bits_per_byte": nats / math.log(2) / seen if seen else math.nan,
        "loss": loss / targets_seen if targets_seen else math.nan,
        "bytes": seen,
    }
