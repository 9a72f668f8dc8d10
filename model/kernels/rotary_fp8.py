"""The gradient of model.kernels.rotary in fp8, in both layouts that the products behind it ask for."""

import torch
from torch import Tensor

from model.kernels.quantize import E5M2, LARGEST, to_fp8
from model.kernels.rotary import rotary_backward


@torch.library.custom_op("tandem::rotary_backward_fp8", mutates_args=())
def rotary_backward_fp8(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    q: Tensor,
    k: Tensor,
    inverse: Tensor,
    cos: Tensor,
    sin: Tensor,
    gradient_scale: Tensor,
) -> tuple[Tensor, Tensor]:
    """What rotary_backward returns × gradient_scale in E5M2: (N, K) and (K, N), with N = B × T tokens and
    K = (H + 2 H_kv) × D."""
    tokens, width = q.shape[0] * q.shape[1], (q.shape[2] + 2 * k.shape[2]) * q.shape[3]
    if not q.is_cuda:
        gradient = rotary_backward(dq, dk, dv, q, k, inverse, cos, sin)
        rows = to_fp8(gradient.view(tokens, width), gradient_scale, E5M2)
        return rows, rows.mT.contiguous()
    from model.kernels.rotary_triton import launch_backward_fp8

    rows, columns = (torch.empty(*shape, dtype=E5M2, device=q.device) for shape in ((tokens, width), (width, tokens)))
    launch_backward_fp8(dq, dk, dv, q, k, inverse, cos, sin, gradient_scale, rows, columns, LARGEST[E5M2])
    return rows, columns


@rotary_backward_fp8.register_fake
def _(dq, dk, dv, q, k, inverse, cos, sin, gradient_scale):
    tokens, width = q.shape[0] * q.shape[1], (q.shape[2] + 2 * k.shape[2]) * q.shape[3]
    return q.new_empty(tokens, width, dtype=E5M2), q.new_empty(width, tokens, dtype=E5M2)
