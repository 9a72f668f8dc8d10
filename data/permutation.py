"""A shuffle that needs no memory: a keyed bijection of 0 … n-1, computed for any position by itself.

A Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations", 1988) permutes the numbers of an
even count of bits; positions that land outside the range go through it again (cycle walking, Black and Rogaway,
2002), which keeps it a bijection of the range. So the order of an epoch is known from (n, key) alone, and a cursor
is one number.
"""

import numpy as np

_ROUNDS = 4


def permute(positions: np.ndarray, n: int, key: tuple[int, ...]) -> np.ndarray:
    """Where the shuffle of `n` items keyed by `key` (non-negative integers) sends each of `positions`, int64."""
    if n < 1:
        raise ValueError(f"a permutation of {n} items")
    positions = np.asarray(positions, dtype=np.uint64)
    if positions.size and int(positions.max()) >= n:
        raise ValueError(f"position {int(positions.max())} of {n}")
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    low = np.uint64((1 << int(half)) - 1)
    keys = np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64)
    values = _network(positions, half, low, keys)
    outside = values >= n
    while outside.any():  # at most 4 numbers in the domain for each in the range: a few turns
        values[outside] = _network(values[outside], half, low, keys)
        outside = values >= n
    return values.astype(np.int64)


def _network(values: np.ndarray, half: np.uint64, low: np.uint64, keys: np.ndarray) -> np.ndarray:
    left, right = values >> half, values & low
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & low)
    return (left << half) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
