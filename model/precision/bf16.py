"""bf16: products and embedding rows in bfloat16, of copies cast once an update; weights' gradients float32."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.kernels import mlp
from model.kernels.relu2 import relu2_backward
from model.linear import Format, Linear


def weight_gradient(gradient: Tensor, x: Tensor, parts: int = 1) -> Tensor:
    """gradient (…, N), x (…, K) in bf16 -> gradientᵀ x (N, K) in float32, accumulated so where the device can.

    `parts`: multiply the rows in so many parts and add those up. Where the result has few more tiles than the GPU has
    multiprocessors, the last of them keep few busy; parts have as many times the tiles, and waste as much less.
    """
    gradient, x = gradient.flatten(0, -2), x.flatten(0, -2)
    if not gradient.is_cuda:
        return torch.mm(gradient.mT, x).float()
    if parts == 1 or len(x) % parts:
        return torch.mm(gradient.mT, x, out_dtype=torch.float32)
    gradient, x = gradient.unflatten(0, (parts, -1)), x.unflatten(0, (parts, -1))
    return torch.bmm(gradient.mT, x, out_dtype=torch.float32).sum(0)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, copy: Tensor, parts: int) -> Tensor:
        """x (…, K) and copy (N, K) in bf16; `weight` is there for its gradient."""
        ctx.parts = parts
        ctx.save_for_backward(x, copy)
        return F.linear(x, copy)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, copy = ctx.saved_tensors
        return gradient @ copy, weight_gradient(gradient, x, ctx.parts), None, None


class _Copied(Format):
    """A format that computes with a bf16 copy of the weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("copy", torch.empty_like(weight, dtype=torch.bfloat16), persistent=False)

    def refresh(self, weight: Tensor) -> None:
        self.copy.copy_(weight)

    @classmethod
    def refresh_all(cls, formats: list[Format], weights: list[Tensor]) -> None:
        torch._foreach_copy_([form.copy for form in formats], weights)


class Bf16(_Copied):
    """A product in bf16; `parts`: in how many the weight's gradient is summed."""

    def __init__(self, weight: Tensor, parts: int = 1) -> None:
        super().__init__(weight)
        self.parts = parts

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return _Product.apply(x.to(torch.bfloat16), weight, self.copy, self.parts)

    def infer(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x.to(torch.bfloat16), self.copy)


def table_gradient(ids: Tensor, gradient: Tensor, rows: int) -> Tensor:
    """ids (…), gradient (…, width) -> (rows, width) in float32: in bf16 the rows of frequent tokens would lose most of
    their addends."""
    table = gradient.new_zeros(rows, gradient.shape[-1], dtype=torch.float32)
    return table.index_put((ids.flatten(),), gradient.flatten(0, -2).float(), accumulate=True)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ids: Tensor, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows = len(weight)
        return F.embedding(ids, copy)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[None, Tensor, None]:
        (ids,) = ctx.saved_tensors
        return None, table_gradient(ids, gradient, ctx.rows), None


class _ScaledLookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ids: Tensor, weight: Tensor, copy: Tensor, factors: Tensor) -> Tensor:
        ctx.save_for_backward(ids, copy, factors)
        return factors.unsqueeze(-1) * F.embedding(ids, copy).unflatten(-1, (factors.shape[-1], -1))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[None, Tensor, None, Tensor]:
        ids, copy, factors = ctx.saved_tensors
        # The same rows by another operator: the compiler would take a second lookup for the first one's result, and
        # keep that.
        rows = copy[ids].unflatten(-1, (factors.shape[-1], -1))
        by_factor = (gradient.float() * rows).sum(-1).to(factors.dtype)
        return None, table_gradient(ids, (gradient * factors.unsqueeze(-1)).flatten(-2), len(copy)), None, by_factor


class Bf16Rows(_Copied):
    """An embedding that reads its rows from a bf16 copy: half the bytes, and a bf16 residual stream."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """x: ids (…) -> rows (…, width)."""
        return _Lookup.apply(x, weight, self.copy)

    def infer(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.embedding(x, self.copy)

    def scaled(self, ids: Tensor, weight: Tensor, factors: Tensor) -> Tensor:
        return _ScaledLookup.apply(ids, weight, self.copy, factors)


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, up_weight, down_weight, up, down, parts, epilogues):
        """x (N, C), up (M, C) and down (C, M) in bf16; the weights are there for their gradients. `parts`: of up, of
        down."""
        if epilogues:
            h, a = mlp.up(x, up)
        else:
            h = F.linear(x, up)
            a = F.relu(h).square()
        ctx.parts, ctx.epilogues = parts, epilogues
        ctx.save_for_backward(x, h, up, down)
        return F.linear(a, down)

    @staticmethod
    def backward(ctx, gradient):
        x, h, up, down = ctx.saved_tensors
        if ctx.epilogues:
            d_h, a = mlp.down_backward(gradient, down, h)
        else:
            d_h, a = relu2_backward(gradient @ down, h)
        up_parts, down_parts = ctx.parts
        d_up, d_down = weight_gradient(d_h, x, up_parts), weight_gradient(gradient, a, down_parts)
        return d_h @ up, d_up, d_down, None, None, None, None


class Bf16Mlp(nn.Module):
    """Both products of an MLP and the ReLU² between them, whose result is not kept for the backward pass: at four times
    the width of the stream it would be a quarter of all that is kept."""

    def __init__(self, epilogues: bool = False) -> None:
        """`epilogues`: ReLU² within the products' kernels, see model.kernels.mlp."""
        super().__init__()
        self.epilogues = epilogues

    def forward(self, x: Tensor, up: Linear, down: Linear) -> Tensor:
        """x (…, C) -> (…, C), the formats of up and down are Bf16."""
        flat = x.to(torch.bfloat16).flatten(0, -2)
        parts = up.format.parts, down.format.parts
        y = _Mlp.apply(flat, up.weight, down.weight, up.format.copy, down.format.copy, parts, self.epilogues)
        return y.view(x.shape)
