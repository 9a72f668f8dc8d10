"""bf16: products and embedding rows in bfloat16, of copies cast once an update; weights' gradients float32."""

import torch
from torch import Tensor
from torch.nn import functional as F

from model.linear import Format


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """gradient (…, N), x (…, K) in bf16 -> gradientᵀ x (N, K) in float32, accumulated so where the device can."""
    gradient, x = gradient.flatten(0, -2), x.flatten(0, -2)
    if gradient.is_cuda:
        return torch.mm(gradient.mT, x, out_dtype=torch.float32)
    return torch.mm(gradient.mT, x).float()


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, copy: Tensor) -> Tensor:
        """x (…, K) and copy (N, K) in bf16; `weight` is there for its gradient."""
        ctx.save_for_backward(x, copy)
        return F.linear(x, copy)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, copy = ctx.saved_tensors
        return gradient @ copy, weight_gradient(gradient, x), None


class Bf16(Format):
    """A product in bf16."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("copy", torch.empty_like(weight, dtype=torch.bfloat16), persistent=False)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return _Product.apply(x.to(torch.bfloat16), weight, self.copy)

    def infer(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x.to(torch.bfloat16), self.copy)

    def refresh(self, weight: Tensor) -> None:
        self.copy.copy_(weight)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ids: Tensor, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows = len(weight)
        return F.embedding(ids, copy)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[None, Tensor, None]:
        (ids,) = ctx.saved_tensors
        # Summed in float32: in bf16 the rows of frequent tokens would lose most of their addends.
        table = gradient.new_zeros(ctx.rows, gradient.shape[-1], dtype=torch.float32)
        return None, table.index_put((ids.flatten(),), gradient.flatten(0, -2).float(), accumulate=True), None


class Bf16Rows(Format):
    """An embedding that reads its rows from a bf16 copy: half the bytes, and a bf16 residual stream."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("copy", torch.empty_like(weight, dtype=torch.bfloat16), persistent=False)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """x: ids (…) -> rows (…, width)."""
        return _Lookup.apply(x, weight, self.copy)

    def infer(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.embedding(x, self.copy)

    def refresh(self, weight: Tensor) -> None:
        self.copy.copy_(weight)
