"""NVFP4's numerics: against a slow reference that looks every number up in a table, and what four bits cost."""

import math
from collections.abc import Callable
from itertools import pairwise
from itertools import product as every

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from model.gpt import GPT
from model.linear import Format, Linear, refresh
from model.objective import loss_sum
from model.precision import nvfp4
from model.precision.bf16 import Bf16
from model.precision.nvfp4 import Nvfp4, Nvfp4Options, quantize, round_e2m1, round_e4m3
from tests.small_gpt import small_config
from tests.small_job import MemoryRows

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]  # by code: even codes have an even mantissa
E4M3 = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).tolist()  # 0 … 448, by code
ROW, COLUMN, SQUARE = (1, 16), (16, 1), (16, 16)
PLAIN = Nvfp4Options(hadamard=False, stochastic=False, two_dimensional=False)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def heavy(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers whose rows and columns differ widely in size, as those of a network do."""
    rows, columns = (10 ** (2 * randn(size, seed=seed + 1 + size).clamp(-2, 2) / 2) for size in shape)
    return randn(*shape, seed=seed) * rows[:, None] * columns


def nearest(value: float, table: list[float]) -> float:
    """The entry nearest to a value that is not negative; of two as near the one with the even code."""
    code = min(range(len(table)), key=lambda code: (abs(table[code] - value), code % 2))
    return table[code]


def slowly(x: Tensor, block: tuple[int, int]) -> tuple[np.ndarray, np.float32]:
    """What quantize gives, one number after the other."""
    one, values = np.float32(1), x.float().numpy()
    decode = one / (np.float32(2688) / max(np.abs(values).max(), np.float32(2.0**-100)))
    entries = np.zeros_like(values)
    for top, left in every(range(0, len(values), block[0]), range(0, values.shape[1], block[1])):
        part = np.s_[top : top + block[0], left : left + block[1]]
        size = np.abs(values[part]).max() * ((one / decode) * np.float32(1 / 6))
        scale = np.float32(nearest(float(size), E4M3))
        if scale:
            units = values[part] * (one / (scale * decode))
            entries[part] = [[math.copysign(nearest(abs(float(u)), E2M1), u) * scale for u in row] for row in units]
    return entries, decode


# Rounding


@pytest.mark.parametrize("noise", [None, 0.0, 0.5, 1 - 2.0**-nvfp4.NOISE_BITS])
def test_every_number_of_the_format_stays(noise: float | None) -> None:
    values = torch.tensor([*E2M1, *(-value for value in E2M1)])
    noise = None if noise is None else torch.full_like(values, noise)
    found = round_e2m1(values, noise)
    assert torch.equal(found, values) and torch.equal(found.signbit(), values.signbit())


@pytest.mark.parametrize(
    ("value", "expected"), [(0.25, 0), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5, 4), (7, 6), (1e30, 6)]
)
def test_ties_go_to_even_and_the_rest_to_the_end(value: float, expected: float) -> None:
    assert round_e2m1(torch.tensor([value, -value])).tolist() == [expected, -expected]


@given(st.lists(st.floats(0, 448, width=32), min_size=1, max_size=50))
def test_block_scales_are_numbers_of_e4m3(values: list[float]) -> None:
    x = torch.tensor([*values, *E4M3, *((low + high) / 2 for low, high in pairwise(E4M3))])
    assert torch.equal(round_e4m3(x), x.to(torch.float8_e4m3fn).float())


def test_entries_fit_bf16_and_their_products_float32() -> None:
    entries = torch.outer(torch.tensor(E2M1), torch.tensor(E4M3)).flatten().unique()
    assert torch.equal(entries.to(torch.bfloat16).float(), entries)
    exact = torch.outer(entries.double(), entries.double())
    assert torch.equal(torch.outer(entries, entries).double(), exact)


def test_chance_is_right_on_average() -> None:
    samples, values = 20_000, torch.linspace(-6, 6, 97)
    noise = nvfp4.uniform(torch.Size((samples, len(values))), torch.tensor(7))
    rounded = round_e2m1(values.expand(samples, -1), noise).double()
    below, above = (torch.tensor([pick(value) for value in values.tolist()]).double() for pick in (floor, ceil))
    variance = (values - below) * (above - values)  # of a number that is one of its two neighbours, right on average
    assert ((rounded.mean(0) - values).abs() <= 5 * (variance / samples).sqrt()).all()
    assert ((rounded == below) | (rounded == above)).all()
    assert round_e2m1(torch.tensor(0.3)) == 0.5, "to the nearest is not"


def floor(value: float) -> float:
    return max(entry for entry in signed() if entry <= value)


def ceil(value: float) -> float:
    return min(entry for entry in signed() if entry >= value)


def signed() -> list[float]:
    return [*E2M1, *(-value for value in E2M1)]


def test_noise_is_uniform_and_independent() -> None:
    count = 2**18
    one, two, next_one = (nvfp4.uniform(torch.Size((count,)), torch.tensor(seed)) for seed in (1, 2, 1))
    assert torch.equal(one, next_one) and one.min() >= 0 and one.max() < 1
    assert abs(one.mean() - 0.5) < 5 * (1 / 12 / count) ** 0.5
    for other in (two, one.roll(1), one.roll(16), one.roll(512)):
        assert abs(torch.corrcoef(torch.stack((one, other)))[0, 1]) < 5 / count**0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_bit_changes_the_seed(dtype: torch.dtype) -> None:
    x = randn(16, 16).to(dtype)
    found = nvfp4.fingerprint(x)
    assert nvfp4.fingerprint(x.clone()) == found
    x[3, 5] = torch.nextafter(x[3, 5], torch.tensor(9.0, dtype=dtype))
    assert nvfp4.fingerprint(x) != found


# Blocks


@pytest.mark.parametrize("block", [ROW, COLUMN, SQUARE])
@pytest.mark.parametrize("make", [randn, heavy])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [1.0, 1e-6, 3e4])
def test_agrees_with_the_slow_reference(block, make: Callable[..., Tensor], dtype: torch.dtype, factor: float) -> None:
    x = (make(32, 48) * factor).to(dtype)
    entries, scale = quantize(x, block)
    expected, expected_scale = slowly(x, block)
    np.testing.assert_array_equal(entries.float().numpy(), expected)
    assert scale.item() == expected_scale


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=32, max_size=32))
def test_agrees_on_any_numbers(values: list[float]) -> None:
    x = torch.tensor(values).view(1, 32)
    entries, scale = quantize(x, ROW)
    np.testing.assert_array_equal(entries.float().numpy(), slowly(x, ROW)[0])
    assert entries.abs().max() <= 2688 and scale.isfinite()


def test_zero_and_tiny_blocks() -> None:
    x = randn(4, 64)
    x[0] = 0
    x[1, :16] *= 1e-12  # far below what the tensor's scale leaves to a block
    entries, scale = quantize(x, ROW)
    assert not entries[0].any() and not entries[1, :16].any() and entries[1, 16:].any()
    for nothing in (torch.zeros(4, 64), torch.full((4, 64), 1e-42), x * 2.0**-125):
        entries, scale = quantize(nothing, ROW)
        assert not entries.any() and scale.isfinite() and scale > 0


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_makes_the_tensor_nan(value: float) -> None:
    x = randn(4, 64)
    x[2, 40] = value
    entries, scale = quantize(x, ROW)
    assert (entries.float() * scale).isnan().all()
    linear = formatted(randn(32, 64))
    assert linear(x).isnan().all(), "a step that goes wrong is seen in the loss"
    fine = randn(4, 64).requires_grad_()
    linear(fine).backward(x[:, :32].clone().fill_(value))
    assert fine.grad.isnan().all() and linear.weight.grad.isnan().all()


def test_square_blocks_quantise_a_matrix_like_its_transpose() -> None:
    weight = heavy(64, 96)
    entries, scale = quantize(weight, SQUARE)
    turned, turned_scale = quantize(weight.mT, SQUARE)
    assert torch.equal(entries.mT, turned) and scale == turned_scale
    assert not torch.equal(quantize(weight, ROW)[0].mT, quantize(weight.mT, ROW)[0]), "rows do not"
    assert torch.equal(quantize(weight, COLUMN)[0].mT, quantize(weight.mT, ROW)[0])


def test_the_transform_is_orthogonal_and_cancels() -> None:
    matrix = nvfp4.hadamard_matrix()
    assert torch.equal(matrix @ matrix.mT, torch.eye(16)) and torch.equal(matrix.abs(), torch.full((16, 16), 0.25))
    assert torch.equal(matrix, nvfp4.hadamard_matrix())
    a, b = randn(32, 8).double(), randn(32, 5, seed=1).double()
    turned = [torch.einsum("ij,bjc->bic", matrix.double(), x.view(2, 16, -1)).reshape(x.shape) for x in (a, b)]
    torch.testing.assert_close(turned[0].mT @ turned[1], a.mT @ b)


def test_the_transform_spreads_outliers_over_their_block() -> None:
    x = randn(512, 64)
    x[::16] *= 100  # one token in 16: a scale that fits it leaves the others few steps
    turned = torch.einsum("ij,bjc->bic", nvfp4.hadamard_matrix(), x.view(-1, 16, 64))
    peaks = [(blocks.abs().amax(1) / blocks.square().mean(1).sqrt()).mean() for blocks in (x.view(-1, 16, 64), turned)]
    assert peaks[0] > 3.5 and peaks[1] < 1.5


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.detach() - expected).norm() / expected.norm())


# Products


def formatted(weight: Tensor, options: Nvfp4Options | None = None) -> Linear:
    linear = Linear(weight.shape[1], weight.shape[0])
    linear.weight = nn.Parameter(weight.clone())
    linear.format = Nvfp4(linear.weight, options)
    refresh(linear)
    return linear


def test_error_of_a_product_is_that_of_four_bits() -> None:
    x, weight = heavy(64, 256), randn(128, 256, seed=5)
    found = relative(formatted(weight, PLAIN)(x), x @ weight.mT)
    assert 0.05 < found < 0.2

    def per_tensor(value: Tensor) -> Tensor:
        scale = value.abs().max() / 6
        return round_e2m1(value / scale) * scale

    assert found < 0.5 * relative(per_tensor(x) @ per_tensor(weight).mT, x @ weight.mT)


@pytest.mark.parametrize("flags", every([False, True], repeat=3))
@pytest.mark.parametrize("tokens", [48, 40])  # 40 is no multiple of 16: filled up
def test_gradients_are_those_of_quantised_operands(flags: tuple[bool, bool, bool], tokens: int) -> None:
    options = Nvfp4Options(*flags)
    x, weight, dy = randn(tokens, 64).requires_grad_(), randn(32, 64, seed=1), randn(tokens, 32, seed=2)
    linear = formatted(weight, options)
    y = linear(x)
    y.backward(dy)

    def exact(value: Tensor, block: tuple[int, int], seed: Tensor | None = None) -> Tensor:
        """The float64 value that the quantised operand stands for."""
        entries, scale = quantize(value, block, seed) if seed is not None else map(torch.tensor, slowly(value, block))
        return entries.double() * scale.double()

    def columns(value: Tensor, seed: Tensor | None = None) -> Tensor:
        value = F.pad(value, (0, 0, 0, -tokens % 16))
        if options.hadamard:
            value = (nvfp4.hadamard_matrix() @ value.view(-1, 16, value.shape[1])).view(value.shape)
        return exact(value, COLUMN, seed)

    one, two = (nvfp4.fingerprint(dy) + step if options.stochastic else None for step in (0, 1))
    forward, backward = (SQUARE, SQUARE) if options.two_dimensional else (ROW, COLUMN)
    plain = x.detach()
    expected = {
        "y": exact(plain, ROW) @ exact(weight, forward).mT,
        "dx": exact(dy, ROW, one) @ exact(weight, backward),
        "dw": columns(dy, two).mT @ columns(plain),
    }
    for name, found in {"y": y, "dx": x.grad, "dw": linear.weight.grad}.items():
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected[name], rtol=1e-5, atol=1e-4, msg=name)


def test_weights_are_taken_over_by_refresh_and_are_no_state() -> None:
    linear = formatted(randn(32, 64))
    x = randn(8, 64)
    before = linear(x)
    with torch.no_grad():
        linear.weight.neg_()
    assert torch.equal(linear(x), before)
    refresh(linear)
    torch.testing.assert_close(linear(x), -before)
    assert linear.state_dict().keys() == {"weight"} and linear.format.state() == {}
    with torch.no_grad():
        assert linear(x).dtype == torch.bfloat16


def test_equal_steps_round_alike_and_others_anew() -> None:
    linear, x = formatted(randn(32, 64)), randn(32, 64)

    def gradient(dy: Tensor) -> Tensor:
        linear.weight.grad = None
        linear(x).backward(dy)
        return linear.weight.grad

    dy = randn(32, 32)
    assert torch.equal(gradient(dy), gradient(dy)), "a resumed run goes on as it would have"
    noise = [nvfp4.uniform(dy.shape, nvfp4.fingerprint(value)) for value in (dy, dy + 1e-3)]
    assert abs(torch.corrcoef(torch.stack(noise).flatten(1))[0, 1]) < 0.2
    assert not torch.equal(gradient(dy), gradient(dy + 1e-6))


def test_misaligned_weights_are_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks of 16: found \(24, 64\)"):
        Nvfp4(torch.zeros(24, 64))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_to_one_graph_of_the_same_numbers(backend: str) -> None:
    linear = formatted(randn(32, 16))
    x, dy = randn(2, 16, 16), randn(2, 16, 32, seed=1)

    def run(step: Callable[[Tensor], Tensor]) -> list[Tensor]:
        leaf, linear.weight.grad = x.clone().requires_grad_(), None
        y = step(leaf)
        y.backward(dy)
        return [y, leaf.grad, linear.weight.grad]

    compiled = torch.compile(lambda leaf: linear(leaf), fullgraph=True, dynamic=False, backend=backend)
    assert all(map(torch.equal, run(compiled), run(linear)))


def test_training_loses_little_but_measurably() -> None:
    losses = {name: last_loss(form) for name, form in {"fp32": None, "bf16": Bf16, "nvfp4": Nvfp4}.items()}
    assert abs(losses["bf16"] / losses["fp32"] - 1) < 0.005
    assert 1.01 < losses["nvfp4"] / losses["bf16"] < 1.15  # measured 1.05 to 1.07 over four seeds


def last_loss(form: Callable[[Tensor], Format] | None, updates: int = 60) -> float:
    """The mean loss of the last ten updates of a small GPT whose blocks compute in a format."""
    model = GPT(small_config())
    model.initialize(0)
    for module in model.blocks.modules():
        if form is not None and isinstance(module, Linear) and min(module.shape) >= 16:
            module.format = form(module.weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = torch.from_numpy(MemoryRows(64, context=32).ids(np.arange(64)))
    losses = []
    for update in range(updates):
        refresh(model)
        ids = rows[(8 * update + torch.arange(8)) % len(rows)]
        loss = loss_sum(model, ids[:, :-1].contiguous(), ids[:, 1:].contiguous()) / (8 * 32)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return sum(losses[-10:]) / 10
