"""Backends that torch brings: scaled_dot_product_attention, cuDNN through it, varlen, FlexAttention, plain matmuls."""

import inspect
from collections.abc import Callable
from functools import cached_property, lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from model.attention.protocol import Request, causal_mask, kernel_refuses

NO_WINDOW = (
    "has no sliding window of its own, and a masked one runs at a fraction of the speed: "
    "set model.attention to varlen or flex, or model.window_pattern to L"
)


class Sdpa:
    """torch's scaled_dot_product_attention: everywhere, but a window needs a mask, which is slow on a GPU."""

    name = "sdpa"

    def refuses(self, request: Request) -> str | None:
        return NO_WINDOW if request.windowed and request.device.type == "cuda" else None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        length = q.shape[1]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        grouped = q.shape[1] != k.shape[1]
        if window >= length:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        else:
            mask = causal_mask(length, length, window, q.device)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
        return out.transpose(1, 2)


class Cudnn:
    """cuDNN's flash attention, as torch's scaled_dot_product_attention calls it. cuDNN itself knows sliding windows,
    but torch has no argument for one."""

    name = "cudnn"

    def refuses(self, request: Request) -> str | None:
        return kernel_refuses(request, 128) or (NO_WINDOW if request.windowed else None)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        if window < q.shape[1]:
            raise ValueError(f"cudnn attends to all earlier positions, was asked for the last {window} of {q.shape[1]}")
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        grouped = q.shape[1] != k.shape[1]
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped).transpose(1, 2)


class Varlen:
    """torch's varlen_attn (FlashAttention 2 inside, a custom operator to the compiler): native windows, grouped heads.
    Rows of equal length lie flat in memory, so that flattening (B, T) copies nothing, views into fused QKV included."""

    name = "varlen"

    def refuses(self, request: Request) -> str | None:
        return kernel_refuses(request, 256)

    @cached_property
    def _grouped(self) -> dict[str, bool]:
        """torch 2.11 takes fewer key-value heads as they come, later versions want to be told."""
        from torch.nn.attention.varlen import varlen_attn

        return {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn  # not at the top: it takes a second to import

        batch, length, heads, dim = q.shape
        starts = torch.arange(0, (batch + 1) * length, length, device=q.device, dtype=torch.int32)
        flat = (x.flatten(0, 1) for x in (q, k, v))
        left = -1 if window >= length else window - 1
        grouped = self._grouped if heads != k.shape[2] else {}
        out = varlen_attn(*flat, starts, starts, length, length, window_size=(left, 0), **grouped)
        return out.view(batch, length, heads, dim)


class Flex:
    """torch's FlexAttention (arXiv 2412.05496): native windows as block masks; has to be compiled, and fails backward
    above head size 128 on GPUs with little shared memory."""

    name = "flex"

    def refuses(self, request: Request) -> str | None:
        if request.device.type != "cuda" and request.training:
            return "needs a CUDA GPU to train"
        if request.head_dim & (request.head_dim - 1):
            return f"needs a head size that is a power of two, found {request.head_dim}"
        if request.head_dim > 128 and request.family == "sm_12":
            return f"fails backward at head size {request.head_dim} on {request.architecture}: too little shared memory"
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        grouped = q.shape[2] != k.shape[2]
        length, device = q.shape[1], q.device
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if torch.compiler.is_compiling():  # the mask becomes a few small kernels of the graph, once for each window
            out = flex_attention(q, k, v, block_mask=_block_mask(length, window, device), enable_gqa=grouped)
        else:
            mask = _cached_block_mask(length, window, device)
            out = _compiled(flex_attention)(q, k, v, block_mask=mask, enable_gqa=grouped)
        return out.transpose(1, 2)


def _block_mask(length: int, window: int, device: torch.device):
    from torch.nn.attention.flex_attention import create_block_mask

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key > query - window)

    return create_block_mask(visible, None, None, length, length, device=device)


_cached_block_mask = lru_cache(maxsize=16)(_block_mask)


@lru_cache(maxsize=2)
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # fullgraph: after too many lengths and windows it raises, instead of going on uncompiled at a tenth of the speed.
    return torch.compile(function, dynamic=False, fullgraph=True)


class Matmul:
    """Attention as plain matrix products over blocks of queries, for CPUs under torch.compile: bf16 products go to the
    processor's matrix instructions, which its flash attention does not use, and blocks skip what a window hides.
    Forward and backward took 0.4 of sdpa's time at B 16, T 256, H 2, D 64 on one core (bench/attention)."""

    name = "matmul"
    block = 128  # queries at once

    def refuses(self, request: Request) -> str | None:
        if request.device.type != "cpu":
            return "is made for CPUs"
        if not request.compiled:
            return "is slower than sdpa without torch.compile"
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        batch, length, heads, dim = q.shape
        groups = heads // k.shape[2]
        if groups > 1:
            k, v = (x.repeat_interleave(groups, dim=2) for x in (k, v))
        q, k, v = (x.transpose(1, 2).reshape(batch * heads, length, dim) for x in (q, k, v))
        outs = []
        for start in range(0, length, self.block):
            stop = min(length, start + self.block)
            first = max(0, start - window + 1)  # the earliest key that any query of the block sees
            mask = causal_mask(stop - start, stop - first, window, q.device)
            scores = torch.bmm(q[:, start:stop] * dim**-0.5, k[:, first:stop].mT).float()
            weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
            outs.append(torch.bmm(weights.to(v.dtype), v[:, first:stop]))
        return torch.cat(outs, dim=1).view(batch, heads, length, dim).transpose(1, 2)
