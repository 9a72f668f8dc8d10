"""The optimizer of a run: which parameter is stepped how, with each rank stepping, and remembering, its share alone.

Parameters are grouped so that one call steps many: matrices of one shape form a stack (N, rows, columns) for Muon,
every other parameter is one flat vector for AdamW. A group is cut into equal chunks along its first dimension, one a
rank; the last chunks may be short or empty, so any vocabulary goes with any number of ranks. After the step the new
weights are gathered, so parameters are bit-identical on all ranks: each value was computed once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from training.config import TrainConfig
from training.distributed import Ranks
from training.optim.adamw import BETAS, EPSILON, VECTOR_EPSILON, adamw_step
from training.optim.muon import muon_step
from training.schedule import momentum


@dataclass(frozen=True)
class Piece:
    """Rows `start … stop` of a parameter: all of it, or one matrix of a fused projection."""

    parameter: nn.Parameter
    start: int
    stop: int

    def of(self, tensor: Tensor) -> Tensor:
        return tensor[self.start : self.stop]


@dataclass
class Group:
    """Pieces stepped together, and this rank's share of their optimizer state."""

    name: str
    kind: str  # muon or adamw
    ratio: float  # learning rate over the stage's
    pieces: list[Piece]
    state: dict[str, Tensor] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Size of the dimension that is cut into chunks."""
        return len(self.pieces) if self.kind == "muon" else self.pieces[0].parameter.numel()


def _matrices(name: str, parameter: nn.Parameter, model: nn.Module) -> list[Piece]:
    """The matrices in a parameter: queries, keys and values are three, whichever way they are stored."""
    if not name.endswith("attention.qkv.weight"):
        return [Piece(parameter, 0, len(parameter))]
    config = model.config
    ends = [config.heads * config.head_dim]
    for _ in range(2):
        ends.append(ends[-1] + config.kv_heads * config.head_dim)
    return [Piece(parameter, start, stop) for start, stop in zip([0, *ends], ends, strict=False)]


def groups_of(model: nn.Module, config: TrainConfig) -> list[Group]:
    """All parameters of a GPT in their groups, in an order that depends on the model alone."""
    stacks: dict[tuple[int, ...], list[Piece]] = {}
    groups: list[Group] = []
    for name, parameter in model.named_parameters():
        if name.startswith("blocks.") and not name.endswith("gate.weight"):
            for piece in _matrices(name, parameter, model):
                stacks.setdefault((piece.stop - piece.start, parameter.shape[1]), []).append(piece)
            continue
        ratio = next(
            value
            for prefix, value in (
                ("embedding", config.embedding_ratio),
                ("value_embeddings", config.value_embedding_ratio),
                ("head", config.head_ratio),
                ("", config.scalar_ratio),
            )
            if name.startswith(prefix)
        )
        groups.append(Group(name, "adamw", ratio, [Piece(parameter, 0, len(parameter))]))
    for shape, pieces in stacks.items():
        groups.append(Group(f"matrices_{shape[0]}x{shape[1]}", "muon", 1.0, pieces))
    return groups


class Optimizer:
    """Muon for the matrices of the blocks, AdamW for the rest, state sharded across ranks."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        ranks: Ranks,
        dtype: torch.dtype,
        compiled: bool = False,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        """`dtype` is what Muon orthogonalises in: bf16, or float32 where runs must agree to the last digits.

        `state_dtype` is what the large states are kept in: Muon's velocity, and AdamW's of the embedding tables. Their
        averages forget within some twenty updates, so what bf16 rounds off does not add up.
        """
        self.config, self.ranks, self.dtype, self.state_dtype = config, ranks, dtype, state_dtype
        self.groups = groups_of(model, config)
        self.steps = 0
        self._muon: Callable[..., Tensor] = torch.compile(muon_step, dynamic=False) if compiled else muon_step
        self._adamw: Callable[..., None] = torch.compile(adamw_step) if compiled else adamw_step
        for group in self.groups:
            self._allocate(group)

    def _allocate(self, group: Group) -> None:
        start, stop = self.ranks.share(group.length)
        first = group.pieces[0]
        device = first.parameter.device
        if group.kind == "adamw":
            table = group.name.startswith(("embedding", "value_embeddings"))
            dtype = self.state_dtype if table else torch.float32
            group.state = {key: torch.zeros(stop - start, device=device, dtype=dtype) for key in ("mean", "square")}
            return
        rows, columns = first.of(first.parameter).shape
        along = (rows, 1) if rows >= columns else (1, columns)
        group.state = {
            "velocity": torch.zeros(stop - start, rows, columns, device=device, dtype=self.state_dtype),
            "variance": torch.zeros(stop - start, *along, device=device),
        }

    @torch.no_grad()
    def step(self, scale: float, gradient_scale: float = 1.0) -> None:
        """Step every parameter at `scale` times its learning rate by `gradient_scale` times its gradient, which is the
        same on all ranks."""
        self.steps += 1
        for group in self.groups:
            start, stop = self.ranks.share(group.length)
            rate = group.ratio * self.config.learning_rate * scale
            self._step_group(group, start, stop, rate, scale, gradient_scale)

    def _step_group(
        self, group: Group, start: int, stop: int, rate: float, scale: float, gradient_scale: float
    ) -> None:
        def scalar(value: float) -> Tensor:
            # On the CPU, and an argument to kernels: a copy to a GPU would wait for all it has still to do.
            return torch.tensor(value, dtype=torch.float32)

        if group.kind == "muon":
            weights = torch.stack([piece.of(piece.parameter) for piece in group.pieces])
            if stop > start:
                mine = group.pieces[start:stop]
                gradients = torch.stack([piece.of(piece.parameter.grad) for piece in mine])
                weights[start:stop] = self._muon(
                    weights[start:stop],
                    gradients,
                    group.state["velocity"],
                    group.state["variance"],
                    scalar(rate),
                    scalar(momentum(self.steps - 1, self.config)),
                    scalar(self.config.weight_decay * scale),
                    scalar(gradient_scale),
                    self.dtype,
                )
            self.ranks.gather(weights)
            torch._foreach_copy_([piece.of(piece.parameter) for piece in group.pieces], list(weights.unbind()))
            return
        parameter = group.pieces[0].parameter
        weights = parameter.view(-1)
        if stop > start:
            corrections = tuple(scalar(1 - beta**self.steps) for beta in BETAS)
            self._adamw(
                weights[start:stop],
                parameter.grad.view(-1)[start:stop],
                group.state["mean"],
                group.state["square"],
                scalar(rate),
                corrections,
                scalar(gradient_scale),
                EPSILON if parameter.ndim > 1 else VECTOR_EPSILON,
            )
        self.ranks.gather(weights)

    def state(self) -> dict[str, Tensor]:
        """This rank's share of the state, by name; `training.checkpoint` knows how shares make the whole."""
        return {f"{group.name}.{key}": value for group in self.groups for key, value in group.state.items()}

    def lengths(self) -> dict[str, int]:
        """Full size along the first dimension of each tensor of `state`, over all ranks."""
        return {f"{group.name}.{key}": group.length for group in self.groups for key in group.state}
