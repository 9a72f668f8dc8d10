"""The GPT: token ids in, hidden states and logits out. Knows nothing of optimizers, data or devices' quirks.

RoPE (arXiv 2104.09864), QK-norm (arXiv 2010.04245), parameter-free RMSNorm (arXiv 1910.07467), ReLU² MLP
(arXiv 2109.08668), untied head with a tanh softcap (arXiv 2408.00118), and gated value embeddings: on alternate
layers each token adds a learnt vector to its value, scaled a head by a gate read from the residual stream.
Shapes: B batch, T positions, C width, H heads, D head dimension, V vocabulary.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from model.attention.native import Sdpa
from model.attention.protocol import Attend
from model.config import GPTConfig
from model.kernels import rotary as kernels
from model.linear import Embedding, Linear

GATE_CHANNELS = 32  # of the residual stream, read by the value gates
Value = tuple[Embedding, Tensor]  # a value embedding and the token ids (B, T)
EPSILON = 2.0**-23  # of RMSNorm: float32's, whatever the stream is kept in


class Cache(Protocol):
    """Keys and values of earlier positions, for generation; see model.cache."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor: ...


def norm(x: Tensor) -> Tensor:
    """RMSNorm over the last dimension, without parameters."""
    return F.rms_norm(x, (x.shape[-1],), eps=EPSILON)


