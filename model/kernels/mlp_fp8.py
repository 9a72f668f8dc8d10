"""The fp8 MLP's products with what stands between them done in their epilogues, by QuACK's kernels: no bf16 tensor of
four times the stream's width is written or read.

Hopper alone: elsewhere QuACK's tiles would have to be measured first. Imported lazily, trusted after a check. Off a GPU
the same in plain torch.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from model.kernels.quantize import E4M3, E5M2, to_fp8, transpose


@torch.library.custom_op("tandem::mlp_up_fp8", mutates_args=())
def up(x8: Tensor, rows: Tensor, alpha: Tensor) -> Tensor:
    """x8 (N, C) and rows (M, C) in E4M3, alpha () float32 -> relu(x8 rowsᵀ × alpha)² in E4M3 (N, M).

    alpha holds the products' scales and the square root of the result's.
    """
    if not x8.is_cuda:
        return _up(x8, rows, alpha)
    from model.kernels.mlp_fp8_quack import launch_up

    a8 = _room(x8, rows, E4M3)
    launch_up(x8, rows, alpha, a8)
    return a8


@up.register_fake
def _(x8, rows, alpha):
    return _room(x8, rows, E4M3)


@torch.library.custom_op("tandem::mlp_down_backward_fp8", mutates_args=())
def down_backward(dy8: Tensor, columns: Tensor, a8: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient dy8 (N, C) in E5M2 of a8 columns, columns (M, C) and a8 (N, M) in E4M3, beta () float32 ->
    dy8 columnsᵀ × beta × √a8 in E5M2, the gradient before the ReLU², (N, M) and (M, N), and a8 (M, N).

    The derivative is taken from a8, as in quantize.relu2_backward; beta holds all scales and the 2.
    """
    if not dy8.is_cuda:
        dh8 = _down_backward(dy8, columns, a8, beta)
        return dh8, transpose(dh8), transpose(a8)
    from model.kernels.mlp_fp8_quack import launch_down_backward

    dh8 = torch.empty_like(a8, dtype=E5M2)
    flipped = dh8.new_empty(a8.shape[::-1]), a8.new_empty(a8.shape[::-1])
    launch_down_backward(dy8, columns, a8, beta, dh8, *flipped)
    return dh8, *flipped


@down_backward.register_fake
def _(dy8, columns, a8, beta):
    return torch.empty_like(a8, dtype=E5M2), dy8.new_empty(a8.shape[::-1]), a8.new_empty(a8.shape[::-1])


def _room(x8: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(len(x8), len(rows), dtype=dtype, device=x8.device)


def _up(x8: Tensor, rows: Tensor, alpha: Tensor) -> Tensor:
    return to_fp8(F.relu(x8.float() @ rows.float().mT * alpha).square(), 1.0, E4M3)


def _down_backward(dy8: Tensor, columns: Tensor, a8: Tensor, beta: Tensor) -> Tensor:
    return to_fp8((dy8.float() @ columns.float().mT * beta) * a8.float().sqrt(), 1.0, E5M2)


def refuses(device: torch.device) -> str | None:
    """Why these kernels can't be used on a device, or None when they agree there with plain torch."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return "QuACK's fused fp8 products are used on Hopper GPUs alone"
    try:
        import model.kernels.mlp_fp8_quack  # noqa: F401

        return _disagreement(device)
    except (Exception, SystemExit) as error:
        text = str(error).strip().splitlines()
        return f"QuACK's fused fp8 products can't be used: {type(error).__name__}: {text[0] if text else ''}"


def _disagreement(device: torch.device) -> str | None:
    """What is wrong with the operators' results on a device. Some are large enough to be cut off."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((256, 256), (384, 256), (256, 256))
    x, weight, gradient = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
    x8, weight8, dy8 = to_fp8(x, 8.0, E4M3), to_fp8(weight, 8.0, E4M3), to_fp8(gradient, 64.0, E5M2)
    alpha, beta = torch.tensor(0.01, device=device), torch.tensor(0.5, device=device)
    a8 = _up(x8, weight8, alpha)
    dh8, dh_columns, a_columns = down_backward(dy8, weight8, a8, beta)
    expected = _down_backward(dy8, weight8, a8, beta)
    for name, ours, theirs in (
        ("ReLU²", up(x8, weight8, alpha), a8),
        ("its derivative", dh8, expected),
        ("its transpose", dh_columns, expected.mT),
        ("ReLU²'s transpose", a_columns, a8.mT),
    ):
        # A last digit that is rounded otherwise now and then makes up to 2 %.
        error = ((ours.float() - theirs.float()).norm() / theirs.float().norm()).item()
        if not error < 5e-2:
            return f"QuACK's fused fp8 products are wrong on this device: {name} is off by {error:.1e}"
    return None
