"""Precision recipes: what `auto` becomes, and what a recipe computes in."""

from pathlib import Path

import pytest
import torch

from config.errors import UserError
from model.kernels import mlp
from model.linear import Embedding, refresh
from model.precision import measure, recipes
from model.precision.bf16 import Bf16, Bf16Mlp, Bf16Rows
from model.precision.fp8 import Fp8
from model.precision.nvfp4 import Nvfp4
from model.precision.recipes import Recipe, has_native_bf16, resolve
from tests.small_gpt import small_gpt

CPU = torch.device("cpu")


@pytest.mark.parametrize(("native", "name"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_bf16_where_the_device_has_it(monkeypatch, native: bool, name: str) -> None:
    monkeypatch.setattr(recipes, "has_native_bf16", lambda _: native)
    assert resolve("auto", CPU).name == name
    assert resolve("fp32", CPU).compute == torch.float32


def test_bf16_without_instructions_says_that_it_is_slow(monkeypatch) -> None:
    monkeypatch.setattr(recipes, "has_native_bf16", lambda _: False)
    assert "slow" in resolve("bf16", CPU).reason
    monkeypatch.setattr(recipes, "has_native_bf16", lambda _: True)
    assert "slow" not in resolve("bf16", CPU).reason


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("flags : fpu avx512f avx512_bf16 amx_tile", True), ("Features : asimd bf16 i8mm", True), ("flags : avx2", False)],
)
def test_cpu_flags_of_x86_and_arm(monkeypatch, flags: str, expected: bool) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: flags)
    assert has_native_bf16(CPU) is expected


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_a_recipe_computes_in_its_format(name: str, dtype: torch.dtype) -> None:
    model = small_gpt()
    resolve(name, CPU).apply(model)
    ids = torch.arange(8)[None]
    x = model(ids)
    assert model.head(x).dtype == dtype
    with torch.no_grad():
        assert model.head(model(ids)).dtype == dtype
    model.head(x).float().square().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())


def test_weights_are_cast_once_an_update() -> None:
    model = small_gpt()
    resolve("bf16", CPU).apply(model)
    ids = torch.arange(8)[None]
    before = model(ids)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    embedded = model.embedding(ids)  # float32 here: read from the master itself
    stale = model.blocks[0].mlp.up(embedded)
    refresh(model)
    fresh = model.blocks[0].mlp.up(embedded)
    torch.testing.assert_close(fresh.float(), 1.5 * stale.float(), rtol=2e-2, atol=3e-2)
    assert not torch.equal(model(ids), before)


def test_formats_are_no_part_of_what_is_published() -> None:
    names = small_gpt().state_dict().keys()
    model = small_gpt()
    resolve("bf16", CPU).apply(model)
    assert model.state_dict().keys() == names
    assert dict(model.named_parameters()).keys() == dict(small_gpt().named_parameters()).keys()


def test_a_recipe_that_the_device_cannot_run_says_so() -> None:
    with pytest.raises(UserError, match="precision fp8 needs a GPU with fp8"):
        resolve("fp8", CPU)


def test_an_embedding_in_bf16_has_the_gradient_of_torchs() -> None:
    table = torch.randn(10, 4, requires_grad=True)
    ids = torch.tensor([[1, 1, 3], [9, 1, 0]])
    form = Bf16Rows(table)
    form.refresh(table.detach())
    rows = form(ids, table)
    assert rows.dtype == torch.bfloat16
    rows.float().pow(2).sum().backward()
    expected = table.detach().bfloat16().float().requires_grad_()
    torch.nn.functional.embedding(ids, expected).pow(2).sum().backward()
    torch.testing.assert_close(table.grad, expected.grad, rtol=1e-2, atol=1e-2)


