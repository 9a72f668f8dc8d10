"""Keys and values of positions already seen, so that generating a token costs one position and not the whole text."""

from copy import copy

import torch
from torch import Tensor
from torch.nn import functional as F

from model.config import GPTConfig


class KVCache:
    """Per layer, keys and values (B, H_kv, S, D) whose slot is the absolute position; rows may have different lengths.

    Before each forward pass `begin` says where the new tokens of every row stand. Slots past a row's position may
    hold rubbish from padding: a query sees only keys at or before its own position, and within its window.
    """

    def __init__(self, config: GPTConfig, batch: int, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.layers, batch, config.kv_heads, slots, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.grouped = config.heads != config.kv_heads
        self.windows = sorted(set(config.windows))

    def first(self, rows: int) -> "KVCache":
        """The first rows of this cache as one of their own, in the same memory."""
        part = copy(self)
        part.keys, part.values = self.keys[:, :rows], self.values[:, :rows]
        return part

    def begin(self, positions: Tensor) -> None:
        """positions (B, T): where the tokens of the coming forward pass stand, the same count in every row."""
        self.at = None
        self.rows = torch.arange(len(positions), device=positions.device)[:, None]
        self.positions = positions
        # Only slots up to the furthest query matter; the rest is never read.
        self.used = int(positions.max()) + 1
        key = torch.arange(self.used, device=positions.device)
        at = positions[:, None, :, None]
        self.masks = {window: (key <= at) & (key > at - window) for window in self.windows}

    def begin_together(self, at: int) -> None:
        """The coming pass has one token a row, all at position `at`: slices serve, and no mask is needed."""
        self.at = at

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        """Store k and v (B, T, H_kv, D) and attend with q (B, T, H, D) to everything each row has seen."""
        keys, values = self.keys[layer], self.values[layer]
        if self.at is not None:
            keys.narrow(2, self.at, 1).copy_(k.transpose(1, 2))
            values.narrow(2, self.at, 1).copy_(v.transpose(1, 2))
            seen = min(self.at + 1, window)
            keys, values = (x.narrow(2, self.at + 1 - seen, seen) for x in (keys, values))
            mask = None
        else:
            keys[self.rows, :, self.positions] = k.to(keys.dtype)
            values[self.rows, :, self.positions] = v.to(values.dtype)
            keys, values, mask = keys[:, :, : self.used], values[:, :, : self.used], self.masks[window]
        heads = q.transpose(1, 2).to(keys.dtype)
        out = F.scaled_dot_product_attention(heads, keys, values, attn_mask=mask, enable_gqa=self.grouped)
        return out.transpose(1, 2).to(q.dtype)

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these (indices), as sequences end."""
        self.keys, self.values = self.keys[:, rows].contiguous(), self.values[:, rows].contiguous()
