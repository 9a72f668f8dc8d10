"""The model: causal, windowed, the same with a cache as without."""

import pytest
import torch
from torch import Tensor

from model.attention.backends import BACKENDS, reference
from model.cache import KVCache
from model.gpt import GPT, blended_norm, cap, norm, rotary_tables, rotate
from tests.small_gpt import small_config, small_gpt

SHAPES = {
    "plain": {},
    "grouped": {"heads": 4, "kv_heads": 2},
    "one key-value head": {"heads": 4, "kv_heads": 1, "value_layers": (0, 1)},
    "no value embeddings": {"value_layers": ()},
    "all windows short": {"windows": (4, 4)},
}
WITH_SHAPES = pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)


def ids_of(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 64, (rows, length), generator=torch.Generator().manual_seed(seed))


def all_logits(model: GPT, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model.logits(model(ids))


@WITH_SHAPES
@pytest.mark.parametrize("name", ["sdpa", "matmul"])
def test_every_backend_gives_the_same_logits_and_gradients(name: str, changes: dict) -> None:
    ids = ids_of(2, 29)
    found = {}
    for key, attend in ((name, BACKENDS[name].attend), ("reference", reference)):
        model = small_gpt(attend=attend, **changes)
        logits = model.logits(model(ids))
        logits.square().mean().backward()
        found[key] = [logits.detach(), *(parameter.grad for parameter in model.parameters())]
    for ours, expected in zip(found[name], found["reference"], strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-3)


@WITH_SHAPES
def test_no_position_sees_the_future(changes: dict) -> None:
    model = small_gpt(**changes)
    ids = ids_of(1, 20)
    changed = ids.clone()
    changed[0, 12] = (ids[0, 12] + 1) % 64
    before, after = all_logits(model, ids), all_logits(model, changed)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert (before[0, 12:18] - after[0, 12:18]).abs().amax(dim=-1).min() > 1e-4


def test_a_window_ends_where_it_says() -> None:
    """One layer of window 4: a token is seen by itself and by the next three positions."""
    model = small_gpt(layers=1, windows=(4,), value_layers=(0,))
    ids = ids_of(1, 20)
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] + 1) % 64
    moved = (all_logits(model, ids) - all_logits(model, changed))[0].abs().amax(dim=-1) > 1e-6
    assert moved.nonzero().flatten().tolist() == [5, 6, 7, 8]


@WITH_SHAPES
def test_cached_logits_equal_uncached_ones_well_past_the_window(changes: dict) -> None:
    """Rows of different length, padded with rubbish, one token at a time up to the end of the context."""
    model = small_gpt(**changes)
    context = model.config.context
    whole = ids_of(3, context)
    expected = all_logits(model, whole)
    lengths = torch.tensor([1, 9, 17])
    cache = KVCache(model.config, 3, context, torch.device("cpu"), torch.float32)
    prompt = whole[:, :17].clone()
    for row, length in enumerate(lengths.tolist()):
        prompt[row, length:] = 63
    with torch.no_grad():
        cache.begin(torch.arange(17).expand(3, 17))
        first = model.logits(model(prompt, cache, cache.positions))
        for row, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(first[row, :length], expected[row, :length], atol=1e-4, rtol=1e-4)
        at = lengths.clone()
        for _ in range(context):
            at = at.clamp(max=context - 1)
            cache.begin(at[:, None])
            step = model.logits(model(whole[torch.arange(3), at][:, None], cache, at[:, None]))[:, 0]
            torch.testing.assert_close(step, expected[torch.arange(3), at], atol=1e-4, rtol=1e-4)
            at = at + 1


def test_a_cache_takes_several_tokens_at_once() -> None:
    model = small_gpt(heads=4, kv_heads=2)
    ids = ids_of(2, 30)
    expected = all_logits(model, ids)
    cache = KVCache(model.config, 2, 32, torch.device("cpu"), torch.float32)
    with torch.no_grad():
        for start, stop in ((0, 11), (11, 12), (12, 30)):
            positions = torch.arange(start, stop).expand(2, -1)
            cache.begin(positions)
            found = model.logits(model(ids[:, start:stop], cache, positions))
            torch.testing.assert_close(found, expected[:, start:stop], atol=1e-4, rtol=1e-4)


def test_a_cache_keeps_the_rows_it_is_told_to() -> None:
    model = small_gpt()
    ids = ids_of(4, 12)
    expected = all_logits(model, ids)
    cache = KVCache(model.config, 4, 32, torch.device("cpu"), torch.float32)
    with torch.no_grad():
        cache.begin(torch.arange(11).expand(4, 11))
        model(ids[:, :11], cache, cache.positions)
        cache.keep(torch.tensor([3, 1]))
        cache.begin(torch.full((2, 1), 11))
        found = model.logits(model(ids[[3, 1], 11:], cache, cache.positions))[:, 0]
    torch.testing.assert_close(found, expected[[3, 1], 11], atol=1e-4, rtol=1e-4)


