"""Precision recipes: what `auto` becomes, and what a recipe computes in."""

from pathlib import Path

import pytest
import torch

from config.errors import UserError
from model.linear import refresh
from model.precision import recipes
from model.precision.bf16 import Bf16Mlp, Bf16Rows
from model.precision.recipes import has_native_bf16, resolve
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
