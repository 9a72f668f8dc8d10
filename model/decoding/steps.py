"""The work between two tokens: what the engine asks of it, and how it is done with PyTorch's own operators.

On a GPU, model.decoding.captured does the same with kernels of its own in a CUDA graph.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from model.cache import KVCache
from model.decoding.sampling import Sampling, sample
from model.gpt import EPSILON, GPT
from model.linear import formatted


class Steps(Protocol):
    """Replies to a batch of prompts, a token of each a step. The prompts have been read; `read` gives the first ids.

    With `ahead`, a step can be started before the ids of the last one are read, and should: the device then never
    waits for the host, which learns of a reply's end one step late.
    """

    ahead: bool

    def read(self) -> list[int]:
        """The ids drawn, one a row; waits for them."""

    def advance(self, ids: list[int | None]) -> None:
        """Feed every row its next id, or what was drawn for it where that is None, and draw the one after it."""

    def keep(self, rows: list[int]) -> None:
        """Drop all rows but these, as replies end."""


class EagerSteps:
    """Step by step through PyTorch's operators, on any device. Its ids are drawn when they are read."""

    ahead = False

    @torch.inference_mode()
    def __init__(self, model: GPT, prompts: list[list[int]], sampling: Sampling, generator: torch.Generator) -> None:
        weight = model.embedding.weight
        self.model, self.sampling, self.generator, self.device = model, sampling, generator, weight.device
        self.at = [len(prompt) - 1 for prompt in prompts]
        self.slots = min(model.config.context, max(self.at) + 1 + sampling.max_tokens)
        self.cache = KVCache(model.config, len(prompts), self.slots, weight.device, weight.dtype)
        self.lean = Lean(model) if Lean.serves(model) else None
        self.hidden = prefill(model, prompts, self.cache)

    @torch.inference_mode()
    def read(self) -> list[int]:
        return sample(self.model.logits(self.hidden), self.sampling, self.generator).tolist()

    @torch.inference_mode()
    def advance(self, ids: list[int | None]) -> None:
        # A finished row that is still in the batch idles on its last slot.
        self.at = [min(at + 1, self.slots - 1) for at in self.at]
        positions = torch.tensor(self.at, device=self.device)[:, None]
        if len(set(self.at)) == 1:
            self.cache.begin_together(self.at[0])
        else:
            self.cache.begin(positions)
        forward = self.lean or self.model
        self.hidden = forward(torch.tensor(ids, device=self.device)[:, None], self.cache, positions)[:, 0]

    @torch.inference_mode()
    def keep(self, rows: list[int]) -> None:
        self.cache.keep(torch.tensor(rows, device=self.device))
        self.at = [self.at[row] for row in rows]


@torch.inference_mode()
def prefill(model: GPT, prompts: list[list[int]], cache: KVCache) -> Tensor:
    """Read the prompts into the cache; hidden states (B, C) of their last tokens."""
    device = model.embedding.weight.device
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    # Padded at the end: no query sees past its own position, and what stands there is overwritten before it is seen.
    ids = torch.tensor([prompt + [prompt[-1]] * (longest - len(prompt)) for prompt in prompts], device=device)
    positions = torch.arange(longest, device=device).expand(len(prompts), longest)
    cache.begin(positions)
    last = torch.tensor(lengths, device=device) - 1
    return model(ids, cache, positions)[torch.arange(len(prompts), device=device), last]


def is_plain(model: GPT) -> bool:
    """Whether the model computes with its weights as they are: a recipe's formats see to that themselves."""
    return type(model) is GPT and not formatted(model)


def value_weights(model: GPT, layer: int) -> tuple[Tensor | None, Tensor | None]:
    """A layer's value embedding (V, H_kv × D) and its gate (H_kv, channels), or None and None."""
    if layer not in model.config.value_layers:
        return None, None
    return model.value_embeddings[str(layer)].weight, model.blocks[layer].attention.gate.weight


class LeanLayer(NamedTuple):
    """What one block needs, read once a reply: each look-up in a module costs as much as a small operator."""

    residual_scale: float
    skip_scale: float
    qkv: Tensor
    out: Tensor
    up: Tensor
    down: Tensor
    window: int
    table: Tensor | None  # of the value embedding, where the layer has one, and its gate
    gate: Tensor | None


class Lean:
    """GPT.forward for one token a row in float32 on a CPU, with half the operators, whose calls are most of the time
    of a small model: no modules, queries and keys turned and normed in one, and RMSNorm as three operators (PyTorch's
    own is ten there)."""

    def __init__(self, model: GPT) -> None:
        self.config = model.config
        self.embedding = model.embedding.weight
        # Turning by (cos, sin) written as x × cos + swapped halves × sin.
        self.cos = torch.cat((model.cos, model.cos), dim=-1)
        self.sin = torch.cat((-model.sin, model.sin), dim=-1)
        self.epsilon = torch.full((1, 1, 1), EPSILON)
        self.layers = [
            LeanLayer(
                residual_scale,
                skip_scale,
                block.attention.qkv.weight,
                block.attention.out.weight,
                block.mlp.up.weight,
                block.mlp.down.weight,
                block.attention.window,
                *value_weights(model, layer),
            )
            for layer, (block, residual_scale, skip_scale) in enumerate(
                zip(model.blocks, model.residual_scale.tolist(), model.skip_scale.tolist(), strict=True)
            )
        ]

    @staticmethod
    def serves(model: GPT) -> bool:
        weight = model.embedding.weight
        return weight.device.type == "cpu" and weight.dtype == torch.float32 and is_plain(model)

    def norm(self, x: Tensor) -> Tensor:
        """x (N, 1, C) -> the same, normed."""
        return x * torch.baddbmm(self.epsilon, x, x.mT, alpha=1 / x.shape[-1]).rsqrt_()

    def __call__(self, ids: Tensor, cache: KVCache, positions: Tensor) -> Tensor:
        """ids and positions (B, 1) -> hidden states (B, 1, C), as GPT.forward."""
        batch, dim = len(ids), self.config.head_dim
        turned_heads, kv_heads = self.config.heads + self.config.kv_heads, self.config.kv_heads
        cos, sin = self.cos[positions], self.sin[positions]  # (B, 1, D)
        x = start = self.norm(F.embedding(ids, self.embedding))
        for index, layer in enumerate(self.layers):
            x = torch.add(x * layer.residual_scale, start, alpha=layer.skip_scale)
            normed = self.norm(x)
            qkv = F.linear(normed, layer.qkv).view(batch, -1, dim)
            qk, v = torch.split_with_sizes(qkv, (turned_heads, kv_heads), 1)
            qk = torch.addcmul(qk * cos, qk.roll(dim // 2, -1), sin)
            qk = self.norm(qk.view(-1, 1, dim)).view(batch, 1, -1, dim)
            if layer.table is not None:
                gate = F.linear(normed[..., : layer.gate.shape[1]], layer.gate).sigmoid_().view(batch, -1, 1)
                v = torch.addcmul(v, gate, F.embedding(ids, layer.table).view(batch, -1, dim), value=2)
            q, k = torch.split_with_sizes(qk, (self.config.heads, kv_heads), 2)
            y = cache.attend(index, q, k, v.unsqueeze(1), layer.window)
            x = x + F.linear(y.reshape(batch, 1, -1), layer.out)
            x = x + F.linear(F.linear(self.norm(x), layer.up).relu_().square_(), layer.down)
        return self.norm(x)
