"""Triton and QuACK kernels on the GPU, each against the plain torch version of the same operator or a reference."""

import time

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from model.gpt import MLP, norm, rotary_tables
from model.kernels import mlp
from model.kernels.head_loss import CHUNK_ROWS
from model.kernels.quantize import E4M3, E5M2, quantize, relu2_backward, to_fp8, transpose
from model.kernels.relu2 import relu2_backward as relu2_backward_bf16
from model.kernels.rotary import rotary, rotary_backward
from model.kernels.rotary_fp8 import rotary_backward_fp8
from model.linear import Linear
from model.objective import fused
from model.precision import measure
from model.precision.bf16 import Bf16, weight_gradient
from model.precision.fp8 import Fp8
from model.precision.fp8_mlp import Fp8Mlp
from tests.small_gpt import small_config

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(GPU, dtype)


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found.cpu().float() - expected.cpu().float()).norm() / expected.cpu().float().norm()).item()


def same_bytes(found: Tensor, expected: Tensor) -> bool:
    return torch.equal(found.cpu().view(torch.uint8), expected.cpu().contiguous().view(torch.uint8))


@pytest.mark.parametrize("shape", [(64, 128), (4096, 1280), (1000, 768), (333, 48)])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_quantize_and_transpose_to_the_byte(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for x in (random(*shape), random(*shape, dtype=torch.float32)):
        rows, columns = quantize(x, torch.tensor(4.0, device=GPU), dtype)
        assert same_bytes(rows, to_fp8(x.cpu().bfloat16(), 4.0, dtype))
        assert same_bytes(columns, rows.cpu().view(torch.uint8).mT)
    bytes_ = torch.randint(0, 256, shape, device=GPU, dtype=torch.uint8)
    assert torch.equal(transpose(bytes_), bytes_.mT)


@pytest.mark.parametrize("shape", [(64, 128), (4096, 5120), (1000, 768)])
def test_the_derivative_of_relu_squared_to_the_byte(shape: tuple[int, int]) -> None:
    gradient, a8 = random(*shape), to_fp8(random(*shape, seed=1).abs(), 8.0, E4M3)
    scales = torch.tensor(1 / 8, device=GPU), torch.tensor(4.0, device=GPU)
    found = relu2_backward(gradient, a8, *scales)
    expected = relu2_backward(gradient.cpu(), a8.cpu(), *(scale.cpu() for scale in scales))
    assert relative(found[0], expected[0]) < 1e-3  # the square root may round otherwise
    assert same_bytes(found[1], found[0].cpu().view(torch.uint8).mT)
    assert same_bytes(found[2], expected[2])
    h = random(*shape, seed=2)
    for ours, theirs in zip(
        relu2_backward_bf16(gradient, h), relu2_backward_bf16(gradient.cpu(), h.cpu()), strict=True
    ):
        assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(10, 10, 128), (6, 2, 64), (3, 1, 32)])
def test_rotary(heads: int, kv_heads: int, dim: int) -> None:
    qkv = random(2, 301, heads + 2 * kv_heads, dim)
    cos, sin = rotary_tables(301, dim, 1e5)
    on_gpu = rotary(qkv, cos.cuda(), sin.cuda(), heads)
    on_cpu = rotary(qkv.cpu(), cos, sin, heads)
    for ours, theirs in zip(on_gpu, on_cpu, strict=True):
        assert relative(ours, theirs) < 1e-3
    gradients = [random(*x.shape, seed=at) for at, x in enumerate(on_gpu[:3])]
    found = rotary_backward(*gradients, on_gpu[0], on_gpu[1], on_gpu[3], cos.cuda(), sin.cuda())
    expected = rotary_backward(*(x.cpu() for x in gradients), on_cpu[0], on_cpu[1], on_cpu[3], cos, sin)
    assert relative(found, expected) < 2e-3
    scale = torch.tensor(4.0, device=GPU)
    rows, columns = rotary_backward_fp8(*gradients, *on_gpu[:2], on_gpu[3], cos.cuda(), sin.cuda(), scale)
    assert relative(rows.float() / 4, found.view(rows.shape)) < 0.06  # what E5M2 rounds off
    assert same_bytes(columns, rows.cpu().view(torch.uint8).mT)


def head(vocab: int, width: int, precision: str) -> Linear:
    layer = Linear(width, vocab).to(GPU)
    with torch.no_grad():
        layer.weight.copy_(random(vocab, width, seed=1, dtype=torch.float32) * 0.1)
    layer.format = Fp8(layer.weight, "norm") if precision == "fp8" else Bf16(layer.weight)
    layer.format.refresh(layer.weight.detach())
    return layer