def rotary_tables(length: int, head_dim: int, base: float, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, D/2) in float32 of RoPE's angles."""
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of x (B, T, H, D) by the angles of its positions; cos and sin (T or B×T, 1, D/2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


class _BlendedNorm(torch.autograd.Function):
    """Blends in one with their norm, made again in the backward pass instead of kept: less to write, less to keep."""

    @staticmethod
    def forward(ctx, x, start, residual, skip):
        ctx.save_for_backward(x, start, residual, skip)
        blended = residual * x + skip * start
        return blended, norm(blended)

    @staticmethod
    def backward(ctx, d_blended, d_normed):
        x, start, residual, skip = ctx.saved_tensors
        wide_x, wide_start, d_normed = x.float(), start.float(), d_normed.float()
        # The sum in another order than forward: the compiler would take an equal one for that, and keep its result.
        blended = skip * wide_start + residual * wide_x
        inverse = torch.rsqrt(blended.square().mean(dim=-1, keepdim=True) + EPSILON)
        normed = blended * inverse
        along = (d_normed * normed).mean(dim=-1, keepdim=True)
        gradient = d_blended.float() + inverse * (d_normed - normed * along)
        # Row by row first, which the compiler fuses with the above; over everything at once it would be another pass.
        by_residual = (gradient * wide_x).sum(dim=-1).sum()
        by_skip = (gradient * wide_start).sum(dim=-1).sum()
        return (residual * gradient).to(x.dtype), (skip * gradient).to(x.dtype), by_residual, by_skip


def blended_norm(x: Tensor, start: Tensor, residual: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
    """What a layer reads, residual × x + skip × start, and its norm; x is the stream (B, T, C), start its beginning."""
    if x is start:  # the first layer
        blended = (residual + skip) * x
        return blended, norm(blended)
    return _BlendedNorm.apply(x, start, residual, skip)


def queries_keys_values(qkv: Tensor, rotary: tuple[Tensor, Tensor], heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q (B, T, H, D), k and v (B, T, H_kv, D) of qkv (B, T, H + 2 H_kv, D): queries and keys rotated and normed."""
    cos, sin = rotary
    dim = qkv.shape[-1]
    if qkv.is_cuda and qkv.dtype == torch.bfloat16 and torch.is_grad_enabled() and not dim & (dim - 1):
        q, k, v, _ = kernels.rotary(qkv, cos[:, 0], sin[:, 0], heads)
        return q, k, v
    kv_heads = (qkv.shape[2] - heads) // 2
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=2)
    return norm(rotate(q, cos, sin)), norm(rotate(k, cos, sin)), v


class Attention(nn.Module):
    """Causal self-attention with one fused projection for queries, keys and values."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.window = config.windows[layer]
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.qkv = Linear(config.width, (self.heads + 2 * self.kv_heads) * self.head_dim)
        self.out = Linear(self.heads * self.head_dim, config.width)
        self.fused: nn.Module | None = None  # a recipe's way from x to queries, keys and values, when training
        gate_channels = min(GATE_CHANNELS, config.width)
        self.gate = Linear(gate_channels, self.kv_heads) if layer in config.value_layers else None

    def forward(
        self, x: Tensor, value: Value | None, rotary: tuple[Tensor, Tensor], attend: Attend, cache: Cache | None
    ) -> Tensor:
        """x (B, T, C) normed; value: the layer's value embedding and the ids to look up in it, or None."""
        batch, length, _ = x.shape
        if self.fused is not None and torch.is_grad_enabled():
            q, k, v = self.fused(x, self.qkv, *(table[:, 0] for table in rotary), self.heads)
        else:
            qkv = self.qkv(x).view(batch, length, self.heads + 2 * self.kv_heads, self.head_dim)
            q, k, v = queries_keys_values(qkv, rotary, self.heads)
        if value is not None and self.gate is not None:
            table, ids = value
            gate = 2 * torch.sigmoid(self.gate(x[..., : self.gate.shape[1]]))  # 1 at the start: the gate is zero
            v = v + table.scaled(ids, gate)
        v = v.to(q.dtype)
        y = attend(q, k, v, self.window) if cache is None else cache.attend(self.layer, q, k, v, self.window)
        return self.out(y.reshape(batch, length, -1))


class MLP(nn.Module):
    """Two matrices with a squared ReLU between them."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = Linear(config.width, config.mlp_width)
        self.down = Linear(config.mlp_width, config.width)
        self.fused: nn.Module | None = None  # a recipe's way to do all three at once, when training

    def forward(self, x: Tensor) -> Tensor:
        if self.fused is not None and torch.is_grad_enabled():
            return self.fused(x, self.up, self.down)
        return self.down(F.relu(self.up(x)).square())


class Block(nn.Module):
    """Attention, then MLP, each on the normed residual stream and added to it."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.attention = Attention(config, layer)
        self.mlp = MLP(config)

    def forward(
        self,
        x: Tensor,
        normed: Tensor,
        value: Value | None,
        rotary: tuple[Tensor, Tensor],
        attend: Attend,
        cache: Cache | None,
    ) -> Tensor:
        """The stream x (B, T, C), with its norm, to the stream after the block."""
        x = x + self.attention(normed, value, rotary, attend, cache)
        return x + self.mlp(norm(x))


class GPT(nn.Module):
    """A decoder-only transformer. `attend` is the attention backend, chosen by the caller (model.attention.choose)."""

    def __init__(self, config: GPTConfig, attend: Attend | None = None) -> None:
        super().__init__()
        self.config = config
        self.attend = attend or Sdpa().attend
        # Layers whose activations are computed again in the backward pass instead of kept: a choice of each run.
        self.recompute = (False,) * config.layers
        self.embedding = Embedding(config.vocab_size, config.width)
        kv_width = config.kv_heads * config.head_dim
        self.value_embeddings = nn.ModuleDict(
            {str(layer): Embedding(config.vocab_size, kv_width) for layer in config.value_layers}
        )
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        # Each layer reads the stream as `residual × x + skip × x0`, x0 being the normed embedding.
        self.residual_scale = nn.Parameter(torch.empty(config.layers))
        self.skip_scale = nn.Parameter(torch.empty(config.layers))
        self.head = Linear(config.width, config.vocab_size)
        # Tables and not parameters: recomputed at load, so they are in no checkpoint.
        cos, sin = rotary_tables(config.context, config.head_dim, config.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Fill all weights from `seed`, the same on every device: drawn on the CPU, then copied.

        Matrices uniform with variance 1/fan-in; output projections zero, so that each block starts as the
        identity; embeddings with deviation 0.8, head 0.001.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            fresh = torch.empty(parameter.shape)
            if name.endswith(("attention.out.weight", "mlp.down.weight", "gate.weight")):
                fresh.zero_()
            elif name == "embedding.weight":
                fresh.normal_(0, 0.8, generator=generator)
            elif name == "head.weight":
                fresh.normal_(0, 0.001, generator=generator)
            elif name == "residual_scale":
                fresh.fill_(1.0)
            elif name == "skip_scale":
                fresh.fill_(0.1)
            else:  # qkv, up, value embeddings: (rows, width); deviation width^-0.5
                bound = (3 / self.config.width) ** 0.5
                fresh.uniform_(-bound, bound, generator=generator)
            parameter.copy_(fresh)

    def forward(self, ids: Tensor, cache: Cache | None = None, positions: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, C), normed, of token ids (B, T).

        With a cache, `positions` (B, T) says where the ids stand; without, they stand at 0 … T-1.
        Raises ValueError when T exceeds the context.
        """
        length = ids.shape[1]
        if length > self.config.context:
            raise ValueError(f"{length} tokens exceed the context of {self.config.context}")
        if positions is None:
            rotary = self.cos[:length, None], self.sin[:length, None]
        else:
            rotary = self.cos[positions].unsqueeze(2), self.sin[positions].unsqueeze(2)
        x = start = norm(self.embedding(ids))
        residual_scale, skip_scale = self.residual_scale.unbind(), self.skip_scale.unbind()
        for layer, block in enumerate(self.blocks):
            value = (self.value_embeddings[str(layer)], ids) if layer in self.config.value_layers else None
            x, normed = blended_norm(x, start, residual_scale[layer], skip_scale[layer])
            if self.recompute[layer] and torch.is_grad_enabled():
                x = checkpoint(block, x, normed, value, rotary, self.attend, cache, use_reentrant=False)
            else:
                x = block(x, normed, value, rotary, self.attend, cache)
        return norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Capped logits (…, V) in float32 of hidden states (…, C)."""
        return cap(self.head(hidden).float(), self.config.softcap)


def cap(logits: Tensor, softcap: float) -> Tensor:
    """Squash logits smoothly into ±softcap."""
    return softcap * torch.tanh(logits / softcap)
