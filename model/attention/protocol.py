"""What an attention backend is, what a run asks of it, and the float32 reference that it is held against.

An `Attend` takes q (B, T, H, D), k and v (B, T, H_kv, D) and a window (tokens a position may look back over, itself
included; at least T means all) and returns (B, T, H, D): causal softmax attention scaled by D^-0.5. Inputs may be
views into one fused QKV tensor: only their last dimension is contiguous.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

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
    training: bool = True  # gradients are wanted
    groups: int = 2  # heads to a key-value head, where grouped

    @property
    def architecture(self) -> str:
        """`cpu`, or a GPU's compute capability as in `sm_90`."""
        if self.device.type != "cuda":
            return self.device.type
        major, minor = torch.cuda.get_device_capability(self.device)
        return f"sm_{major}{minor}"

    @property
    def family(self) -> str:
        """The architecture without its minor version, as in `sm_9`: kernels are written for one."""
        return self.architecture[:-1] if self.device.type == "cuda" else self.architecture


class Backend(Protocol):
    """One implementation of attention."""

    name: str

    def refuses(self, request: Request) -> str | None:
        """The reason why this backend can't serve the request, or None when it can."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        """See the module's docstring."""


def kernel_refuses(request: Request, largest_head: int) -> str | None:
    """What every flash-attention kernel refuses: other devices, 32-bit numbers, odd head sizes."""
    if request.device.type != "cuda":
        return "needs a CUDA GPU"
    if torch.cuda.get_device_capability(request.device) < (8, 0):
        return f"needs sm_80 or later, this GPU is {request.architecture}"
    if request.dtype not in (torch.bfloat16, torch.float16):
        return f"needs bf16 or fp16, this run computes in {request.dtype}"
    if request.head_dim > largest_head or request.head_dim % 8:
        return f"needs a head size of at most {largest_head} and a multiple of 8, found {request.head_dim}"
    return None


def one_line(error: BaseException) -> str:
    """An exception's type and the first line of its message, cut where it goes on for long."""
    line = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return line if len(line) <= 200 else f"{line[:199]}…"


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
