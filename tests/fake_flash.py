"""Stand-ins for the flash-attention packages: their functions' signatures, as the real ones have them, over attention
written out on any device."""

import math

import torch

from model.attention.protocol import causal_mask


class Kernels:
    """Forward and backward as the papers write them, with the row sums that a flash kernel hands from one to the other;
    `strides` keeps how each forward's v lay in memory, `deterministic` what each backward was told."""

    def __init__(self) -> None:
        self.strides: list[tuple[int, ...]] = []
        self.deterministic: list[bool] = []

    def forward(self, q, k, v, left: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        assert all(x.stride(-1) == 1 for x in (q, k, v))
        self.strides.append(v.stride())
        scores, v = self.scores(q, k, left), self.spread(v, q)
        out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.float()).to(q.dtype)
        return out, scores.logsumexp(-1)

    def backward(self, q, k, v, out, gradient, lse, left: int | None, deterministic: bool, results) -> None:
        self.deterministic.append(deterministic)
        assert lse.dtype == torch.float32 and lse.shape == (q.shape[0], q.shape[2], q.shape[1])
        weights = (self.scores(q, k, left) - lse[..., None]).exp()
        many_k, many_v = (self.spread(x, q).float() for x in (k, v))
        gradient = gradient.float()
        dv = torch.einsum("bhqk,bqhd->bkhd", weights, gradient)
        rows = (gradient * out.float()).sum(-1).transpose(1, 2)[..., None]
        dscores = weights * (torch.einsum("bqhd,bkhd->bhqk", gradient, many_v) - rows) / math.sqrt(q.shape[-1])
        dq = torch.einsum("bhqk,bkhd->bqhd", dscores, many_k)
        dk = torch.einsum("bhqk,bqhd->bkhd", dscores, q.float())
        for into, values in zip(results, (dq, dk, dv), strict=True):
            groups = values.shape[2] // into.shape[2]
            into.copy_(values.unflatten(2, (into.shape[2], groups)).sum(3))

    def scores(self, q, k, left: int | None) -> torch.Tensor:
        scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), self.spread(k, q).float()) / math.sqrt(q.shape[-1])
        window = k.shape[1] if left is None else left + 1
        return scores.masked_fill(~causal_mask(q.shape[1], k.shape[1], window, q.device), -math.inf)

    def spread(self, x, q) -> torch.Tensor:
        return x.repeat_interleave(q.shape[2] // x.shape[2], dim=2)


def fa4_functions(kernels: Kernels) -> dict:
    def _flash_attn_fwd(q, k, v, softmax_scale=None, causal=False, window_size_left=None, window_size_right=None,
                        return_lse=False):  # fmt: skip
        assert causal and window_size_right == 0 and return_lse and softmax_scale is None
        return *kernels.forward(q, k, v, window_size_left), None, None, None

    def _flash_attn_bwd(q, k, v, out, dout, lse, softmax_scale=None, causal=False, softcap=0.0, window_size_left=None,
                        window_size_right=None, deterministic=False, dq=None, dk=None, dv=None):  # fmt: skip
        assert causal and window_size_right == 0 and softmax_scale is None
        kernels.backward(q, k, v, out, dout, lse, window_size_left, deterministic, (dq, dk, dv))
        return dq, dk, dv

    return {"_flash_attn_fwd": _flash_attn_fwd, "_flash_attn_bwd": _flash_attn_bwd}


def fa3_functions(kernels: Kernels) -> dict:
    def _flash_attn_forward(q, k, v, k_new=None, softmax_scale=None, causal=False, window_size_left=-1,
                            window_size_right=-1):  # fmt: skip
        assert causal and window_size_right == 0 and softmax_scale == q.shape[-1] ** -0.5
        none = torch.tensor([])
        return *kernels.forward(q, k, v, None if window_size_left == -1 else window_size_left), none, none

    def _flash_attn_backward(dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, dq=None, dk=None, dv=None,
                             softmax_scale=None, is_causal=False, window_size_left=-1, window_size_right=-1,
                             deterministic=False):  # fmt: skip
        assert is_causal and window_size_right == 0 and softmax_scale == q.shape[-1] ** -0.5
        left = None if window_size_left == -1 else window_size_left
        kernels.backward(q, k, v, out, dout, softmax_lse, left, deterministic, (dq, dk, dv))
        return torch.tensor([])

    return {"_flash_attn_forward": _flash_attn_forward, "_flash_attn_backward": _flash_attn_backward}


def fa2_functions(kernels: Kernels) -> dict:
    def _flash_attn_forward(q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap,
                            alibi_slopes, return_softmax):  # fmt: skip
        assert (dropout_p, causal, window_size_right, softcap, alibi_slopes) == (0, True, 0, 0, None)
        none = torch.tensor([])
        return *kernels.forward(q, k, v, None if window_size_left == -1 else window_size_left), none, none

    def _flash_attn_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal,
                             window_size_left, window_size_right, softcap, alibi_slopes, deterministic,
                             rng_state=None):  # fmt: skip
        assert (dropout_p, causal, window_size_right, softcap, alibi_slopes) == (0, True, 0, 0, None)
        left = None if window_size_left == -1 else window_size_left
        kernels.backward(q, k, v, out, dout, softmax_lse, left, deterministic, (dq, dk, dv))
        return torch.tensor([])

    return {"_flash_attn_forward": _flash_attn_forward, "_flash_attn_backward": _flash_attn_backward}
