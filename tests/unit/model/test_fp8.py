"""fp8's numerics, in plain torch: bounds, scales, gradients; the same numbers that the GPU's matrix units multiply."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from model.gpt import MLP, norm, queries_keys_values, rotary_tables
from model.linear import Linear
from model.precision.fp8 import E4M3, LARGEST, Fp8, power_of_two_below
from model.precision.fp8_mlp import Fp8Mlp
from model.precision.fp8_qkv import Fp8Projection
from tests.small_gpt import small_config


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()


def linear(outputs: int, inputs: int, bound: str, source: Tensor | None = None) -> Linear:
    layer = Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.copy_(random(outputs, inputs, seed=3) * inputs**-0.5)
    layer.format = Fp8(layer.weight, bound, source)
    layer.format.refresh(layer.weight.detach())
    return layer


@given(st.floats(1e-30, 1e30))
def test_power_of_two_below(value: float) -> None:
    power = power_of_two_below(torch.tensor(value)).item()
    assert power <= torch.tensor(value).item() < 2 * power
    assert torch.frexp(torch.tensor(power)).mantissa.item() == 0.5


@pytest.mark.parametrize("bound", ["norm", "values"])
def test_a_product_and_its_gradients_are_close_to_float32s(bound: str) -> None:
    layer = linear(48, 64, bound)
    x = norm(random(2, 40, 64)).bfloat16().requires_grad_()
    gradient = random(2, 40, 48, seed=1) * 1e-3
    y = layer(x)
    y.backward(gradient.bfloat16())
    exact_x, exact_w = x.detach().float().requires_grad_(), layer.weight.detach().clone().requires_grad_()
    exact = F.linear(exact_x, exact_w)
    exact.backward(gradient)
    assert y.dtype == torch.bfloat16 and layer.weight.grad.dtype == torch.float32
    # Rounding to 4 significant bits errs by 2.6 % a number, to 3 by 5.2 %; sums of random signs keep that.
    assert 0.01 < relative(y, exact) < 0.05
    assert relative(x.grad, exact_x.grad) < 0.08
    assert relative(layer.weight.grad, exact_w.grad) < 0.08


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_the_size_of_the_weights_does_not_matter(size: float) -> None:
    layer = linear(48, 64, "norm")
    with torch.no_grad():
        layer.weight.mul_(size)
    layer.format.refresh(layer.weight.detach())
    x = norm(random(40, 64)).bfloat16()
    assert relative(layer(x), F.linear(x.float(), layer.weight)) < 0.05


@pytest.mark.parametrize("size", [1e-7, 1e-5, 1e-2, 1.0])
def test_gradients_of_tokens_losses_keep_their_precision(size: float) -> None:
    layer = linear(48, 64, "norm")
    x = norm(random(40, 64)).bfloat16().requires_grad_()
    gradient = (random(40, 48, seed=1) * size).bfloat16()
    layer(x).backward(gradient)
    assert relative(x.grad, gradient.float() @ layer.weight) < 0.08


def test_no_norm_exceeds_its_bound() -> None:
    for width in (64, 768, 1280, 4096):
        spike = torch.zeros(1, width)
        spike[0, 0] = 7.0
        layer = Linear(width, 16)
        assert norm(spike).amax() * Fp8(layer.weight, "norm").input <= LARGEST[E4M3]


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2)])
def test_the_projection_is_the_product_and_what_follows(heads: int, kv_heads: int) -> None:
    layer = linear((heads + 2 * kv_heads) * 16, 64, "norm")
    x = norm(random(2, 10, 64)).bfloat16()
    cos, sin = rotary_tables(10, 16, 100.0)
    results = []
    for fused in (True, False):
        leaf = x.clone().requires_grad_()
        layer.zero_grad()
        if fused:
            out = Fp8Projection()(leaf, layer, cos, sin, heads)
        else:
            qkv = layer(leaf).view(2, 10, heads + 2 * kv_heads, 16)
            out = queries_keys_values(qkv, (cos[:, None], sin[:, None]), heads)
        sum((y.float() * random(*y.shape, seed=at)).sum() * 1e-3 for at, y in enumerate(out)).backward()
        results.append((*out, leaf.grad, layer.weight.grad.clone()))
    for ours, theirs in zip(*results, strict=True):
        assert relative(ours, theirs) < 0.03  # the gradient is rounded once in bf16 on one of the ways


def mlp() -> MLP:
    block = MLP(small_config(width=64, mlp_width=256))
    with torch.no_grad():
        block.up.weight.copy_(random(256, 64) * 64**-0.5)
        block.down.weight.copy_(random(64, 256, seed=1) * 256**-0.5)
    return block


def test_an_mlp_in_fp8_is_close_to_float32s() -> None:
    block, exact = mlp(), mlp()
    block.up.format = Fp8(block.up.weight, "norm")
    block.down.format = Fp8(block.down.weight, "relu2", block.up.weight)
    for layer in (block.up, block.down):
        layer.format.refresh(layer.weight.detach())
    block.fused = Fp8Mlp()
    x = norm(random(2, 50, 64, seed=2))
    ours, theirs = x.bfloat16().requires_grad_(), x.clone().requires_grad_()
    gradient = random(2, 50, 64, seed=4) * 1e-2
    found, expected = block(ours), exact(theirs)
    found.backward(gradient.bfloat16())
    expected.backward(gradient)
    # h errs by 3.7 %, which the square doubles; two more roundings and a sum of squares of all that make about 6 %.
    assert 0.03 < relative(found, expected) < 0.07
    assert relative(ours.grad, theirs.grad) < 0.1
    for name in ("up", "down"):
        assert relative(getattr(block, name).weight.grad, getattr(exact, name).weight.grad) < 0.1
    # Fused or one product after the other: the same numbers.
    apart = mlp()
    for name in ("up", "down"):
        getattr(apart, name).format = getattr(block, name).format
    again = x.bfloat16().requires_grad_()
    apart(again).backward(gradient.bfloat16())
    assert relative(again.grad, ours.grad) < 0.05
    assert relative(apart.up.weight.grad, block.up.weight.grad) < 0.05


def test_relu_squared_stays_within_the_format_up_to_half_its_bound() -> None:
    block = mlp()
    form = Fp8(block.down.weight, "relu2", block.up.weight)
    form.refresh(block.down.weight.detach())
    longest = block.up.weight.norm(dim=1).amax()
    largest = (longest * 64**0.5 / 2) ** 2
    assert largest * form.input <= LARGEST[E4M3] < 4 * largest * form.input


def test_evaluation_is_in_bf16() -> None:
    layer = linear(48, 64, "norm")
    x = random(5, 64)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), F.linear(x.bfloat16(), layer.weight.bfloat16()))
