"""The one training loop, for pretrain, midtrain and sft. It is given all it calls; nothing points back at it."""

import gc
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from config.errors import UserError
from model.linear import refresh
from training.checkpoint import Checkpoints, Position
from training.config import TrainConfig
from training.distributed import Ranks
from training.optim.optimizer import Optimizer
from training.schedule import rate_scale
from training.telemetry import Telemetry, progress_line


class MicroBatch(Protocol):
    """Rows for one forward and backward pass: (B, T) token ids and targets, on the device."""

    inputs: Tensor
    targets: Tensor


class Update(Protocol):
    """This rank's micro-batches of one optimizer step, gone through once; `targets` counts target tokens over all
    ranks."""

    micro_batches: Iterable[MicroBatch]
    targets: int


@dataclass(frozen=True)
class Hook:
    """Something done after certain updates, with the model as it then is; its seconds are not counted as training."""

    steps: frozenset[int]
    call: Callable[[int], None]


@dataclass
class Job:
    """A stage, assembled: see training.assemble for how its parts are made."""

    stage: str
    config: TrainConfig
    updates: int
    tokens_per_update: int
    flops_per_token: int
    model: nn.Module
    loss_sum: Callable[[Tensor, Tensor], Tensor]  # ids (B, T), targets (B, T) -> summed loss in nats
    optimizer: Optimizer
    ranks: Ranks
    checkpoints: Checkpoints
    telemetry: Telemetry
    log_updates: int
    checkpoint_updates: int
    hooks: Sequence[Hook] = ()
    peak_tflops: float | None = None  # dense peak of the device in this precision, where it is known


class StoppedError(Exception):
    """The run was asked to end and has saved its state."""


class StopSignal:
    """Notes SIGTERM and SIGINT instead of dying in the middle of an update."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep Python's collector from searching through everything in the middle of an update."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def train(job: Job, position: Position, updates: Iterable[Update], waited: Callable[[], float]) -> Position:
    """Run the updates after `position` to the end and save the last checkpoint; returns the position then.

    `updates` yields from `position.step` on; `waited()` is the time in seconds spent waiting for it so far.
    Raises StoppedError after a SIGTERM or SIGINT, with the state saved, and UserError when the loss is not finite.
    """
    device = job.ranks.device
    meter = _Meter(job, waited, position.step)
    summed, targets = torch.zeros((), device=device), 0
    loss = position.loss
    with StopSignal() as stop, collector_paused():
        for step, update in enumerate(updates, start=position.step):
            summed += _accumulate(job, update)
            targets += update.targets
            scale = rate_scale(step, job.updates, job.config)
            done = step + 1
            asks = job.ranks.world == 1 or done % job.log_updates == 0  # several ranks have to agree, which takes time
            stopping = job.ranks.any(stop.received is not None) if asks else False
            saves = done % job.checkpoint_updates == 0 or done == job.updates or stopping
            # What is saved was looked at: a loss that is not finite ends the run before it spoils a checkpoint.
            logs = saves or done % job.log_updates == 0
            norm = _gradient_norm(job) / max(1, update.targets) if logs else None
            if update.targets:
                job.optimizer.step(scale, 1 / update.targets)
                refresh(job.model)
            job.model.zero_grad(set_to_none=True)
            meter.count()
            if logs:
                job.ranks.sum_([summed])
                loss = summed.item() / max(1, targets)
                if not (math.isfinite(loss) and math.isfinite(norm)):
                    raise UserError(
                        f"{job.stage}: the loss is {loss}, the gradient's norm {norm} at update {done}; lower "
                        f"{job.stage}.learning_rate ({job.config.learning_rate}) and run `dvc repro`"
                    )
                meter.log(done, loss, job.config.learning_rate * scale, norm)
                summed, targets = torch.zeros((), device=device), 0
            meter.pause()
            if saves:  # before the hooks: whatever befalls them, the work is on disk
                started = time.perf_counter()
                job.checkpoints.save(job.model, job.optimizer, Position(done, loss))
                job.telemetry.event("checkpoint", step=done, seconds=round(time.perf_counter() - started, 3))
                gc.collect()
            for hook in job.hooks:
                if done in hook.steps:
                    _call(hook, job, done)
            meter.resume()
            if stopping and done < job.updates:
                raise StoppedError(
                    f"{stop.received or 'stop'} received: saved at update {done:,}; `dvc repro` goes on from there"
                )
    return Position(job.updates, loss)


def _call(hook: Hook, job: Job, done: int) -> None:
    """Call a hook; one that fails is told of and passed over: days of training must not end for a glance at them."""
    try:
        hook.call(done)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        job.telemetry.say(f"{job.stage}: looking at update {done:,} failed and is passed over: {problem}")
        job.telemetry.event("hook_failed", step=done, problem=problem)


def _accumulate(job: Job, update: Update) -> Tensor:
    """Gradients of the update's summed loss over all its targets on all ranks; returns this rank's summed loss."""
    device = job.ranks.device
    summed = torch.zeros((), device=device)
    for batch in update.micro_batches:
        loss = job.loss_sum(batch.inputs, batch.targets)
        loss.backward()
        summed += loss.detach()
    job.ranks.sum_([parameter.grad for parameter in job.model.parameters()])
    return summed


def _gradient_norm(job: Job) -> float:
    """Euclidean norm of all gradients. Synchronises with the device."""
    norms = torch._foreach_norm([parameter.grad for parameter in job.model.parameters()])
    return torch.stack(norms).norm().item()


class _Meter:
    """Speed between log lines, the time of hooks and checkpoints left out."""

    def __init__(self, job: Job, waited: Callable[[], float], step: int) -> None:
        self.job, self.waited = job, waited
        self.updates = 0
        self.busy = 0.0
        self.since = time.perf_counter()
        self.waited_before = waited()
        self.first_step = step
        self.step_seconds: float | None = None

    def count(self) -> None:
        self.updates += 1

    def pause(self) -> None:
        self.busy += time.perf_counter() - self.since

    def resume(self) -> None:
        self.since = time.perf_counter()

    def log(self, done: int, loss: float, rate: float, norm: float | None) -> None:
        job = self.job
        self.pause()
        seconds = self.busy / self.updates
        # Smoothed for the time left; the first interval holds compilation, so it is forgotten as soon as it can be.
        recent = self.step_seconds if done - self.first_step > 2 * job.log_updates else None
        self.step_seconds = seconds if recent is None else 0.8 * recent + 0.2 * seconds
        tflops = job.flops_per_token * job.tokens_per_update / seconds / 1e12
        waited = self.waited()
        values = {
            "step": done,
            "loss": loss,
            "lr": rate,
            "grad_norm": norm,
            "tok_s": job.tokens_per_update / seconds,
            "tflops": tflops,
            "mfu": tflops / job.ranks.world / job.peak_tflops if job.peak_tflops else None,
            "step_ms": 1e3 * seconds,
            "data_ms": 1e3 * (waited - self.waited_before) / self.updates,
            "tokens": done * job.tokens_per_update,
            "eta_s": self.step_seconds * (job.updates - done),
        }
        job.telemetry.event("log", **{k: round(v, 6) if isinstance(v, float) else v for k, v in values.items()})
        line = progress_line(job.stage, values | {"updates": job.updates})
        job.telemetry.progress(line, last=done == job.updates)
        self.updates, self.busy, self.waited_before = 0, 0.0, waited
        self.resume()
