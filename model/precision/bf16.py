"""bf16: products and embedding rows in bfloat16, of copies cast once an update; weights' gradients float32."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.kernels import mlp
from model.kernels.relu2 import relu2_backward
from model.linear import Format, Linear


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
    """A product in bf16."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return _Product.apply(x.to(torch.bfloat16), weight, self.copy)

    def infer(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x.to(torch.bfloat16), self.copy)


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


class Bf16Rows(_Copied):
    """An embedding that reads its rows from a bf16 copy: half the bytes, and a bf16 residual stream."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """x: ids (…) -> rows (…, width)."""
        return _Lookup.apply(x, weight, self.copy)

    def infer(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.embedding(x, self.copy)


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, up_weight, down_weight, up, down, epilogues):
        """x (N, C), up (M, C) and down (C, M) in bf16; the weights are there for their gradients."""
        if epilogues:
            h, a = mlp.up(x, up)
        else:
            h = F.linear(x, up)
            a = F.relu(h).square()
        ctx.epilogues = epilogues
        ctx.save_for_backward(x, h, up, down)
        return F.linear(a, down)

    @staticmethod
    def backward(ctx, gradient):
        x, h, up, down = ctx.saved_tensors
        if ctx.epilogues:
            d_h, a = mlp.down_backward(gradient, down, h)
        else:
            d_h, a = relu2_backward(gradient @ down, h)
        return d_h @ up, weight_gradient(d_h, x), weight_gradient(gradient, a), None, None, None


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
        y = _Mlp.apply(flat, up.weight, down.weight, up.format.copy, down.format.copy, self.epilogues)
        return y.view(x.shape)
