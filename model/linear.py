"""A matrix product whose number format is chosen by a precision recipe, and what such a format has to offer."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Format(nn.Module):
    """How one Linear multiplies while it trains. Each Linear has an instance of its own.

    What it keeps of the weight, cast or quantised, is made in `refresh` once an update, not in every micro-batch, and
    lies in non-persistent buffers: published weights know nothing of it.
    """

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """x (…, K), weight (N, K) float32 -> (…, N), differentiable in both; the weight's gradient is float32."""
        raise NotImplementedError

    def infer(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product without gradients, in bf16: evaluation during training does not depend on the format."""
        return F.linear(x.to(torch.bfloat16), weight.to(torch.bfloat16))

    def refresh(self, weight: Tensor) -> None:
        """Take over the weight as it now is: called at the start and after each update."""

    @classmethod
    def refresh_all(cls, formats: "list[Format]", weights: list[Tensor]) -> None:
        """The same for all formats of this class at once, where that takes fewer kernels."""
        for form, weight in zip(formats, weights, strict=True):
            form.refresh(weight)

    def state(self) -> dict[str, Tensor]:
        """What a resumed run needs besides the weights, by name: tensors that a checkpoint fills in place."""
        return {}


@runtime_checkable
class Scaling(Protocol):
    """A format of embeddings that can multiply the rows it looks up without keeping them for the backward pass."""

    def scaled(self, ids: Tensor, weight: Tensor, factors: Tensor) -> Tensor:
        """See Embedding.scaled."""
        ...


@runtime_checkable
class Formatted(Protocol):
    """A module with a float32 master `weight` and, under a recipe, a `format` that computes with it."""

    weight: nn.Parameter
    format: Format | None


class Linear(nn.Module):
    """y = x Wᵀ without bias; W (outputs, inputs) is the float32 master that the optimizer steps."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.format: Format | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return tuple(self.weight.shape)

    def forward(self, x: Tensor) -> Tensor:
        """x (…, inputs) -> (…, outputs), in the format's dtype; without a format in the weight's."""
        if self.format is None:
            return F.linear(x.to(self.weight.dtype), self.weight)
        return self.format(x, self.weight) if torch.is_grad_enabled() else self.format.infer(x, self.weight)


class Embedding(nn.Module):
    """A table of learnt rows; W (rows, width) is the float32 master that the optimizer steps."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        self.format: Format | None = None

    def forward(self, ids: Tensor) -> Tensor:
        """ids (…) -> (…, width)."""
        if self.format is None:
            return F.embedding(ids, self.weight)
        return self.format(ids, self.weight) if torch.is_grad_enabled() else self.format.infer(ids, self.weight)

    def scaled(self, ids: Tensor, factors: Tensor) -> Tensor:
        """ids (…), factors (…, H) -> (…, H, width / H): rows cut into H parts, each times its factor."""
        if isinstance(self.format, Scaling) and torch.is_grad_enabled():
            return self.format.scaled(ids, self.weight, factors)
        return factors.unsqueeze(-1) * self(ids).unflatten(-1, (factors.shape[-1], -1))


def formatted(model: nn.Module) -> dict[str, Formatted]:
    """The modules of a model that a recipe gave a format, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Linear | Embedding) and module.format is not None
    }


@torch.no_grad()
def refresh(model: nn.Module) -> None:
    """Have all formats take over the weights as they now are: after an update, or after weights were loaded."""
    groups: dict[type[Format], list[Formatted]] = {}
    for module in formatted(model).values():
        groups.setdefault(type(module.format), []).append(module)
    for kind, modules in groups.items():
        kind.refresh_all([module.format for module in modules], [module.weight for module in modules])


def format_state(model: nn.Module) -> dict[str, Tensor]:
    """What the formats need to be resumed exactly, by name."""
    return {
        f"{name}.{key}": tensor
        for name, module in formatted(model).items()
        for key, tensor in module.format.state().items()
    }
