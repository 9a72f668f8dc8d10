"""The MLP's bf16 products with ReLU² done in their epilogues, by QuACK's kernels (the package quack-kernels, which
flash-attn-4 brings along): passes over tensors of four times the stream's width, saved each way.

Hopper alone: elsewhere QuACK's tiles would have to be measured first. Imported lazily, trusted after a check.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from model.kernels.relu2 import relu2_backward


@torch.library.custom_op("tandem::mlp_up", mutates_args=())
def up(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x (N, C) and weight (M, C) in bf16 -> h = x weightᵀ and relu(h)², both (N, M)."""
    if not x.is_cuda:
        h = x @ weight.mT
        return h, F.relu(h).square()
    from quack.gemm_interface import gemm_act

    h, a = _room(x, weight), _room(x, weight)
    gemm_act(x, weight.mT, activation="relu_sq", preact_out=h, postact_out=a, config=_tiles())
    return h, a


@up.register_fake
def _(x, weight):
    return _room(x, weight), _room(x, weight)


@torch.library.custom_op("tandem::mlp_down_backward", mutates_args=())
def down_backward(gradient: Tensor, weight: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient (N, C) of a weightᵀ, with a = relu(h)² and weight (C, M) -> h's gradient and a, both (N, M)."""
    if not gradient.is_cuda:
        return relu2_backward(gradient @ weight, h)
    from quack.gemm_interface import gemm_dact

    d_h, a = torch.empty_like(h), torch.empty_like(h)
    gemm_dact(gradient, weight, h, activation="relu_sq", dx_out=d_h, postact_out=a, config=_tiles())
    return d_h, a


@down_backward.register_fake
def _(gradient, weight, h):
    return torch.empty_like(h), torch.empty_like(h)


def _room(x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)


def _tiles():
    """The fastest of five for 65,536 rows and 1280 × 5120 on an H200 (docs/speed.md), for both products."""
    from quack.gemm_config import GemmConfig

    return GemmConfig(
        tile_m=128,
        tile_n=192,
        pingpong=True,
        cluster_m=2,
        cluster_n=1,
        is_dynamic_persistent=False,
        device_capacity=9,
    )


def refuses(device: torch.device) -> str | None:
    """Why these kernels can't be used on a device, or None when they agree there with plain torch."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return "QuACK's fused products are used on Hopper GPUs alone"
    try:
        error = _error(device)
    except (Exception, SystemExit) as error:  # a package that is absent or broken may raise anything
        text = str(error).strip().splitlines()
        return f"QuACK's fused products can't be used: {type(error).__name__}: {text[0] if text else ''}"
    return None if error < 2e-2 else f"QuACK's fused products are wrong on this device: off by {error:.1e}"


def _error(device: torch.device) -> float:
    """How far the kernels are from plain torch, in a small trial of both."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((256, 128), (384, 128), (256, 128))
    x, weight, gradient = (torch.randn(s, generator=generator).to(device, torch.bfloat16) for s in shapes)
    h, a = up(x, weight)
    found = (h, a, *down_backward(gradient, weight.mT.contiguous(), h))
    exact = x @ weight.mT
    expected = (exact, F.relu(exact).square(), *relu2_backward(gradient @ weight.mT, exact))
    pairs = [(ours.float(), theirs.float()) for ours, theirs in zip(found, expected, strict=True)]
    worst = torch.stack([(ours - theirs).norm() / theirs.norm() for ours, theirs in pairs]).max().item()
    return worst if worst == worst else float("inf")  # not a number is as wrong as can be
