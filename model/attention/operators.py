"""The flash-attention packages' kernels as custom operators: `tandem::<name>_forward` and `tandem::<name>_backward`.

A package's own function, called as it is, breaks the compiled graph in every layer (flash-attn-4 registers no operator
at all) or brings registrations that change from version to version. Here forward and backward of each are one operator
to the compiler, with shapes for tracing and the derivative registered. The packages are imported by the first call:
defining an operator needs none of them.

Shapes: q, out and their gradients (B, T, H, D), k and v (B, T, H_kv, D), lse (B, H, T) in float32: the logarithm of
each query's softmax denominator. Outputs and gradients are contiguous; inputs need only a contiguous last dimension.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import OpOverload

# forward: (q, k, v, left) -> (out, lse); `left` is how many keys before its own a query sees, None meaning all
Forward = Callable[[Tensor, Tensor, Tensor, int | None], tuple[Tensor, Tensor]]
# backward: ((q, k, v), out, lse, gradient, left, (dq, dk, dv)) writes the three gradients in place
Backward = Callable[[tuple[Tensor, ...], Tensor, Tensor, Tensor, int | None, tuple[Tensor, ...]], None]


def _left(window: int, length: int) -> int | None:
    """Keys before its own that a query sees: kernels count without it, `window` counts with it."""
    return None if window >= length else window - 1


def _fa4_forward(q: Tensor, k: Tensor, v: Tensor, left: int | None) -> tuple[Tensor, Tensor]:
    from flash_attn.cute.interface import _flash_attn_fwd

    # Later versions return more than out and lse, none of it needed here.
    out, lse, *_ = _flash_attn_fwd(q, k, v, causal=True, window_size_left=left, window_size_right=0, return_lse=True)
    return out, lse


def _fa4_backward(inputs, out, lse, gradient, left, results) -> None:
    from flash_attn.cute.interface import _flash_attn_bwd

    dq, dk, dv = results
    _flash_attn_bwd(
        *inputs,
        out,
        gradient,
        lse,
        causal=True,
        window_size_left=left,
        window_size_right=0,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        dq=dq,
        dk=dk,
        dv=dv,
    )


def _fa3_forward(q: Tensor, k: Tensor, v: Tensor, left: int | None) -> tuple[Tensor, Tensor]:
    from flash_attn_interface import _flash_attn_forward

    out, lse, *_ = _flash_attn_forward(
        q,
        k,
        v,
        softmax_scale=q.shape[-1] ** -0.5,
        causal=True,
        window_size_left=-1 if left is None else left,
        window_size_right=0,
    )
    return out, lse


def _fa3_backward(inputs, out, lse, gradient, left, results) -> None:
    from flash_attn_interface import _flash_attn_backward

    dq, dk, dv = results
    _flash_attn_backward(
        gradient,
        *inputs,
        out,
        lse,
        dq=dq,
        dk=dk,
        dv=dv,
        softmax_scale=out.shape[-1] ** -0.5,
        is_causal=True,
        window_size_left=-1 if left is None else left,
        window_size_right=0,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def _fa2_forward(q: Tensor, k: Tensor, v: Tensor, left: int | None) -> tuple[Tensor, Tensor]:
    from flash_attn.flash_attn_interface import _flash_attn_forward

    out, lse, *_ = _flash_attn_forward(
        q,
        k,
        v,
        dropout_p=0.0,
        softmax_scale=q.shape[-1] ** -0.5,
        causal=True,
        window_size_left=-1 if left is None else left,
        window_size_right=0,
        softcap=0.0,
        alibi_slopes=None,
        return_softmax=False,
    )
    return out, lse


def _fa2_backward(inputs, out, lse, gradient, left, results) -> None:
    from flash_attn.flash_attn_interface import _flash_attn_backward

    _flash_attn_backward(
        gradient,
        *inputs,
        out,
        lse,
        *results,
        dropout_p=0.0,
        softmax_scale=out.shape[-1] ** -0.5,
        causal=True,
        window_size_left=-1 if left is None else left,
        window_size_right=0,
        softcap=0.0,
        alibi_slopes=None,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def _contiguous(x: Tensor) -> Tensor:
    """Room for x's gradient, or for something of its shape, whatever x's strides."""
    return x.new_empty(x.shape)


def _operator(name: str, forward: Forward, backward: Backward) -> OpOverload:
    """Register a package's two kernels; returns the differentiable forward: (q, k, v, window) -> (out, lse)."""

    @torch.library.custom_op(f"tandem::{name}_forward", mutates_args=())
    def run_forward(q: Tensor, k: Tensor, v: Tensor, window: int) -> tuple[Tensor, Tensor]:
        out, lse = forward(q, k, v, _left(window, q.shape[1]))
        return out.contiguous(), lse  # a package may lay it out as q is

    @run_forward.register_fake
    def _(q: Tensor, k: Tensor, v: Tensor, window: int) -> tuple[Tensor, Tensor]:
        batch, length, heads, _ = q.shape
        return _contiguous(q), q.new_empty((batch, heads, length), dtype=torch.float32)

    @torch.library.custom_op(f"tandem::{name}_backward", mutates_args=())
    def run_backward(
        gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, window: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv = _contiguous(q), _contiguous(k), _contiguous(v)
        backward((q, k, v), out, lse, gradient, _left(window, q.shape[1]), (dq, dk, dv))
        return dq, dk, dv

    @run_backward.register_fake
    def _(
        gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, window: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _contiguous(q), _contiguous(k), _contiguous(v)

    def keep(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.window = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])

    def differentiate(ctx, gradient: Tensor, _lse: Tensor) -> tuple:
        return *run_backward(gradient, *ctx.saved_tensors, ctx.window), None

    run_forward.register_autograd(differentiate, setup_context=keep)
    return getattr(torch.ops.tandem, f"{name}_forward").default


FA4 = _operator("fa4", _fa4_forward, _fa4_backward)
FA3 = _operator("fa3", _fa3_forward, _fa3_backward)
FA2 = _operator("fa2", _fa2_forward, _fa2_backward)
