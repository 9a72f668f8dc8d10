"""The fp8 MLP with its products' epilogues: the numbers in plain torch, QuACK's part with a stand-in, refusals."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from model.gpt import MLP, norm
from model.kernels import mlp_fp8
from model.kernels.quantize import E4M3, E5M2, LARGEST, relu2_backward, to_fp8
from model.precision.fp8 import Fp8
from model.precision.fp8_mlp import Fp8Mlp
from tests.small_gpt import small_config

CPU = torch.device("cpu")
LAUNCHES = "model.kernels.mlp_fp8_quack"


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()


def same_bytes(found: Tensor, expected: Tensor) -> bool:
    return torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def operands(rows: int = 40, width: int = 32, hidden: int = 48) -> tuple[Tensor, Tensor, Tensor]:
    """x8 (rows, width), weight8 (hidden, width), dy8 (rows, width)."""
    x8, weight8 = (to_fp8(random(n, width, seed=n), 8.0, E4M3) for n in (rows, hidden))
    return x8, weight8, to_fp8(random(rows, width, seed=1), 64.0, E5M2)


@settings(deadline=None)  # the first call registers the operators
@given(st.integers(-12, 0), st.integers(0, 2**16))
def test_up_is_the_square_of_what_is_positive(exponent: int, seed: int) -> None:
    x8, weight8 = (to_fp8(random(n, 16, seed=seed + n), 8.0, E4M3) for n in (8, 24))
    alpha = torch.tensor(2.0**exponent)
    a8 = mlp_fp8.up(x8, weight8, alpha)
    h = x8.float() @ weight8.float().mT * alpha
    expected = F.relu(h).square().clamp(max=LARGEST[E4M3])
    assert a8.dtype == E4M3 and a8.shape == (8, 24)
    # Half a unit in the last of four digits, or of the smallest number there is.
    assert ((a8.float() - expected).abs() <= expected / 16 + 2.0**-10).all()


@settings(deadline=None)
@given(st.sampled_from([2.0**-20, 2.0**-4, 0.3, 8.0]), st.integers(0, 2**16))
def test_the_backward_product_is_the_one_and_the_derivative_after_the_other(unscale: float, seed: int) -> None:
    """Up to the two roundings to bf16 in between that fall away."""
    dy8, weight8 = to_fp8(random(8, 16, seed=seed), 64.0, E5M2), to_fp8(random(24, 16, seed=1), 8.0, E4M3)
    a8 = to_fp8(random(8, 24, seed=seed + 1), 64.0, E4M3).float().abs().to(E4M3)
    product, gradient_scale = torch.tensor(2.0**-6), torch.tensor(4.0)
    beta = 2 * product * gradient_scale * torch.tensor(unscale).sqrt()
    dh8, dh_columns, a_columns = mlp_fp8.down_backward(dy8, weight8, a8, beta)
    da = (dy8.float() @ weight8.float().mT * product).bfloat16()
    expected, *_ = relu2_backward(da, a8, torch.tensor(unscale), gradient_scale)
    assert dh8.dtype == E5M2 and dh8.shape == (8, 24)
    # A unit in the last of three digits at most, or the smallest number there is: another way at a tie.
    assert ((dh8.float() - expected.float()).abs() <= expected.float().abs() / 4 + 2.0**-16).all()
    assert same_bytes(dh_columns, dh8.mT) and same_bytes(a_columns, a8.mT)


def test_the_operators_are_ones_that_torch_can_trace() -> None:
    x8, weight8, dy8 = operands()
    scale = torch.tensor(0.01)
    a8 = mlp_fp8.up(x8, weight8, scale)
    torch.library.opcheck(mlp_fp8.up, (x8, weight8, scale), test_utils="test_faketensor")
    torch.library.opcheck(mlp_fp8.down_backward, (dy8, weight8, a8, scale), test_utils="test_faketensor")


def mlp(epilogues: bool) -> MLP:
    block = MLP(small_config(width=64, mlp_width=256))
    with torch.no_grad():
        block.up.weight.copy_(random(256, 64) * 64**-0.5)
        block.down.weight.copy_(random(64, 256, seed=1) * 256**-0.5)
    block.up.format = Fp8(block.up.weight, "norm")
    block.down.format = Fp8(block.down.weight, "relu2", block.up.weight)
    for layer in (block.up, block.down):
        layer.format.refresh(layer.weight.detach())
    block.fused = Fp8Mlp(epilogues)
    return block


def gradients(block: MLP, x: Tensor) -> list[Tensor]:
    """The MLP's output and the gradients of its input and weights."""
    leaf = x.bfloat16().requires_grad_()
    y = block(leaf)
    y.backward((random(*y.shape, seed=4) * 1e-2).bfloat16())
    return [y, leaf.grad, block.up.weight.grad, block.down.weight.grad]


