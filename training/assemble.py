"""From a profile's sections to a model that computes: recipe, attention, weights, formats, compilation, optimizer, in
this order. Each step depends on those before it, so the order is the contract."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from config.errors import UserError
from model import publish
from model.attention.backends import Request
from model.attention.choose import Choice, choose
from model.config import GPTConfig, ModelConfig
from model.gpt import GPT
from model.objective import loss_sum
from model.precision.measure import Choices
from model.precision.recipes import Recipe, resolve
from training.config import TrainConfig
from training.distributed import Ranks
from training.optim.optimizer import Optimizer


@dataclass(frozen=True)
class Assembled:
    """A model ready to be trained, and the choices made on the way."""

    model: GPT
    loss_sum: Callable[[Tensor, Tensor], Tensor]
    optimizer: Optimizer
    recipe: Recipe
    attention: Choice
    compiled: bool
    choices: Choices  # formats chosen by measuring, for a resumed run to keep
    remarks: tuple[str, ...]  # what could be faster here, and why it isn't


def assemble(
    wanted: ModelConfig,
    shape: GPTConfig,
    stage: TrainConfig,
    ranks: Ranks,
    start_from: Path | None,
    choices: Choices | None = None,
) -> Assembled:
    """Build the model on this rank's device, its weights from `start_from` (a published model) or from the seed.

    `choices` are those of the run that goes on; None has the first rank measure, for all.

    Raises UserError when the device can't run what the profile names, or when the published model has another shape.
    """
    device = ranks.device
    if device.type == "cpu":
        be_deterministic()
    recipe = resolve(wanted.precision, device)
    compiled = wanted.compile == "on" or (wanted.compile == "auto" and can_compile(device))
    request = Request(
        device=device,
        dtype=recipe.compute,
        head_dim=shape.head_dim,
        grouped=shape.kv_heads != shape.heads,
        groups=shape.heads // shape.kv_heads,
        windowed=any(window < shape.context for window in shape.windows),
        compiled=compiled,
    )
    attention = choose(wanted.attention, request)
    model = GPT(shape, attention.attend)
    pattern = wanted.recompute_pattern
    model.recompute = tuple(pattern[layer % len(pattern)] == "R" for layer in range(shape.layers))
    if start_from is None:
        model.initialize(stage.seed)
    else:
        found, _ = publish.read_config(start_from)
        if found != shape:
            raise UserError(f"{start_from} has another shape than the profile asks for: {found}, expected {shape}")
        model.load_state_dict(publish.read_weights(start_from, shape))
    model.to(device)

    if ranks.first and choices is None:
        choices = recipe.measure(model, stage.micro_batch * shape.context)
    choices = ranks.agree(choices)
    remarks = recipe.apply(model, choices)

    def compute(ids: Tensor, targets: Tensor) -> Tensor:
        return loss_sum(model, ids, targets)

    # One graph: where it broke, the fusions over the break would be lost, silently.
    graph = torch.compile(compute, dynamic=False, fullgraph=recipe.one_graph) if compiled else compute

    def step(ids: Tensor, targets: Tensor) -> Tensor:
        with recipe.context():
            return graph(ids, targets)

    # Orthogonalising in bf16 is as good, but makes runs on different numbers of ranks drift apart in the last digits.
    gpu = device.type == "cuda"
    state_dtype = recipe.compute if gpu else torch.float32
    optimizer = Optimizer(model, stage, ranks, recipe.compute, compiled and gpu, state_dtype)
    return Assembled(model, step, optimizer, recipe, attention, compiled, choices, tuple(remarks))


def be_deterministic() -> None:
    """Have torch add up in a fixed order. Compiled CPU code otherwise sums the embeddings' gradients by atomic
    additions, whose order changes from run to run: a run that is killed and goes on would end in other weights."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a guard against reading garbage, paid in every step


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile finds what it needs: Triton on a GPU, a C++ compiler on a CPU."""
    if device.type == "cuda":
        return True
    return shutil.which("g++") is not None or shutil.which("clang++") is not None
