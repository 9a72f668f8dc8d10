"""Attention backends: each says what it supports, and why not; each attends the same way.

An `Attend` takes q (B, T, H, D), k and v (B, T, H_kv, D) and a window (tokens a position may look back over,
itself included; at least T means all) and returns (B, T, H, D): causal softmax attention scaled by D^-0.5.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

Attend = Callable[[Tensor, Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Request:
    """What a run asks of its attention."""

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    grouped: bool  # fewer key-value heads than heads
    windowed: bool  # some layer looks back over less than the context
    compiled: bool = False  # the step goes through torch.compile

    @property
    def architecture(self) -> str:
        """`cpu`, or a GPU's compute capability as in `sm_90`."""
        if self.device.type != "cuda":
            return self.device.type
        major, minor = torch.cuda.get_device_capability(self.device)
        return f"sm_{major}{minor}"


class Backend(Protocol):
    """One implementation of attention."""

    name: str

    def refuses(self, request: Request) -> str | None:
        """The reason why this backend can't serve the request, or None when it can."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        """See the module's docstring."""


def causal_mask(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """(queries, keys) booleans: the last query sits on the last key; each sees itself and `window` - 1 before it."""
    at = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)[None, :]
    return (key <= at) & (key > at - window)


def reference(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Attention in float32, written out: what every backend is held against. Shapes as in the module's docstring."""
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(groups, dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * q.shape[-1] ** -0.5
    mask = causal_mask(q.shape[1], k.shape[1], window, q.device)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v.float()).to(q.dtype)


class Sdpa:
    """torch's scaled_dot_product_attention: everywhere, but a window needs a mask, which is slow on a GPU."""

    name = "sdpa"

    def refuses(self, request: Request) -> str | None:
        if request.windowed and request.device.type == "cuda":
            return (
                "has no sliding window of its own, and a masked one runs at a fraction of the speed: "
                "set model.attention to varlen or flex, or model.window_pattern to L"
            )
        return None

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


class Varlen:
    """torch's varlen_attn (FlashAttention 2 inside): native windows, CUDA, bf16 or fp16."""

    name = "varlen"

    def refuses(self, request: Request) -> str | None:
        if request.device.type != "cuda":
            return "needs a CUDA GPU"
        if request.dtype not in (torch.bfloat16, torch.float16):
            return f"needs bf16 or fp16, this run computes in {request.dtype}"
        if request.head_dim > 256 or request.head_dim % 8:
            return f"needs a head size of at most 256 and a multiple of 8, found {request.head_dim}"
        if request.grouped:
            return "is given one key-value head a head; this model groups them"
        try:
            from torch.nn.attention.varlen import varlen_attn  # noqa: F401  (tried here: absent from older torch)
        except ImportError as error:
            return f"torch {torch.__version__} has no varlen_attn ({error})"
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        batch, length, heads, dim = q.shape
        starts = torch.arange(0, (batch + 1) * length, length, device=q.device, dtype=torch.int32)
        flat = [x.reshape(batch * length, heads, dim) for x in (q, k, v)]
        left = -1 if window >= length else window - 1
        out = varlen_attn(*flat, starts, starts, length, length, window_size=(left, 0))
        return out.view(batch, length, heads, dim)


@lru_cache(maxsize=16)
def _block_mask(length: int, window: int, device: torch.device):
    from torch.nn.attention.flex_attention import create_block_mask

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key > query - window)

    return create_block_mask(visible, None, None, length, length, device=device)


class Flex:
    """torch's FlexAttention: native windows as block masks; has to be compiled, and fails backward above head size 128
    on GPUs with little shared memory."""

    name = "flex"

    def refuses(self, request: Request) -> str | None:
        if request.device.type != "cuda":
            return "needs a CUDA GPU to train"
        if request.head_dim & (request.head_dim - 1):
            return f"needs a head size that is a power of two, found {request.head_dim}"
        if request.head_dim > 128 and request.architecture.startswith("sm_12"):
            return f"fails backward at head size {request.head_dim} on {request.architecture}: too little shared memory"
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        mask = _block_mask(q.shape[1], window, q.device)
        grouped = q.shape[2] != k.shape[2]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return _compiled(flex_attention)(q, k, v, block_mask=mask, enable_gqa=grouped).transpose(1, 2)


@lru_cache(maxsize=2)
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, dynamic=False)


BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Varlen(), Flex(), Matmul(), Sdpa())}
