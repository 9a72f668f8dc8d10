"""How tokens are drawn from logits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from config.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the likeliest; top_k 0 and top_p 1 are off; seed None is fresh."""

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or self.top_k < 0 or not 0 < self.top_p <= 1 or self.max_tokens < 1:
            raise UserError(
                f"found temperature {self.temperature}, top_k {self.top_k}, top_p {self.top_p}, max_tokens "
                f"{self.max_tokens}; expected temperature ≥ 0, top_k ≥ 0, 0 < top_p ≤ 1 and max_tokens ≥ 1"
            )

    def truncates(self, vocab: int) -> bool:
        """Whether some of the `vocab` tokens may never be drawn."""
        return self.temperature > 0 and (0 < self.top_k < vocab or self.top_p < 1)


def truncate(logits: Tensor, sampling: Sampling) -> Tensor:
    """logits (B, V) with those outside top_k and top_p at -inf; top_p counts after the temperature."""
    if 0 < sampling.top_k < logits.shape[-1]:
        lowest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, float("-inf"))
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        # A token stays while the probability before it is under top_p, so the likeliest always stays. The largest
        # first becomes 0: divided by however small a temperature, none overflows.
        probabilities = ((ordered - ordered[:, :1]) / sampling.temperature).softmax(dim=-1)
        ordered = ordered.masked_fill(probabilities.cumsum(dim=-1) - probabilities >= sampling.top_p, float("-inf"))
        logits = torch.empty_like(logits).scatter(-1, order, ordered)
    return logits


def sample(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Draw one id a row (B,) from logits (B, V), on the logits' device, without waiting for it."""
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    logits = truncate(logits, sampling)
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / sampling.temperature
    # Exponential race: argmax of p / Exp(1) is a draw from p, with no device synchronisation.
    # Never 0, which would make a token of probability 0 the winner.
    noise = torch.empty_like(logits).exponential_(1, generator=generator).clamp_min_(torch.finfo(logits.dtype).tiny)
    return (logits.softmax(dim=-1) / noise).argmax(dim=-1)
