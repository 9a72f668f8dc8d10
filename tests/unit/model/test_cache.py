"""The cache: with slices as with masks, in one memory or its own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.attention.protocol import reference
from model.cache import KVCache
from tests.small_gpt import small_config

CPU = torch.device("cpu")


def filled(rows: int, seen: int, **changes) -> KVCache:
    config = small_config(**changes)
    cache = KVCache(config, rows, config.context, CPU, torch.float32)
    generator = torch.Generator().manual_seed(0)
    for tensor in (cache.keys, cache.values):
        tensor[:, :, :, :seen].normal_(generator=generator)
        tensor[:, :, :, seen:] = 1e4  # must not be seen
    return cache


def new_token(cache: KVCache, heads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    _, rows, kv_heads, _, dim = cache.keys.shape
    return tuple(torch.randn(rows, 1, count, dim, generator=generator) for count in (heads, kv_heads, kv_heads))


@settings(max_examples=60, deadline=None)
@given(
    at=st.integers(0, 31),
    rows=st.integers(1, 3),
    window=st.sampled_from([1, 8, 32]),
    heads=st.sampled_from([(2, 2), (4, 2), (4, 1)]),
)
def test_a_token_at_one_place_in_all_rows_needs_no_mask(
    at: int, rows: int, window: int, heads: tuple[int, int]
) -> None:
    shape = {"heads": heads[0], "kv_heads": heads[1], "windows": (window, 32)}
    found, caches = [], []
    for together in (True, False):
        cache = filled(rows, at, **shape)
        q, k, v = new_token(cache, heads[0])
        if together:
            cache.begin_together(at)
        else:
            cache.begin(torch.full((rows, 1), at))
        found.append(cache.attend(0, q, k, v, window))
        caches.append(cache)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    for one, other in ((caches[0].keys, caches[1].keys), (caches[0].values, caches[1].values)):
        assert torch.equal(one, other)
    keys, values = (x[0, :, :, : at + 1].transpose(1, 2) for x in (caches[0].keys, caches[0].values))
    padded = torch.cat((torch.zeros(rows, at, *q.shape[2:]), q), dim=1)
    torch.testing.assert_close(found[0], reference(padded, keys, values, window)[:, -1:], rtol=1e-4, atol=1e-4)


def test_a_masked_pass_after_one_without_a_mask() -> None:
    cache = filled(2, 5)
    cache.begin_together(5)
    cache.attend(0, *new_token(cache, 2), 32)
    cache.begin(torch.tensor([[6], [3]]))
    q, k, v = new_token(cache, 2)
    out = cache.attend(0, q, k, v, 32)
    assert torch.equal(cache.keys[0, 1, :, 3], k[1, 0]) and out.abs().max() < 100, "slots that were not filled are seen"


def test_the_first_rows_share_memory() -> None:
    cache = filled(4, 5)
    part = cache.first(2)
    part.begin_together(5)
    q, k, v = (x[:2] for x in new_token(cache, 2))
    part.attend(1, q, k, v, 32)
    assert torch.equal(cache.keys[1, :2, :, 5], k[:, 0]) and (cache.keys[1, 2:, :, 5] == 1e4).all()


@pytest.mark.parametrize("rows", [[0], [2, 0], [3, 1, 2]])
def test_keep(rows: list[int]) -> None:
    cache = filled(4, 5)
    keys = cache.keys.clone()
    cache.keep(torch.tensor(rows))
    assert torch.equal(cache.keys, keys[:, rows]) and cache.values.shape == cache.keys.shape