def test_rotation_keeps_lengths_and_depends_on_distance_alone() -> None:
    cos, sin = rotary_tables(64, 16, 100.0)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(16, generator=generator).expand(1, 64, 1, 16) for _ in range(2))
    rotated_q, rotated_k = (rotate(x, cos[:, None], sin[:, None])[0, :, 0] for x in (q, k))
    torch.testing.assert_close(rotated_q.norm(dim=-1), q[0, :, 0].norm(dim=-1))
    products = rotated_q @ rotated_k.T
    for distance in (0, 1, 30):
        along = products.diagonal(-distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), atol=1e-4, rtol=1e-4)
    assert (products.diagonal(0)[0] - products.diagonal(-1)[0]).abs() > 1e-3


def test_logits_are_capped() -> None:
    values = torch.tensor([-1e6, -1.0, 0.0, 1.0, 1e6])
    capped = cap(values, 15.0)
    assert capped[0] == -15 and capped[-1] == 15 and capped[2] == 0
    torch.testing.assert_close(capped[3], torch.tensor(1.0), atol=2e-3, rtol=0)
    model = small_gpt(softcap=2.0)
    with torch.no_grad():
        model.head.weight.mul_(1e3)
    assert all_logits(model, ids_of(1, 8)).abs().max() <= 2


def test_too_many_tokens_are_an_error() -> None:
    with pytest.raises(ValueError, match="33 tokens exceed the context of 32"):
        small_gpt()(ids_of(1, 33))


def test_weights_come_from_the_seed_alone() -> None:
    models = [GPT(small_config()) for _ in range(3)]
    torch.manual_seed(7)
    models[0].initialize(1)
    torch.manual_seed(8)
    models[1].initialize(1)
    models[2].initialize(2)
    for (name, one), two, other in zip(
        models[0].named_parameters(), models[1].parameters(), models[2].parameters(), strict=True
    ):
        assert torch.equal(one, two), name
        assert one.isfinite().all()
        random = not name.endswith(("out.weight", "down.weight", "gate.weight", "scale"))
        assert torch.equal(one, other) != random, name


def test_a_fresh_model_is_as_unsure_as_its_vocabulary() -> None:
    model = GPT(small_config())
    model.initialize(0)
    probabilities = all_logits(model, ids_of(2, 16)).softmax(-1)
    torch.testing.assert_close(probabilities, torch.full_like(probabilities, 1 / 64), atol=1e-3, rtol=0)


def test_bf16_autocast_stays_close_and_gives_float32_logits() -> None:
    model, ids = small_gpt(heads=4, kv_heads=2), ids_of(2, 24)
    expected = all_logits(model, ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = all_logits(model, ids)
    assert found.dtype == torch.float32
    assert 1e-4 < (found - expected).norm() / expected.norm() < 0.05


def test_rotary_tables_are_no_weights() -> None:
    assert not {"cos", "sin"} & set(GPT(small_config()).state_dict())


def test_recomputed_layers_change_nothing() -> None:
    ids = torch.arange(16)[None] % 64
    kept, recomputed = small_gpt(), small_gpt()
    recomputed.recompute = (True, False)
    for model in (kept, recomputed):
        model(ids).square().sum().backward()
    for ours, theirs in zip(recomputed.parameters(), kept.parameters(), strict=True):
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)


def test_a_blend_and_its_norm_have_the_gradients_of_their_formulas() -> None:
    def formula(x: Tensor, start: Tensor, residual: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        blended = residual * x + skip * start
        return blended, norm(blended)

    results = []
    for function in (blended_norm, formula):
        torch.manual_seed(0)
        inputs = [torch.randn(2, 5, 8, requires_grad=True) for _ in range(2)]
        inputs += [torch.tensor(value, requires_grad=True) for value in (0.9, 0.2)]
        outputs = function(*inputs)
        torch.autograd.backward(outputs, [torch.randn(2, 5, 8) for _ in outputs])
        results.append([*outputs, *(x.grad for x in inputs)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
    in_bf16 = blended_norm(*(x.bfloat16() for x in inputs[:2]), *inputs[2:])
    assert all(x.dtype == torch.bfloat16 for x in in_bf16)


def test_compiled_it_has_the_same_gradients() -> None:
    """Where the compiler is told what to compute again, too."""
    ids, gradients = ids_of(2, 32), []
    for compiled in (False, True):
        torch._dynamo.reset()
        model = small_gpt(value_layers=(0, 1))

        def loss(ids: Tensor, model: GPT = model) -> Tensor:
            return model.logits(model(ids)).square().mean()

        if compiled:  # without generating code, which takes long and is torch's to test
            loss = torch.compile(loss, backend="aot_eager_decomp_partition", fullgraph=True, dynamic=False)
        loss(ids).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
