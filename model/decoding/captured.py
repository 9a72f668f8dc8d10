"""Generation on a GPU: steps of our own kernels (model.decoding.device_step), recorded in CUDA graphs and replayed.

What was drawn stays on the device and feeds the next step; the host reads it one step late. A graph holds fixed
addresses, so every call takes a workspace (cache, buffers and graphs) for itself and gives it back for the next.
"""

import threading
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from config.errors import UserError
from model.attention.protocol import one_line
from model.config import round_up
from model.decoding.sampling import Sampling, truncate
from model.decoding.steps import is_plain, prefill
from model.gpt import GPT

if TYPE_CHECKING:
    from model.decoding.device_step import Step

SLOT_MULTIPLE = 512  # of a batch's cache, so that the next batch fits into it
KEPT = 2  # workspaces kept for later calls
COLDEST = 1e-6  # temperatures below it are greedy: noise would vanish beside logits divided by them
TOLERANCE = {torch.float32: 1e-2, torch.float16: 3e-2, torch.bfloat16: 1e-1}  # of the first check, relative
FP8_TOLERANCE = 0.3
E4M3, E4M3_LARGEST = torch.float8_e4m3fn, 448.0
_capturing = threading.Lock()  # one capture at a time


@dataclass
class Slot:
    """Pinned memory for one step's ids, in (dictated) and out (drawn), both (B)."""

    drawn: Tensor
    dictated: Tensor
    event: torch.cuda.Event

    @classmethod
    def empty(cls, rows: int) -> "Slot":
        drawn, dictated = (torch.full((rows,), -1, dtype=torch.int64, pin_memory=True) for _ in range(2))
        return cls(drawn, dictated, torch.cuda.Event())


class Workspace:
    """A state with its steps, one for each number of rows that a batch shrinks to, each recorded at its first use."""

    def __init__(
        self, model: GPT, rows: int, slots: int, quantized: dict[int, tuple[Tensor, Tensor]] | None = None
    ) -> None:
        """`quantized` matrices serve a single row."""
        from model.decoding.device_step import State

        self.state = State(model, rows, slots)
        self.addresses = addresses(model)
        self.quantized = quantized
        self.overlap = torch.cuda.get_device_capability(self.state.logits.device) >= (9, 0)
        self.slots = [Slot.empty(rows) for _ in range(2)]
        self.steps: dict[int, Step] = {}
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self.idle = torch.cuda.Event()  # the end of its last use

    def run(self, rows: int, draw: bool = False) -> None:
        """One step of the first rows, whose count is a power of two, up to the logits or, with `draw`, the next ids."""
        if (rows, draw) in self.graphs:
            self.graphs[rows, draw].replay()
            return
        self.launch(rows, draw)  # compiles and loads the kernels, which no capture may do, and is this step
        self.graphs[rows, draw] = record(lambda: self.launch(rows, draw))

    def launch(self, rows: int, draw: bool) -> None:
        from model.decoding.device_step import Step

        if rows not in self.steps:
            self.steps[rows] = Step(self.state, rows, self.overlap, self.quantized)
        self.steps[rows].run()
        if draw:
            self.state.draw(rows)

    def keep(self, rows: list[int]) -> None:
        """Move these rows to the front."""
        index = torch.tensor(rows, device=self.state.logits.device)
        for tensor in (self.state.ids, self.state.positions, self.state.numbers):
            tensor[: len(rows)] = tensor[index]
        for tensors in (self.state.cache.keys, self.state.cache.values):
            for layer in tensors:  # one at a time, as the rows pass through a copy
                layer[: len(rows)] = layer[index]


