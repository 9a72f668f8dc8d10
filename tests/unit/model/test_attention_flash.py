"""The flash-attention packages' backends, over stand-ins for the packages: gradients, tracing, compilation."""

import sys
from types import ModuleType

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from model.attention.check import check
from model.attention.flash import FA2, FA3, FA4, Flash
from model.attention.protocol import Request, reference
from model.cache import KVCache
from tests.fake_flash import Kernels, fa2_functions, fa3_functions, fa4_functions
from tests.small_gpt import small_gpt

CPU = torch.device("cpu")
PACKAGES = (FA4, FA3, FA2)
by_name = pytest.mark.parametrize("backend", PACKAGES, ids=lambda backend: backend.name)


@pytest.fixture
def kernels(monkeypatch) -> Kernels:
    """All three packages installed; what they share, which keeps record."""
    shared = Kernels()
    for backend, functions in ((FA4, fa4_functions), (FA3, fa3_functions), (FA2, fa2_functions)):
        parts = backend.module.split(".")
        for depth in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), ModuleType("stand_in"))
        module = ModuleType(backend.module)
        module.__dict__.update(functions(shared))
        monkeypatch.setitem(sys.modules, backend.module, module)
    return shared


def fused(length: int, heads: int, kv_heads: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """A leaf QKV tensor, and q, k, v: views into it."""
    generator = torch.Generator().manual_seed(length)
    qkv = torch.randn(2, length, heads + 2 * kv_heads, 16, generator=generator, dtype=dtype).requires_grad_()
    return [qkv, *qkv.split([heads, kv_heads, kv_heads], dim=2)]


@by_name
@pytest.mark.parametrize("window", [1, 7, 50, 51, 1000])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (3, 1)])
def test_agrees_with_the_reference(kernels, backend: Flash, window: int, heads: tuple[int, int]) -> None:
    (ours, *inputs), (theirs, *same) = fused(51, *heads), fused(51, *heads)
    out, expected = backend.attend(*inputs, window), reference(*same, window)
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    out.backward(gradient)
    expected.backward(gradient)
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=2e-5, rtol=1e-4)
    assert kernels.strides == [inputs[2].stride()], "v was copied on its way to the kernel"


@by_name
def test_the_check_passes_it(kernels, backend: Flash) -> None:
    for changes in ({"grouped": False}, {"grouped": True, "groups": 4}, {"grouped": False, "training": False}):
        request = Request(CPU, torch.bfloat16, 64, windowed=True, compiled=True, **changes)
        assert check(backend, request) is None


@by_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [5, 30])
def test_its_registrations_are_what_torch_asks_of_an_operator(kernels, backend: Flash, dtype, window: int) -> None:
    """Schema, shapes and strides for tracing, derivative under tracing: of the forward, then of the backward."""
    _, q, k, v = fused(24, 4, 2, dtype)
    close = {"atol": 1e-2, "rtol": 1e-2} if dtype == torch.bfloat16 else {}
    torch.library.opcheck(backend.operator, (q.detach(), k.detach(), v.detach(), window))
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(backend.operator, (*leaves, window), **close)
    out, lse = backend.operator(*leaves, window)
    assert not lse.requires_grad
    backward = getattr(torch.ops.tandem, f"{backend.name}_backward").default
    saved = [x.detach() for x in (torch.randn_like(out), q, k, v, out, lse)]
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_static")  # it has no derivative of its own
    torch.library.opcheck(backward, (*saved, window), test_utils=tests)


@by_name
def test_a_compiled_model_has_one_graph_and_compiles_once(kernels, backend: Flash) -> None:
    """Several layers, windows among them; gradients as without compiling; v reaches the kernel where it lies."""
    torch._dynamo.reset()
    model = small_gpt(attend=backend.attend, layers=3, windows=(8, 8, 32), value_layers=(0,))
    plain = small_gpt(attend=backend.attend, layers=3, windows=(8, 8, 32), value_layers=(0,))
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(lambda ids: model(ids).square().mean(), fullgraph=True, dynamic=False, backend=counter)
    for seed in range(3):
        ids = torch.randint(0, 64, (2, 32), generator=torch.Generator().manual_seed(seed))
        kernels.strides.clear()
        for each, loss in ((model, step(ids)), (plain, plain(ids).square().mean())):
            each.zero_grad()
            loss.backward()
        fused_strides = (32 * 6 * 16, 6 * 16, 16, 1)  # of (B, T, heads, D) in (B, T, 3 × 2 heads, D)
        assert kernels.strides[1:3] == [fused_strides] * 2 and len(kernels.strides) == 6
        for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4, msg=name)
    assert counter.frame_count == 1


@by_name
def test_determinism_is_passed_on(kernels, backend: Flash) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        for wanted in (True, False):
            torch.use_deterministic_algorithms(wanted)
            _, *inputs = fused(8, 2, 2)
            backend.attend(*inputs, 8).sum().backward()
    finally:
        torch.use_deterministic_algorithms(before)
    assert kernels.deterministic == [True, False]


@by_name
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_cached_logits_equal_uncached_ones_well_past_the_window(kernels, backend: Flash, kv_heads: int) -> None:
    context = 48
    model = small_gpt(attend=backend.attend, context=context, windows=(8, context), heads=4, kv_heads=kv_heads)
    ids = torch.randint(0, 64, (2, context), generator=torch.Generator().manual_seed(kv_heads))
    cache = KVCache(model.config, 2, context, CPU, torch.float32)
    with torch.no_grad():
        expected = model.logits(model(ids))
        for at in range(context):
            positions = torch.full((2, 1), at)
            cache.begin(positions)
            found = model.logits(model(ids[:, at : at + 1], cache, positions))
            torch.testing.assert_close(found, expected[:, at : at + 1], atol=1e-4, rtol=1e-4)