def multiplied(hidden: Tensor, layer: Linear) -> tuple[Tensor, Tensor]:
    """What the head's product multiplies, in float32: of fp8 the rounded numbers, whose loss is as exact as bf16's."""
    form = layer.format
    if not isinstance(form, Fp8):
        return hidden.float(), layer.weight.detach().clone()
    unscale = form.unscale_forward * form.input
    return to_fp8(hidden, form.input, E4M3).float() / form.input, form.rows.float() * unscale


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 1e-2), ("fp8", 8e-2)])
@pytest.mark.parametrize(("rows", "vocab"), [(512, 32_768), (CHUNK_ROWS + 1024, 4096), (64, 784)])
def test_the_fused_loss_is_cross_entropy(precision: str, tolerance: float, rows: int, vocab: int) -> None:
    layer = head(vocab, 256, precision)
    hidden = norm(random(rows, 256, dtype=torch.float32)).bfloat16().requires_grad_()
    targets = torch.randint(0, vocab, (rows,), generator=torch.Generator().manual_seed(2)).to(GPU)
    targets[::7] = -1
    loss = fused(hidden, layer, targets, 15.0)
    loss.backward()
    exact_hidden, exact_weight = (x.requires_grad_() for x in multiplied(hidden.detach(), layer))
    logits = 15 * torch.tanh(exact_hidden @ exact_weight.mT / 15)
    exact = F.cross_entropy(logits, targets, ignore_index=-1, reduction="sum")
    exact.backward()
    assert loss.item() == pytest.approx(exact.item(), rel=3e-3)
    assert relative(hidden.grad, exact_hidden.grad) < tolerance
    assert relative(layer.weight.grad, exact_weight.grad) < tolerance
    assert (hidden.grad[::7] == 0).all()


@pytest.mark.parametrize("rows", [1024, 1020])
def test_a_weights_gradient_in_parts_is_the_same_sum(rows: int) -> None:
    gradient, x = random(rows, 384), random(rows, 256, seed=1)
    exact = gradient.double().mT @ x.double()
    for parts in (1, 2, 8):
        found = weight_gradient(gradient, x, parts)
        assert found.dtype == torch.float32 and relative(found, exact) < 1e-5


def test_fp8_multiplies_the_same_numbers_as_off_the_gpu() -> None:
    results = []
    for device in (GPU, torch.device("cpu")):
        layer = Linear(256, 384).to(device)
        with torch.no_grad():
            layer.weight.copy_(random(384, 256, seed=1, dtype=torch.float32) * 0.06)
        layer.format = Fp8(layer.weight, "norm")
        layer.format.refresh(layer.weight.detach())
        x = norm(random(512, 256, dtype=torch.float32)).to(device, torch.bfloat16).requires_grad_()
        y = layer(x)
        y.backward(random(512, 384, seed=2).to(device) * 1e-3)
        results.append((y, x.grad, layer.weight.grad))
    for ours, theirs in zip(*results, strict=True):
        assert relative(ours, theirs) < 6e-3  # summed with about 14 bits, and rounded to bf16


def test_an_mlp_in_fp8_is_close_to_float32s() -> None:
    block = MLP(small_config(width=256, mlp_width=1024)).to(GPU)
    with torch.no_grad():
        block.up.weight.copy_(random(1024, 256, dtype=torch.float32) / 16)
        block.down.weight.copy_(random(256, 1024, seed=1, dtype=torch.float32) / 32)
    x = norm(random(512, 256, seed=2, dtype=torch.float32))
    exact_x = x.clone().requires_grad_()
    gradient = random(512, 256, seed=3) * 1e-2
    block(exact_x).backward(gradient.float())
    expected = [exact_x.grad, block.up.weight.grad, block.down.weight.grad]
    block.zero_grad()
    block.up.format = Fp8(block.up.weight, "norm")
    block.down.format = Fp8(block.down.weight, "relu2", block.up.weight)
    for layer in (block.up, block.down):
        layer.format.refresh(layer.weight.detach())
    block.fused = Fp8Mlp()
    ours = x.bfloat16().requires_grad_()
    block(ours).backward(gradient)
    for found, exact in zip((ours.grad, block.up.weight.grad, block.down.weight.grad), expected, strict=True):
        assert relative(found, exact) < 0.1


def test_quacks_epilogues_or_the_reason_against_them() -> None:
    if (refusal := mlp.refuses(GPU)) is not None:
        pytest.skip(refusal)
    x, weight, gradient = random(1024, 256), random(768, 256, seed=1) / 16, random(1024, 256, seed=2)
    h, a = mlp.up(x, weight)
    exact_h = x.float() @ weight.float().mT
    assert relative(h, exact_h) < 5e-3 and relative(a, F.relu(exact_h).square()) < 1e-2
    d_h, again = mlp.down_backward(gradient, weight.mT.contiguous(), h)
    exact = gradient.float() @ weight.float().mT * 2 * F.relu(h.float())
    assert relative(d_h, exact) < 1e-2 and relative(again, F.relu(h.float()).square()) < 5e-3


def test_what_is_fastest_is_measured_on_the_gpu_alone() -> None:
    """A product's time does not grow with what the host does between its launches."""
    choices = measure.fastest([(256, 512)], 4096, GPU, fp8=True)
    assert set(choices["256x512"]) == {"format", "parts", "bf16_ms", "fp8_ms"}
    x = random(4096, 512)

    def work() -> None:
        time.sleep(0.005)
        x @ x.mT

    assert 0 < measure._milliseconds(work) < 2