def record(launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """What is launched as a CUDA graph. Other threads may use the device meanwhile."""
    graph = torch.cuda.CUDAGraph()
    current, side = torch.cuda.current_stream(), side_stream(torch.cuda.current_device())
    side.wait_stream(current)
    with _capturing, torch.cuda.stream(side):
        # The first capture of a process makes tensors for the default generator, which others will want to change.
        with torch.inference_mode(False):
            graph.capture_begin(capture_error_mode="thread_local")
        try:
            launch()
        finally:
            graph.capture_end()
    current.wait_stream(side)
    return graph


@cache
def side_stream(_device: int) -> torch.cuda.Stream:
    """The stream for captures, on the current device: one, since cuBLAS takes a workspace for every stream it meets."""
    return torch.cuda.Stream()


class CapturedSteps:
    """Steps on a workspace; see model.decoding.steps.Steps."""

    ahead = True

    @torch.inference_mode()
    def __init__(self, work: Workspace, prompts: list[list[int]], sampling: Sampling, seed: int, first: int) -> None:
        """`seed` as a generator has it, 64 bits without sign; `first`: the first prompt's number among those of it."""
        self.work, self.sampling = work, sampling
        self.live = len(prompts)
        self.pending: deque[tuple[Slot, list[int]]] = deque()
        self.turn = 0
        self.any_dictated = False
        state, live = work.state, self.live
        temperature = sampling.temperature if sampling.temperature >= COLDEST else 0.0
        state.temperature.fill_(temperature)
        state.seed.fill_(seed - 2**64 if seed >= 2**63 else seed)
        state.dictated.fill_(-1)
        state.numbers[:live] = torch.arange(first, first + live)
        state.positions[:live] = torch.tensor([len(prompt) - 1 for prompt in prompts])
        hidden = prefill(state.model, prompts, state.cache.first(live))
        state.logits[:live] = state.model.logits(hidden)
        self.truncates = sampling.truncates(state.logits.shape[1])
        with torch.cuda.device(state.logits.device):
            self._draw()
            self._send()

    def read(self) -> list[int]:
        slot, rows = self.pending.popleft()
        slot.event.synchronize()
        drawn = slot.drawn.tolist()
        return [drawn[row] for row in rows]

    @torch.inference_mode()
    def advance(self, ids: list[int | None]) -> None:
        if self.any_dictated or any(token is not None for token in ids):
            self.any_dictated = any(token is not None for token in ids)
            slot = self.work.slots[self.turn]
            slot.dictated[: self.live] = torch.tensor([-1 if token is None else token for token in ids])
            self.work.state.dictated.copy_(slot.dictated, non_blocking=True)
        with torch.cuda.device(self.work.state.logits.device):
            self.work.run(bucket(self.live), draw=not self.truncates)
            if self.truncates:
                self._draw()
            self._send()

    @torch.inference_mode()
    def keep(self, rows: list[int]) -> None:
        self.work.keep(rows)
        self.live = len(rows)
        self.any_dictated = True  # of other rows: to be written again
        self.pending = deque((slot, [wanted[row] for row in rows]) for slot, wanted in self.pending)

    def _draw(self) -> None:
        state = self.work.state
        if self.truncates:
            state.logits[: self.live] = truncate(state.logits[: self.live], self.sampling)
        state.draw(self.live)

    def _send(self) -> None:
        """Send the ids to the host, as they will be."""
        slot = self.work.slots[self.turn]
        self.turn = 1 - self.turn
        slot.drawn.copy_(self.work.state.ids, non_blocking=True)
        slot.event.record()
        self.pending.append((slot, list(range(self.live))))


class Pool:
    """The workspaces of a model. Safe to use from several threads."""

    def __init__(self, model: GPT, fp8_weights: bool = False) -> None:
        """Raises UserError when `fp8_weights` are wanted where they can't be had."""
        self.model = model
        self.fp8_weights = fp8_weights
        self.quantized: dict[int, tuple[Tensor, Tensor]] | None = None
        self.broken = False
        self.checked: set[bool] = set()
        self.idle: list[Workspace] = []
        self.lock = threading.Lock()
        if fp8_weights and (reason := refuses(model, fp8=True)):
            raise UserError(f"weights in fp8 need {reason}; leave fp8_weights off")

    def take(self, rows: int, slots: int) -> Workspace | None:
        """A workspace for so many prompts and so many tokens of prompt and reply, the caller's until it gives it back.

        None where the model can't be decoded so as it is now, or where our kernels fail on this device, which is
        warned of once.
        """
        if self.broken or refuses(self.model) is not None:
            return None
        rows, slots = bucket(rows), min(slots, self.model.config.context)
        current = addresses(self.model)
        with self.lock, torch.cuda.device(self.model.embedding.weight.device):
            self.idle = [work for work in self.idle if work.addresses == current]
            for index, work in enumerate(self.idle):
                if work.state.rows == rows and work.state.slots >= slots:
                    torch.cuda.current_stream().wait_event(work.idle)
                    return self.idle.pop(index)
            return self._build(rows, slots)

    def give(self, work: Workspace) -> None:
        """Take back a workspace for the next call."""
        with self.lock, torch.cuda.device(work.state.logits.device):
            work.idle.record()
            self.idle = [*self.idle, work][-KEPT:]

    def _build(self, rows: int, slots: int) -> Workspace | None:
        kind = rows == 1  # which goes through other kernels than more rows do
        if kind not in self.checked and (problem := unimportable()):
            return self._give_up(problem)
        if self.fp8_weights and self.quantized is None:
            self.quantized = quantized_matrices(self.model)
        context = self.model.config.context
        slots = context if rows == 1 else min(context, round_up(slots, SLOT_MULTIPLE))
        work = Workspace(self.model, rows, slots, self.quantized)
        if kind not in self.checked and (problem := check(work)):
            return self._give_up(problem)
        self.checked.add(kind)
        return work

    def _give_up(self, problem: str) -> None:
        if self.fp8_weights:
            raise UserError(f"decoding with weights in fp8 {problem}; leave fp8_weights off")
        warnings.warn(f"decoding with kernels of our own {problem}; PyTorch's serve, slower", stacklevel=4)
        self.broken = True


def bucket(rows: int) -> int:
    """The rows of the step that serves so many: a power of two."""
    return 1 << (rows - 1).bit_length()


def addresses(model: GPT) -> tuple[int, ...]:
    """Where the weights lie: graphs recorded for others are of no use."""
    return tuple(tensor.data_ptr() for tensor in model.state_dict(keep_vars=True).values())


def refuses(model: GPT, fp8: bool = False) -> str | None:
    """What our kernels would need to decode with this model, or None when they can."""
    weight = model.embedding.weight
    if not weight.is_cuda:
        return "a CUDA GPU"
    if not is_plain(model):
        return "a model without precision formats"
    dim = model.config.head_dim
    if dim < 16 or dim & (dim - 1) or dim > 256:
        return f"a head size that is a power of two from 16 to 256, found {dim}"
    if weight.dtype not in TOLERANCE:
        return f"weights in float32, float16 or bfloat16, found {weight.dtype}"
    if fp8 and torch.cuda.get_device_capability(weight.device) < (8, 9):
        return "compute capability 8.9 or later"
    return None


def quantized_matrices(model: GPT) -> dict[int, tuple[Tensor, Tensor]]:
    """By address, all matrices in E4M3 and their rows' scales."""
    linears = [
        linear
        for block in model.blocks
        for linear in (block.attention.qkv, block.attention.out, block.mlp.up, block.mlp.down)
    ]
    return {linear.weight.data_ptr(): quantized_rows(linear.weight.detach()) for linear in (*linears, model.head)}


def quantized_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight (N, K) -> it in E4M3 with one scale a row, and the scales (N) float32."""
    scale = (weight.float().abs().amax(dim=1) / E4M3_LARGEST).clamp_min(1e-12)
    return (weight.float() / scale[:, None]).to(E4M3), scale


def unimportable() -> str | None:
    """Why the kernels can't be imported, as text: Triton absent, or broken; or None."""
    try:
        import model.decoding.device_step  # noqa: F401
    except Exception as error:
        return f"fails on this device: {one_line(error)}"
    return None


@torch.inference_mode()
def check(work: Workspace) -> str | None:
    """Compare a few steps on this device with the model's own forward pass; what is wrong as text, or None.

    A kernel that compiles proves nothing: it is trusted once it has given the right logits here.
    """
    state = work.state
    length = min(4, state.slots)
    ids = torch.arange(state.rows * length, device=state.logits.device).view(-1, length) % state.logits.shape[1]
    try:
        state.positions.zero_()
        for at in range(length):  # the first one launches, the others replay
            state.ids.copy_(ids[:, at])
            state.positions.fill_(at)
            work.run(state.rows)
        expected = state.model.logits(state.model(ids)[:, -1])
        error = ((state.logits - expected).norm() / expected.norm()).item()
    except Exception as error:
        return f"fails on this device: {one_line(error)}"
    allowed = FP8_TOLERANCE if work.quantized and state.rows == 1 else TOLERANCE[state.model.embedding.weight.dtype]
    return None if error <= allowed else f"is off by {error:.1e} on this device, {allowed:.0e} allowed"
