"""From bf16 or float32 to fp8, in the layouts that fp8 products ask for.

The matrix units read both fp8 operands along the dimension that is summed. A product's input is summed over its columns
going forward and over its rows, the tokens, for the weight's gradient; so the weight's gradient wants it transposed.
These operators write all that is wanted of a tensor while they have it. Off a GPU the same in plain torch.
"""

import torch
from torch import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = {E4M3: 448.0, E5M2: 57344.0}


def to_fp8(x: Tensor, scale: Tensor | float, dtype: torch.dtype) -> Tensor:
    """x × scale, rounded to the nearest number of `dtype`; beyond its range the largest."""
    largest = LARGEST[dtype]
    return (x.float() * scale).clamp(-largest, largest).to(dtype)


@torch.library.custom_op("tandem::quantize", mutates_args=())
def quantize(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x (M, N), contiguous, in bf16, or float32 that is rounded to it first; scale () float32 ->
    x × scale in fp8, (M, N) and (N, M)."""
    rows, columns = _rows(x, dtype), _columns(x, dtype)
    quantize_into(x, scale, rows, columns)
    return rows, columns


@quantize.register_fake
def _(x, scale, dtype):
    return _rows(x, dtype), _columns(x, dtype)


def quantize_into(x: Tensor, scale: Tensor, rows: Tensor, columns: Tensor) -> None:
    """The same into given tensors; not for compiled code."""
    if not x.is_cuda:
        rows.copy_(to_fp8(x.bfloat16(), scale, rows.dtype))
        columns.copy_(rows.mT)
        return
    from model.kernels.quantize_triton import launch

    launch(x, scale, rows, columns, LARGEST[rows.dtype])


@torch.library.custom_op("tandem::relu2_backward_fp8", mutates_args=())
def relu2_backward(
    gradient: Tensor, a8: Tensor, unscale: Tensor, gradient_scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What the backward pass wants of a = relu(h)² in fp8: a's gradient (M, N) bf16 and a8 = a / unscale in E4M3 ->
    h's gradient × gradient_scale in E5M2, (M, N) and (N, M), and a8 (N, M).

    The derivative 2 relu(h) = 2 √a is taken from a8, so that h need not be kept, which has twice its bytes: rounded by
    3 % at most where E5M2 rounds the result by 12 %.
    """
    if not gradient.is_cuda:
        slope = 2 * (a8.float() * unscale).sqrt()
        rows = to_fp8((gradient.float() * slope).bfloat16(), gradient_scale, E5M2)
        return rows, rows.mT.contiguous(), a8.mT.contiguous()
    from model.kernels.quantize_triton import launch_relu2_backward

    out = _rows(a8, E5M2), _columns(a8, E5M2), _columns(a8, E4M3)
    launch_relu2_backward(gradient, a8, unscale, gradient_scale, *out, LARGEST[E5M2])
    return out


@relu2_backward.register_fake
def _(gradient, a8, unscale, gradient_scale):
    return _rows(a8, E5M2), _columns(a8, E5M2), _columns(a8, E4M3)


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