def test_with_epilogues_an_mlp_has_the_same_gradients() -> None:
    x = norm(random(2, 48, 64, seed=2))
    with_epilogues, without = (gradients(mlp(epilogues), x) for epilogues in (True, False))
    for ours, theirs in zip(with_epilogues, without, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert relative(ours, theirs) < 0.04  # h and a's gradient are not rounded to bf16 before they are to fp8
    assert not torch.equal(with_epilogues[0], without[0]), "the epilogues were not used"


def test_with_epilogues_an_mlp_is_as_close_to_float32s() -> None:
    x = norm(random(2, 48, 64, seed=2))
    exact = mlp(epilogues=False)
    exact.fused = exact.up.format = exact.down.format = None
    leaf = x.clone().requires_grad_()
    y = exact(leaf)
    y.backward(random(*y.shape, seed=4) * 1e-2)
    expected = [y, leaf.grad, exact.up.weight.grad, exact.down.weight.grad]
    for found, theirs, tolerance in zip(gradients(mlp(True), x), expected, (0.07, 0.1, 0.1, 0.1), strict=True):
        assert relative(found, theirs) < tolerance


class Epilogue:
    """QuACK's gemm_epilogue in plain torch: the function sees whole matrices instead of single numbers."""

    def __init__(self, outputs: tuple[str, ...] = (), ops: dict | None = None) -> None:
        self.outputs, self.ops = outputs, ops or {}

    def __call__(self, function) -> "Epilogue":
        self.function = function
        return self

    def gemm(
        self, a, b, d, c=None, *, epi_args, tile_M, tile_N, cluster_M, cluster_N, pingpong, post_init_attrs
    ) -> None:
        assert set(epi_args) == {*self.ops, *self.outputs}
        assert all(name == scalar.name for name, scalar in self.ops.items())
        assert 64 * (1 + (not pingpong)) <= tile_M <= 256 and tile_N % 16 == 0 and cluster_M * cluster_N <= 2
        assert dict(post_init_attrs).keys() == {"fp8_slow_accum"}
        inputs = {name: epi_args[name] for name in self.ops} | ({} if c is None else {"c": c.float()})
        results = self.function(a.float() @ b.float().mT, **inputs)
        assert set(results) == {"D", *self.outputs}
        for name, result in results.items():
            out = d if name == "D" else epi_args[name]
            out.copy_(to_fp8(result, 1.0, out.dtype))


@pytest.fixture
def stand_in(monkeypatch):
    """The kernels' file, imported with a QuACK that is plain torch."""
    modules = {
        "cutlass": {},
        "cutlass.cute": {"math": SimpleNamespace(sqrt=lambda x, fastmath: x.sqrt())},
        "quack": {},
        "quack.activation": {"relu": F.relu},
        "quack.epilogue": {},
        "quack.epilogue.frontend": {"gemm_epilogue": Epilogue, "EpiMod": Epilogue},
        "quack.epilogue.ops": {"Scalar": lambda name: SimpleNamespace(name=name)},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["cutlass"].cute = sys.modules["cutlass.cute"]
    sys.modules.pop(LAUNCHES, None)
    yield importlib.import_module(LAUNCHES)
    sys.modules.pop(LAUNCHES, None)


def test_the_epilogues_are_the_plain_versions(stand_in) -> None:
    x8, weight8, dy8 = operands()
    alpha, beta = torch.tensor(0.03), torch.tensor(0.7)
    a8 = torch.empty(len(x8), len(weight8), dtype=E4M3)
    stand_in.launch_up(x8, weight8, alpha, a8)
    assert same_bytes(a8, mlp_fp8.up(x8, weight8, alpha))
    assert (a8.float() == LARGEST[E4M3]).any() and (a8.float() == 0).any()
    expected = mlp_fp8.down_backward(dy8, weight8, a8, beta)
    outputs = [torch.empty_like(out) for out in expected]
    stand_in.launch_down_backward(dy8, weight8, a8, beta, *outputs)
    for ours, theirs in zip(outputs, expected, strict=True):
        assert same_bytes(ours, theirs)


def test_refused_elsewhere_than_on_hopper(monkeypatch) -> None:
    assert "Hopper" in mlp_fp8.refuses(CPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (10, 0))
    assert "Hopper" in mlp_fp8.refuses(torch.device("cuda"))


def test_refused_without_the_package(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setitem(sys.modules, "cutlass", None)
    monkeypatch.delitem(sys.modules, LAUNCHES, raising=False)
    reason = mlp_fp8.refuses(torch.device("cuda"))
    assert reason.startswith("QuACK's fused fp8 products can't be used: ModuleNotFoundError: ") and "cutlass" in reason


def test_refused_when_the_package_fails(monkeypatch, stand_in) -> None:
    def broken(*_arguments, **_options):
        raise TypeError("cannot fingerprint\nin three lines")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(sys.modules["quack.epilogue.frontend"], "gemm_epilogue", broken)
    sys.modules.pop(LAUNCHES)
    reason = mlp_fp8.refuses(torch.device("cuda"))
    assert reason == "QuACK's fused fp8 products can't be used: TypeError: cannot fingerprint"


def test_refused_when_the_numbers_differ(monkeypatch) -> None:
    assert mlp_fp8._disagreement(CPU) is None
    up, down_backward = mlp_fp8.up, mlp_fp8.down_backward

    def unflipped(*arguments):
        dh8, dh_columns, a_columns = down_backward(*arguments)
        return dh8, dh_columns, a_columns.roll(1, 0)

    monkeypatch.setattr(mlp_fp8, "down_backward", unflipped)
    assert "ReLU²'s transpose is off" in mlp_fp8._disagreement(CPU)
    monkeypatch.setattr(mlp_fp8, "down_backward", down_backward)
    monkeypatch.setattr(mlp_fp8, "up", lambda x8, rows, alpha: up(x8, rows, alpha / 2))
    assert "ReLU² is off" in mlp_fp8._disagreement(CPU)
