"""The sections `pretrain:`, `midtrain:` and `sft:` of a profile. Imports no torch."""

from config.schema import section


@section
class TrainConfig:
    """How one stage learns: how many tokens, in what batches, at what rates."""

    tokens: int  # positions trained on, in all
    batch_tokens: int  # positions an update
    micro_batch: int  # rows computed at once on one rank
    learning_rate: float = 0.02  # of the matrices (Muon); the ratios below scale with it
    embedding_ratio: float = 15.0  # learning rates of the other parameters (AdamW), over that of the matrices
    value_embedding_ratio: float = 7.5
    head_ratio: float = 0.4
    scalar_ratio: float = 1.0
    warmup_updates: int = 40
    decay_share: float = 0.65  # of the stage, at its end, over which the rate falls linearly
    final_scale: float = 0.05  # of the rate, reached at the last update
    weight_decay: float = 0.0  # of the matrices, a unit of learning rate; fades with the rate
    momentum: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.tokens, self.batch_tokens, self.micro_batch) < 1:
            raise ValueError("tokens, batch_tokens and micro_batch are at least 1")
        if self.batch_tokens > self.tokens:
            raise ValueError(f"batch_tokens {self.batch_tokens} exceed the stage's tokens {self.tokens}")
        ratios = (self.embedding_ratio, self.value_embedding_ratio, self.head_ratio, self.scalar_ratio)
        if not (0 < self.learning_rate < float("inf") and all(0 <= ratio < float("inf") for ratio in ratios)):
            raise ValueError(f"learning_rate is {self.learning_rate}, ratios {ratios}; expected numbers above 0")
        if not (0 <= self.decay_share <= 1 and 0 <= self.final_scale <= 1 and 0 <= self.momentum < 1):
            raise ValueError("decay_share and final_scale lie in 0 … 1, momentum in 0 … 1 without the 1")
        if self.warmup_updates < 0 or self.weight_decay < 0:
            raise ValueError("warmup_updates and weight_decay are at least 0")

    def updates(self, context: int) -> int:
        """Optimizer steps of the stage."""
        return max(1, self.tokens // (self.rows(context) * context))

    def rows(self, context: int) -> int:
        """Rows of `context` positions an update; ValueError when batch_tokens is not a multiple."""
        if self.batch_tokens % context:
            raise ValueError(f"batch_tokens {self.batch_tokens} is no multiple of the context {context}")
        return self.batch_tokens // context
