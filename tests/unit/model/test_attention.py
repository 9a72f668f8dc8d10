"""torch's own backends compute what the float32 reference does, and the check at first use sees what is wrong."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter

from model.attention import native
from model.attention.backends import BACKENDS, Request, causal_mask, reference
from model.attention.check import check
from model.cache import KVCache
from tests.small_gpt import small_gpt

CPU = torch.device("cpu")
ON_CPU = ("sdpa", "matmul", "varlen", "flex")
TRAIN_ON_CPU = ON_CPU[:3]


def request(**changes) -> Request:
    facts = {"device": CPU, "dtype": torch.float32, "head_dim": 16, "grouped": False, "windowed": True}
    return Request(**{**facts, **changes})


def flat_attention(q, k, v, starts_q, starts_k, longest_q, longest_k, *, window_size=(-1, -1), enable_gqa=False):
    """What torch.nn.attention.varlen.varlen_attn documents, row by row: q (tokens, H, D), `starts` of each row."""
    assert starts_q.dtype == torch.int32 and starts_q.tolist() == starts_k.tolist() and window_size[1] == 0
    assert enable_gqa == (q.shape[1] != k.shape[1])
    rows = list(zip(starts_q.tolist(), starts_q.tolist()[1:], strict=False))
    assert longest_q == longest_k == max(stop - start for start, stop in rows)
    window = longest_q if window_size[0] < 0 else window_size[0] + 1
    return torch.cat([reference(*(x[None, start:stop] for x in (q, k, v)), window)[0] for start, stop in rows])


@pytest.fixture
def gpu_backends_on_cpu(monkeypatch) -> None:
    """flex without its compiler, varlen with its kernel written out: what is ours in them runs on a CPU."""
    monkeypatch.setattr(native, "_compiled", lambda function: function)
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", flat_attention)
    monkeypatch.setitem(BACKENDS, "varlen", native.Varlen())  # forgets what it knew of torch's own


def results(attend, length: int, heads: int, kv_heads: int, window: int, training: bool) -> list[torch.Tensor]:
    """Output and, if training, gradients on seeded inputs: views into one tensor where the length is odd."""
    generator = torch.Generator().manual_seed(length)
    sizes = [heads, kv_heads, kv_heads]
    qkv = torch.randn(2, length, sum(sizes), 16, generator=generator).requires_grad_(training)
    inputs = qkv.split(sizes, dim=2) if length % 2 else [x.contiguous() for x in qkv.split(sizes, dim=2)]
    out = attend(*inputs, window)
    if not training:
        return [out]
    out.backward(torch.randn(out.shape, generator=generator))
    return [out.detach(), *qkv.grad.split(sizes, dim=2)]


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("window", [1, 7, 128, 1000])
@pytest.mark.parametrize("length", [1, 5, 127, 131, 300])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (3, 1)])
def test_backends_agree_with_the_reference(
    gpu_backends_on_cpu, name: str, window: int, length: int, heads: tuple[int, int]
) -> None:
    facts = (length, *heads, window, name in TRAIN_ON_CPU)
    for mine, other in zip(results(BACKENDS[name].attend, *facts), results(reference, *facts), strict=True):
        torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-4)


@given(length=st.integers(1, 40), window=st.integers(1, 50), heads=st.sampled_from([(2, 2), (4, 2), (3, 1)]))
@settings(max_examples=20, deadline=None)
def test_the_reference_is_attention(length: int, window: int, heads: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(window)
    q, k, v = (torch.randn(1, length, count, 4, generator=generator) for count in (heads[0], heads[1], heads[1]))
    out = reference(q, k, v, window)
    for at in range(length):
        for head in range(heads[0]):
            seen, group = slice(max(0, at - window + 1), at + 1), head * heads[1] // heads[0]
            weights = (k[0, seen, group] @ q[0, at, head] / 2).softmax(0)
            torch.testing.assert_close(out[0, at, head], weights @ v[0, seen, group])


def test_causal_mask_ends_on_the_last_key() -> None:
    mask = causal_mask(2, 4, 2, CPU)
    assert mask.tolist() == [[False, True, True, False], [False, False, True, True]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ON_CPU)
def test_the_check_passes_what_is_right(gpu_backends_on_cpu, name: str, dtype: torch.dtype) -> None:
    for changes in ({}, {"grouped": True, "groups": 3}, {"windowed": False}):
        for training in {False, name in TRAIN_ON_CPU}:
            assert check(BACKENDS[name], request(dtype=dtype, training=training, **changes)) is None


class Broken(native.Sdpa):
    """Right but for one thing."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def attend(self, q, k, v, window):
        good = super().attend
        match self.fault:
            case "raises":
                raise RuntimeError("no kernel image\nfor this device")
            case "no window":
                return good(q, k, v, q.shape[1])
            case "a key too many":
                return good(q, k, v, window + 1)
            case "a key too few":
                return good(q, k, v, window - 1)
            case "nan":
                return good(q, k, v, window) * float("nan")
            case "nan late":
                out = good(q, k, v, window).clone()
                out[-1, -1, -1, -1] = float("nan")
                return out
            case "no gradient of k":
                return good(q, k.detach(), v, window)
            case "no gradient":
                return good(q, k, v, window).detach()
            case "strides":  # reads a view as if it were contiguous
                return good(q, k, torch.as_strided(v, v.shape, v.contiguous().stride(), v.storage_offset()), window)
            case "shape":
                return good(q, k, v, window)[:, :, :1]
            case "dies backward":
                return DiesBackward.apply(good(q, k, v, window))


class DiesBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("out of shared memory")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("raises", "fails on this device: RuntimeError: no kernel image"),
        ("no window", "is wrong on this device with a window of 128: output is off by"),
        ("a key too many", "is wrong on this device with a window of 128: output is off by"),
        ("a key too few", "is wrong on this device with"),
        ("nan", "is wrong on this device with full attention: output is off by nan"),
        ("nan late", "is wrong on this device with full attention: output is off by nan"),
        ("no gradient of k", "is wrong on this device with full attention: dk is off by 1.0e+00"),
        ("no gradient", "fails on this device: RuntimeError: element 0 of tensors does not require grad"),
        ("strides", "is wrong on this device with full attention: output is off by"),
        ("shape", "fails on this device: RuntimeError: Mismatch in shape"),
        ("dies backward", "fails on this device: RuntimeError: out of shared memory"),
    ],
)
def test_the_check_sees_what_is_wrong(fault: str, problem: str, dtype: torch.dtype) -> None:
    found = check(Broken(fault), request(dtype=dtype))
    assert found is not None and found.startswith(problem) and "\n" not in found


def test_a_backward_is_asked_of_training_alone() -> None:
    for fault in ("dies backward", "no gradient of k"):
        assert check(Broken(fault), request(training=False)) is None


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_cached_logits_equal_uncached_ones_well_past_the_window(gpu_backends_on_cpu, name: str, kv_heads: int) -> None:
    """Half of the context at once, the rest a token at a time; the window is a sixth of the context."""
    context = 48
    model = small_gpt(attend=BACKENDS[name].attend, context=context, windows=(8, context), heads=4, kv_heads=kv_heads)
    ids = torch.randint(0, 64, (2, context), generator=torch.Generator().manual_seed(kv_heads))
    cache = KVCache(model.config, 2, context, CPU, torch.float32)
    with torch.no_grad():
        expected = model.logits(model(ids))
        parts = [(0, 24), *((at, at + 1) for at in range(24, context))]
        for start, stop in parts:
            positions = torch.arange(start, stop).expand(2, -1)
            cache.begin(positions)
            found = model.logits(model(ids[:, start:stop], cache, positions))
            torch.testing.assert_close(found, expected[:, start:stop], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["sdpa", "matmul", "flex"])
def test_one_graph_compiled_once(gpu_backends_on_cpu, name: str) -> None:
    """Layers with and without a window in one function, which compiles whole and not again."""
    torch._dynamo.reset()
    counter = CompileCounter()
    attend = BACKENDS[name].attend

    def layers(q, k, v):
        return attend(attend(attend(q, k, v, 5), k, v, 24), k, v, 5)

    step = torch.compile(layers, fullgraph=True, dynamic=False, backend=counter)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        q, k, v = torch.randn(2, 24, 8, 16, generator=generator).split([4, 2, 2], dim=2)
        expected = reference(reference(reference(q, k, v, 5), k, v, 24), k, v, 5)
        torch.testing.assert_close(step(q, k, v), expected, atol=2e-5, rtol=1e-4)
    assert counter.frame_count == 1


def test_cudnn_never_forgets_a_window() -> None:
    q = torch.zeros(1, 8, 1, 16)
    with pytest.raises(ValueError, match="was asked for the last 4 of 8"):
        BACKENDS["cudnn"].attend(q, q, q, 4)
