"""The fused operators: what they compute in plain torch, their gradients, and that graphs see them right.

Their Triton kernels are held against the same torch code in tests/gpu/test_kernels_gpu.py.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from model.gpt import norm, rotary_tables, rotate
from model.kernels.quantize import E4M3, E5M2, LARGEST, quantize, relu2_backward, to_fp8, transpose
from model.kernels.rotary import rotary, rotary_backward
from model.kernels.rotary_fp8 import rotary_backward_fp8


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1)])
def test_rotary_is_norm_of_rotate(heads: int, kv_heads: int) -> None:
    batch, length, dim = 2, 7, 8
    qkv = random(batch, length, heads + 2 * kv_heads, dim).requires_grad_()
    cos, sin = rotary_tables(length, dim, 100.0)
    plain = qkv.detach().clone().requires_grad_()
    q, k, v = plain.split([heads, kv_heads, kv_heads], dim=2)
    expected = (*(norm(rotate(x, cos[:, None], sin[:, None])) for x in (q, k)), v)
    found = rotary(qkv, cos, sin, heads)[:3]
    weights = [random(*x.shape, seed=at) for at, x in enumerate(expected)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    sum((x * w).sum() for x, w in zip(found, weights, strict=True)).backward()
    sum((x * w).sum() for x, w in zip(expected, weights, strict=True)).backward()
    torch.testing.assert_close(qkv.grad, plain.grad, atol=1e-5, rtol=1e-5)


def test_rotary_of_zeros_is_finite() -> None:
    qkv = torch.zeros(1, 3, 3, 4, requires_grad=True)
    cos, sin = rotary_tables(3, 4, 100.0)
    q, k, _, _ = rotary(qkv, cos, sin, 1)
    (q.sum() + k.sum()).backward()
    assert qkv.grad.isfinite().all()


def test_graphs_see_the_operators_right() -> None:
    cos, sin = rotary_tables(5, 8, 100.0)
    qkv = random(2, 5, 6, 8).requires_grad_()
    torch.library.opcheck(rotary, (qkv, cos, sin, 2))
    torch.library.opcheck(transpose, (torch.ones(16, 32, dtype=torch.uint8),))
    fake = ("test_faketensor",)  # the other checks compute with fp8 themselves, which a CPU can't
    torch.library.opcheck(quantize, (random(16, 32), torch.tensor(2.0), E5M2), test_utils=fake)
    arguments = (random(16, 32), to_fp8(random(16, 32).abs(), 1.0, E4M3), torch.tensor(2.0), torch.tensor(1.0))
    torch.library.opcheck(relu2_backward, arguments, test_utils=fake)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_quantize_writes_both_layouts_and_saturates(dtype: torch.dtype) -> None:
    x = random(33, 20)
    x[0, 0], x[1, 1] = 1e9, -1e9
    rows, columns = quantize(x, torch.tensor(4.0), dtype)
    assert torch.equal(rows.float(), columns.float().mT)
    assert rows.float()[0, 0] == LARGEST[dtype] and rows.float()[1, 1] == -LARGEST[dtype]
    inner = x.abs() < 1e3
    error = (rows.float() / 4 - x)[inner].abs() / x[inner].abs().clamp_min(2**-8)  # below, E4M3 has no exponent left
    assert error.max() <= (2**-4 if dtype == E4M3 else 2**-3) * 1.01


def test_the_derivative_of_relu_squared_is_taken_from_its_rounded_result() -> None:
    h, gradient = random(64, 32), random(64, 32, seed=1)
    leaf = h.clone().requires_grad_()
    y = F.relu(leaf).square()
    y.backward(gradient)
    a8 = to_fp8(y.detach(), 8.0, E4M3)
    rows, columns, a_columns = relu2_backward(gradient, a8, torch.tensor(1 / 8), torch.tensor(4.0))
    error = (rows.float() / 4 - leaf.grad).norm() / leaf.grad.norm()
    assert error < 0.07, "E5M2 alone errs by 0.052"
    assert torch.equal(columns.float(), rows.float().mT) and torch.equal(a_columns.float(), a8.float().mT)
    assert (rows.float()[h <= 0] == 0).all()


def test_the_rotarys_gradient_in_fp8_is_its_gradient_rounded() -> None:
    qkv = random(2, 6, 5, 8).bfloat16()
    cos, sin = rotary_tables(6, 8, 100.0)
    q, k, v, inverse = rotary(qkv, cos, sin, 3)
    gradients = [random(*x.shape, seed=at).bfloat16() for at, x in enumerate((q, k, v))]
    exact = rotary_backward(*gradients, q, k, inverse, cos, sin).view(12, 40)
    rows, columns = rotary_backward_fp8(*gradients, q, k, inverse, cos, sin, torch.tensor(4.0))
    assert torch.equal(rows.float(), to_fp8(exact, 4.0, E5M2).float()) and torch.equal(columns.float(), rows.float().mT)
