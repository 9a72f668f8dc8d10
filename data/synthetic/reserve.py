"""What training never sees: a stable hash keeps a share of operands, names and phrases for the evaluation."""

import hashlib
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


def is_reserved(kind: str, *key: int | str, one_in: int = 10) -> bool:
    """True for one in `one_in` of the keys of this kind, the same ones for ever."""
    text = ":".join(map(str, (kind, *key)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % one_in == 0


# For keys of a small space, drawn again and again. Names and the calculator's operands are too many to remember.
reserved = cache(is_reserved)


def reserved_pair(a: int, b: int) -> bool:
    """True for one in ten of the ordered pairs of whole numbers below a million, by arithmetic alone (no cache)."""
    mixed = (a * 0x9E3779B1 + b * 0x85EBCA77 + 0x27D4EB2F) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 12)) >> 4) % 10 == 0