def test_scaled_rows_have_the_gradients_of_a_lookup_times_factors() -> None:
    ids, weight = torch.tensor([[1, 1, 3], [9, 1, 0]]), torch.randn(10, 8)
    results = []
    for form in (None, Bf16Rows(weight)):
        table = Embedding(10, 8)
        table.weight = torch.nn.Parameter(weight.bfloat16().float())
        table.format = form
        refresh(table)
        factors = torch.linspace(-1, 2, 12).view(2, 3, 2).requires_grad_()
        rows = table.scaled(ids, factors)
        assert rows.shape == (2, 3, 2, 4)
        (rows * torch.arange(4)).sum().backward()
        results.append((rows, factors.grad, table.weight.grad))
    for found, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_an_mlp_in_bf16_has_the_gradients_of_its_parts() -> None:
    model = small_gpt()
    resolve("bf16", CPU).apply(model)
    block = model.blocks[0].mlp
    x = torch.randn(2, 5, 32)
    results = []
    for fused in (None, Bf16Mlp()):
        block.fused = fused
        leaf = x.bfloat16().requires_grad_()
        y = block(leaf)
        y.backward(torch.ones_like(y))
        results.append((y, leaf.grad, block.up.weight.grad, block.down.weight.grad))
        block.zero_grad()
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_fp8_stays_away_from_shapes_where_it_lost(monkeypatch) -> None:
    """The smallest products lose, by what was measured; the choice is by shape, and can be taken up again."""
    model = small_gpt(width=256, heads=2, kv_heads=2, mlp_width=1024, vocab_size=256)
    monkeypatch.setattr(measure, "_fp8_ms", lambda _rows, outputs, inputs, _device: 1.0 + 1e-6 * outputs * inputs)
    monkeypatch.setattr(measure, "_bf16_ms", lambda _rows, outputs, inputs, _parts, _device: 1e-5 * outputs * inputs)
    monkeypatch.setattr(measure, "_parts_ms", lambda *_: {1: 1.0, 2: 0.5, 4: 0.6})
    choices = Recipe("fp8", torch.bfloat16, "", torch.device("cuda")).measure(model, rows=64)
    recipe = Recipe("fp8", torch.bfloat16, "", CPU)
    assert choices["256x256"] == {"format": "bf16", "parts": 2, "fp8_ms": 1.066, "bf16_ms": 0.655}
    assert choices["768x256"]["format"] == choices["1024x256"]["format"] == "fp8"
    recipe.apply(model, choices)
    attention, block = model.blocks[0].attention, model.blocks[0].mlp
    assert isinstance(attention.out.format, Bf16) and isinstance(attention.qkv.format, Fp8)
    assert attention.out.format.parts == 2
    assert isinstance(block.up.format, Fp8)
    assert block.down.format.bound == "relu2" and attention.qkv.format.bound == "norm"
    assert isinstance(model.blocks[1].attention.gate.format, Bf16), "too small for 8 bits"
    assert recipe.measure(model, rows=64) == {}, "nothing to choose on a CPU"
    in_bf16 = Recipe("bf16", torch.bfloat16, "", torch.device("cuda")).measure(model, rows=64)
    assert in_bf16["768x256"] == {"format": "bf16", "parts": 2, "bf16_ms": 1.966}


def test_a_gradient_is_summed_in_parts_only_where_that_is_clearly_faster() -> None:
    assert measure.fewest_milliseconds({1: 1.0, 2: 0.99, 4: 1.2}) == 1
    assert measure.fewest_milliseconds({1: 1.0, 2: 0.95, 4: 0.9, 8: 0.92}) == 4


def test_four_bits_leave_the_head_and_the_last_layers_alone() -> None:
    sizes = {"width": 256, "heads": 2, "kv_heads": 2, "mlp_width": 512, "vocab_size": 256}
    model = small_gpt(layers=6, windows=(8, 8, 8, 32, 8, 32), value_layers=(), **sizes)
    resolve("nvfp4-emulated", CPU).apply(model)
    kinds = [isinstance(block.mlp.up.format, Nvfp4) for block in model.blocks]
    assert kinds == [True] * 5 + [False] and isinstance(model.head.format, Bf16)


def test_quacks_products_are_refused_with_the_reason(monkeypatch) -> None:
    assert "Hopper" in mlp.refuses(CPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    reason = mlp.refuses(torch.device("cuda"))  # no GPU here, and no package: whatever it raises is the reason
    assert reason.startswith("QuACK's fused products can't be used: ")


def test_quacks_products_off_a_gpu_are_the_plain_ones() -> None:
    x, weight, gradient = torch.randn(6, 8), torch.randn(12, 8), torch.randn(6, 8)
    h, a = mlp.up(x, weight)
    leaf = (x @ weight.mT).requires_grad_()
    y = torch.nn.functional.relu(leaf).square() @ weight
    y.backward(gradient)
    torch.testing.assert_close(h, leaf.detach())
    d_h, again = mlp.down_backward(gradient, weight.mT.contiguous(), h)
    torch.testing.assert_close(again, a)
    torch.testing.assert_close(d_h, leaf.grad)
