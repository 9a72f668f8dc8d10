"""What training never sees: a stable hash keeps a share of operands, names and phrases for the evaluation."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from data.conversation import Conversation


@dataclass(frozen=True)
class HeldOut:
    """An evaluation prompt: a conversation that ends with a user's turn, and what a right reply says."""

    messages: Conversation
    answer: str
    extra: dict[str, Any] = field(default_factory=dict)


def _digest(kind: str, *key: int | str) -> int:
    text = ":".join(map(str, (kind, *key)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def is_reserved(kind: str, *key: int | str, one_in: int = 10) -> bool:
    """True for one in `one_in` of the keys of this kind, the same ones for ever."""
    return _digest(kind, *key) % one_in == 0


def reserved_among(kind: str, keys: Iterable[str], one_in: int, least: int = 3) -> frozenset[str]:
    """One in `one_in` of a short list of different keys, rounded down, but at least `least`."""
    ranked = sorted(set(keys), key=lambda key: _digest(kind, key))
    return frozenset(ranked[: max(least, len(ranked) // one_in)])


# For keys of a small space, drawn again and again. Names and the calculator's operands are too many to remember.
reserved = cache(is_reserved)


def reserved_pair(a: int, b: int) -> bool:
    """True for one in ten of the ordered pairs of whole numbers below a million, by arithmetic alone (no cache)."""
    mixed = (a * 0x9E3779B1 + b * 0x85EBCA77 + 0x27D4EB2F) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 12)) >> 4) % 10 == 0
