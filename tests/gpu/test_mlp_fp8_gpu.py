"""The fp8 MLP's products with QuACK's epilogues on the GPU, against the plain torch version of the same operators."""

import pytest
import torch
from torch import Tensor

from model.gpt import MLP, norm
from model.kernels import mlp_fp8
from model.kernels.quantize import E4M3, E5M2, LARGEST, to_fp8
from model.precision.fp8 import Fp8
from model.precision.fp8_mlp import Fp8Mlp
from tests.small_gpt import small_config

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
SHAPES = [(512, 256, 384), (272, 768, 3072), (4096, 1280, 5120)]  # rows, width, hidden: whole tiles and not


@pytest.fixture(scope="module", autouse=True)
def accepted() -> None:
    if (refusal := mlp_fp8.refuses(GPU)) is not None:
        pytest.skip(refusal)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(GPU)


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()


def same_bytes(found: Tensor, expected: Tensor) -> bool:
    return torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def operands(rows: int, width: int, hidden: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x8, weight8, dy8, and a factor that makes of the products numbers of the order of 1."""
    x8, weight8 = (to_fp8(random(n, width, seed=n), 8.0, E4M3) for n in (rows, hidden))
    dy8 = to_fp8(random(rows, width, seed=1), 8.0, E5M2)
    return x8, weight8, dy8, torch.tensor(1 / (64 * width**0.5), device=GPU)


@pytest.mark.parametrize("shape", SHAPES)
def test_up_is_the_plain_version(shape: tuple[int, int, int]) -> None:
    x8, weight8, _, unit = operands(*shape)
    a8 = mlp_fp8.up(x8, weight8, 8 * unit)
    expected = mlp_fp8._up(x8, weight8, 8 * unit)
    assert relative(a8, expected) < 4e-2  # sums have about 14 bits: now and then a last digit is rounded otherwise
    assert (a8.float() == LARGEST[E4M3]).any() and not a8.float().isnan().any(), "cut off, not lost"


@pytest.mark.parametrize("shape", SHAPES)
def test_the_backward_product_is_the_plain_version(shape: tuple[int, int, int]) -> None:
    x8, weight8, dy8, unit = operands(*shape)
    a8 = mlp_fp8._up(x8, weight8, 4 * unit)
    beta = 4096 * unit
    dh8, dh_columns, a_columns = mlp_fp8.down_backward(dy8, weight8, a8, beta)
    expected = mlp_fp8._down_backward(dy8, weight8, a8, beta)
    assert relative(dh8, expected) < 4e-2
    assert (dh8.float() == LARGEST[E5M2]).any() and dh8.float().isfinite().all()
    assert same_bytes(dh_columns, dh8.mT) and same_bytes(a_columns.float().abs(), a8.float().abs().mT)


def test_an_mlp_with_epilogues_is_as_close_to_float32s_as_one_without() -> None:
    block = MLP(small_config(width=256, mlp_width=1024)).to(GPU)
    with torch.no_grad():
        block.up.weight.copy_(random(1024, 256) / 16)
        block.down.weight.copy_(random(256, 1024, seed=1) / 32)
    x, gradient = norm(random(512, 256, seed=2)), random(512, 256, seed=3) * 1e-2

    def gradients(leaf: Tensor) -> list[Tensor]:
        block.zero_grad()
        leaf.requires_grad_()
        y = block(leaf)
        y.backward(gradient.to(y.dtype))
        return [y.detach(), leaf.grad, block.up.weight.grad, block.down.weight.grad]

    exact = gradients(x.clone())
    block.up.format = Fp8(block.up.weight, "norm")
    block.down.format = Fp8(block.down.weight, "relu2", block.up.weight)
    for layer in (block.up, block.down):
        layer.format.refresh(layer.weight.detach())
    results = {}
    for epilogues in (True, False):
        block.fused = Fp8Mlp(epilogues)
        results[epilogues] = gradients(x.bfloat16())
    for ours, theirs, expected in zip(results[True], results[False], exact, strict=True):
        assert ours.dtype == theirs.dtype and relative(ours, expected) < 0.1
        assert relative(ours, expected) < 1.05 * relative(theirs, expected)
