"""A training stage small enough for a test: random rows in memory, a GPT of a few thousand weights, one thread."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from data.loader import Loader, Update
from data.rows import IGNORE
from model.gpt import GPT
from model.objective import loss_sum
from tests.small_gpt import small_config
from training.checkpoint import Checkpoints, Position
from training.config import TrainConfig
from training.distributed import Ranks
from training.loop import Hook, Job, train
from training.optim.optimizer import Optimizer
from training.telemetry import Telemetry

CONTEXT, VOCAB = 16, 64
ALONE = Ranks(0, 1, torch.device("cpu"))
CONFIG = TrainConfig(
    tokens=1024, batch_tokens=6 * CONTEXT, micro_batch=4, warmup_updates=2, weight_decay=0.1, decay_share=0.5
)


class MemoryRows:
    """What a Loader reads: `count` rows of a learnable sequence, with random masks; rows in `masked` hold no target."""

    def __init__(self, count: int = 20, vocab: int = VOCAB, masked: Sequence[int] = (), context: int = CONTEXT) -> None:
        draw = np.random.default_rng(0)
        starts, strides = draw.integers(0, vocab, (count, 1)), draw.integers(1, 4, (count, 1))
        self._ids = (starts + strides * np.arange(context + 1)) % vocab
        self._mask = (draw.random((count, context + 1)) < 0.8).astype(np.uint8)
        self._mask[list(masked)] = 0
        self.context = context

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, indices: np.ndarray) -> np.ndarray:
        return self._ids[indices]

    def mask(self, indices: np.ndarray) -> np.ndarray:
        return self._mask[indices]

    def read(self, indices: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> None:
        inputs[:] = self._ids[indices, :-1]
        targets[:] = np.where(self._mask[indices, 1:], self._ids[indices, 1:], IGNORE)

    def targets(self, indices: np.ndarray) -> int:
        return int(self.target_counts[indices].sum())

    @property
    def target_counts(self) -> np.ndarray:
        return self._mask[:, 1:].sum(axis=1, dtype=np.int64)


def small_job(
    folder: Path,
    updates: int = 6,
    ranks: Ranks = ALONE,
    config: TrainConfig = CONFIG,
    vocab: int = VOCAB,
    log_updates: int = 1,
    checkpoint_updates: int = 2,
    keep: int = 2,
    hooks: Sequence[Hook] = (),
    seed: int = 0,
) -> Job:
    model = GPT(small_config(vocab_size=vocab, context=CONTEXT, windows=(8, CONTEXT), heads=4, kv_heads=2))
    model.initialize(seed)
    return Job(
        stage="pretrain",
        config=config,
        updates=updates,
        tokens_per_update=config.batch_tokens,
        flops_per_token=1000,
        model=model,
        loss_sum=lambda ids, targets: loss_sum(model, ids, targets),
        optimizer=Optimizer(model, config, ranks, torch.float32),
        ranks=ranks,
        checkpoints=Checkpoints(folder / "checkpoints", "print", keep, ranks),
        telemetry=Telemetry(folder / "events.jsonl", "pretrain", ranks.first),
        log_updates=log_updates,
        checkpoint_updates=checkpoint_updates,
        hooks=hooks,
    )


def run_job(job: Job, rows: MemoryRows | None = None, kill_before: int | None = None) -> Position:
    """Go on from the newest checkpoint to the end, or until `Killed` is raised where update `kill_before` was due."""
    position = job.checkpoints.load_newest(job.model, job.optimizer) or Position(0)
    job.telemetry.rewind(position.step)
    loader = Loader(
        rows or MemoryRows(vocab=job.model.config.vocab_size),
        job.config.rows(CONTEXT),
        job.config.micro_batch,
        job.ranks.rank,
        job.ranks.world,
        start=position.step,
    )

    def updates() -> Iterator[Update]:
        for update in islice(loader, job.updates - position.step):
            if update.index == kill_before:
                raise Killed
            yield update

    with loader:
        return train(job, position, updates(), lambda: loader.waited_seconds)


class Killed(BaseException):
    """The end of a process, as far as one process can play it."""


def weights(job: Job) -> dict[str, torch.Tensor]:
    """Copies of all weights and all optimizer state."""
    state = {name: tensor.clone() for name, tensor in job.optimizer.state().items()}
    return state | {name: tensor.detach().clone() for name, tensor in job.model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether two states agree in every bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def with_rate(rate: float) -> TrainConfig:
    return replace(CONFIG, learning_rate=rate)
