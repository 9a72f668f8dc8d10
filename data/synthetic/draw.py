"""Random draws that mean the same on every Python, and cost little.

Everything is derived from `Random.random()`, whose sequence for a seed is guaranteed by Python; `choice` and
`sample` have changed between versions. A document's generator is seeded by the corpus seed and the document's
index, so document i is the same however many are asked for.
"""

import zlib
from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


def reseed(rng: Random, stream: str, seed: int, index: int) -> None:
    """Set `rng` to the start of document `index` of the stream called `stream`."""
    rng.seed((zlib.crc32(stream.encode()) << 96) | (seed << 48) | index)


def pick(rng: Random, options: Sequence[T]) -> T:
    """One of `options`, each as likely."""
    return options[int(rng.random() * len(options))]


def between(rng: Random, low: int, high: int) -> int:
    """A whole number from `low` to `high`, both included."""
    return low + int(rng.random() * (high - low + 1))


def chance(rng: Random, probability: float) -> bool:
    """True with the given probability."""
    return rng.random() < probability


def listed(text: str, separator: str | None = None) -> tuple[str, ...]:
    """The words of a text as a tuple: long tables of words stay readable."""
    return tuple(text.split(separator))
