"""Precision recipes: what `auto` becomes, and what a recipe computes in."""

from pathlib import Path

import pytest
import torch

from model.precision import recipes
from model.precision.recipes import has_native_bf16, resolve

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
    x = torch.randn(4, 4)
    with resolve(name, CPU).autocast(CPU):
        assert (x @ x).dtype == dtype
