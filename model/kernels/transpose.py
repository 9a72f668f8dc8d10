"""Transposed copies of matrices of single bytes: fp8 products read both operands along the summed dimension, so the
weight's gradient, summed over tokens, needs its operands transposed."""

import torch
from torch import Tensor


@torch.library.custom_op("tandem::transpose", mutates_args=())
def transpose(x: Tensor) -> Tensor:
    """x (M, N) of one-byte elements, contiguous -> its transpose (N, M), contiguous."""
    if not x.is_cuda:
        return x.mT.contiguous()
    from model.kernels.transpose_triton import launch

    out = torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device)
    launch(x.view(torch.uint8), out.view(torch.uint8))
    return out


@transpose.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device)
