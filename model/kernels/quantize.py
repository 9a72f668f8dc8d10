"""From bf16 or float32 to fp8, in the layouts that fp8 products ask for.

The matrix units read both fp8 operands along the dimension that is summed. A product's input is summed over its columns
going forward and over its rows, the tokens, for the weight's gradient; so the weight's gradient wants it transposed.
These operators write all that is wanted of a tensor while they have it. Off a GPU the same in plain torch.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = {E4M3: 448.0, E5M2: 57344.0}


def to_fp8(x: Tensor, scale: Tensor | float, dtype: torch.dtype) -> Tensor:
    """x × scale, rounded to the nearest number of `dtype`; beyond its range the largest."""
    largest = LARGEST[dtype]
    return (x.float() * scale).clamp(-largest, largest).to(dtype)


@torch.library.custom_op("tandem::quantize", mutates_args=())
def quantize(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x (M, N), contiguous, in bf16 or float32; scale () float32 -> x × scale in fp8, (M, N) and (N, M)."""
    if not x.is_cuda:
        rows = to_fp8(x, scale, dtype)
        return rows, rows.mT.contiguous()
    from model.kernels.quantize_triton import launch

    rows, columns = _rows(x, dtype), _columns(x, dtype)
    launch(x, scale, rows, columns)
    return rows, columns


@quantize.register_fake
def _(x, scale, dtype):
    return _rows(x, dtype), _columns(x, dtype)


@torch.library.custom_op("tandem::relu2_backward_fp8", mutates_args=())
def relu2_backward(
    gradient: Tensor, h: Tensor, gradient_scale: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What the backward pass wants of a = relu(h)² in fp8, given a's gradient; both (M, N) in bf16, contiguous.

    Returns h's gradient × gradient_scale in E5M2, (M, N) and (N, M), and a × scale in E4M3, (N, M): made again from h,
    which is kept anyway, rather than kept since the forward pass.
    """
    if not gradient.is_cuda:
        positive = F.relu(h.float())
        rows = to_fp8(gradient.float() * 2 * positive, gradient_scale, E5M2)
        return rows, rows.mT.contiguous(), to_fp8(positive.square(), scale, E4M3).mT.contiguous()
    from model.kernels.quantize_triton import launch_relu2_backward

    out = _rows(h, E5M2), _columns(h, E5M2), _columns(h, E4M3)
    launch_relu2_backward(gradient, h, gradient_scale, scale, *out)
    return out


@relu2_backward.register_fake
def _(gradient, h, gradient_scale, scale):
    return _rows(h, E5M2), _columns(h, E5M2), _columns(h, E4M3)


@torch.library.custom_op("tandem::transpose", mutates_args=())
def transpose(x: Tensor) -> Tensor:
    """x (M, N) of one-byte elements, contiguous -> its transpose (N, M), contiguous."""
    if not x.is_cuda:
        return x.mT.contiguous()
    from model.kernels.quantize_triton import launch_transpose

    out = _columns(x, x.dtype)
    launch_transpose(x.view(torch.uint8), out.view(torch.uint8))
    return out


@transpose.register_fake
def _(x):
    return _columns(x, x.dtype)


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def _columns(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.shape[::-1], dtype=dtype, device=x.device)
