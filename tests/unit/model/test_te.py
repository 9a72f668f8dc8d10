"""Transformer Engine's recipes against a stand-in package that computes in bf16 and keeps the real one's habits: the
weight is cached by micro-batch, scales are stepped when an autocast ends, a module has an `_extra_state`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional as F

from model.linear import Linear, format_state, refresh
from model.precision import te
from model.precision.te import TeFormat
from tests.small_gpt import small_gpt

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NAMES = ("te-fp8", "te-fp8-delayed", "te-nvfp4")
HISTORY = 4


class Engine:
    """The stand-in: what is written to it, and what it was asked."""

    def __init__(self) -> None:
        self.enabled: object | None = None  # the recipe of the autocast that is open
        self.flags: list[bool] = []
        self.delayed: list[SimpleNamespace] = []
        self.factor = 1.0  # of all products: another one is a package that computes wrongly
        self.available = (True, "")

    @contextmanager
    def autocast(self, enabled: bool, recipe: object) -> Iterator[None]:
        assert enabled and self.enabled is None, "an autocast inside of an autocast disturbs delayed scaling"
        self.enabled = recipe
        yield
        self.enabled = None
        if torch.is_grad_enabled():
            for state in self.delayed:
                state.scale.copy_(1 / state.amax_history.amax(0).clamp(min=1e-3))
                state.amax_history.copy_(state.amax_history.roll(-1, 0))
                state.amax_history[0] = 0


class FakeLinear(nn.Module):
    engine: Engine

    def __init__(self, inputs: int, outputs: int, bias: bool, params_dtype: torch.dtype, device: str) -> None:
        super().__init__()
        assert not bias and device == "meta"
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=params_dtype, device=device))
        self.fp8_meta: dict[str, SimpleNamespace] = {}

    def get_extra_state(self) -> Tensor:
        return torch.zeros(3, dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        raise AssertionError("nothing is to be loaded into it")

    def init_fp8_metadata(self) -> None:
        for key, count in (("scaling_fwd", 3), ("scaling_bwd", 2)):
            state = SimpleNamespace(scale=torch.ones(count), amax_history=torch.zeros(HISTORY, count))
            self.fp8_meta[key] = state
            self.engine.delayed.append(state)

    def forward(self, x: Tensor, is_first_microbatch: bool) -> Tensor:
        assert self.engine.enabled is not None, "the real one computes in bf16 then, silently"
        assert x.dtype == torch.bfloat16 and torch.is_autocast_enabled("cpu"), "or weight and input differ in type"
        self.engine.flags.append(is_first_microbatch)
        if is_first_microbatch:
            self.cached = self.weight.detach().to(torch.bfloat16)
        if self.fp8_meta:
            self.fp8_meta["scaling_fwd"].amax_history[0, 0] = x.detach().abs().max()
        scale = float(self.fp8_meta["scaling_fwd"].scale[0]) if self.fp8_meta else 1.0
        return Product.apply(x, self.weight, self.cached, self.engine.factor * scale)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, cached: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x, cached)
        return F.linear(x, cached) * factor

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, cached = ctx.saved_tensors
        return dy @ cached, dy.flatten(0, -2).mT @ x.flatten(0, -2), None, None  # the weight's in bf16, as the real one


@pytest.fixture
def engine(monkeypatch) -> Iterator[Engine]:
    """A stand-in package in sys.modules."""
    stand_in = Engine()
    state = SimpleNamespace(is_fp8_enabled=lambda: stand_in.enabled is not None)
    package, common, pytorch = (ModuleType(name) for name in ("transformer_engine", "common", "pytorch"))
    common.recipe = SimpleNamespace(
        **{
            name: lambda name=name, **options: SimpleNamespace(name=name, **options)
            for name in ("Float8CurrentScaling", "DelayedScaling", "NVFP4BlockScaling")
        }
    )
    pytorch.Linear = type("Linear", (FakeLinear,), {"engine": stand_in})
    pytorch.autocast = stand_in.autocast
    pytorch.quantization = SimpleNamespace(FP8GlobalStateManager=state)
    pytorch.is_fp8_available = pytorch.is_nvfp4_available = lambda return_reason: stand_in.available
    package.common, package.pytorch = common, pytorch
    for name, module in {"": package, ".common": common, ".common.recipe": common.recipe, ".pytorch": pytorch}.items():
        monkeypatch.setitem(sys.modules, f"transformer_engine{name}", module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (10, 0))
    te.numerics.cache_clear()
    yield stand_in
    te.numerics.cache_clear()


def pretend_gpu(monkeypatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)


def formatted_linear(name: str) -> Linear:
    linear = Linear(32, 48)
    nn.init.normal_(linear.weight, std=0.1, generator=torch.Generator().manual_seed(0))
    linear.format = TeFormat(linear.weight, name)
    refresh(linear)
    return linear


def inputs(seed: int = 0) -> Tensor:
    return torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(seed))


def run(linear: Linear, x: Tensor) -> Tensor:
    """A micro-batch forward and backward."""
    with te.context(linear.format.name, CPU):
        y = linear(x)
    y.sum().backward()
    return y.detach()


@pytest.mark.parametrize("name", NAMES)
def test_trains_the_master_of_the_model(engine: Engine, name: str) -> None:
    linear = formatted_linear(name)
    x = inputs().requires_grad_()
    y = run(linear, x)
    expected = F.linear(x.bfloat16(), linear.weight.bfloat16())
    torch.testing.assert_close(y, expected)
    assert linear.weight.grad.dtype == torch.float32 and x.grad.shape == x.shape
    torch.testing.assert_close(linear.weight.grad[0], x.detach().bfloat16().float().sum((0, 1)), rtol=1e-2, atol=1e-2)
    assert dict(linear.named_parameters()).keys() == {"weight"}


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_published_without_it(engine: Engine, name: str) -> None:
    model = small_gpt()
    plain = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    for module in model.modules():
        if isinstance(module, Linear):
            module.format = TeFormat(module.weight, name)
    refresh(model)
    run(model.blocks[0].mlp.up, inputs())
    state = model.state_dict()
    assert state.keys() == plain.keys() and all(torch.equal(state[key], plain[key]) for key in plain)
    assert len(list(model.parameters())) == len(plain)
    model.load_state_dict(plain)


@pytest.mark.parametrize("name", NAMES)
def test_the_weight_is_taken_over_once_an_update(engine: Engine, name: str) -> None:
    linear = formatted_linear(name)
    for _ in range(3):
        run(linear, inputs())
    assert engine.flags == [True, False, False]
    with torch.no_grad():
        linear.weight.mul_(2)
    refresh(linear)
    engine.flags.clear()
    with te.context(name, CPU):
        y = linear(inputs())
    assert engine.flags == [True]
    scale = linear.format.state().get("scale_forward", torch.ones(1))  # delayed: of the micro-batches before
    assert y.norm() > 0 and scale.numel()
    if name != "te-fp8-delayed":
        torch.testing.assert_close(y.detach(), F.linear(inputs().bfloat16(), linear.weight.detach().bfloat16()))


def test_evaluation_does_not_ask_it(engine: Engine) -> None:
    linear = formatted_linear("te-fp8")
    with torch.no_grad():
        y = linear(inputs())
    assert not engine.flags and y.dtype == torch.bfloat16


def test_a_moved_parameter_is_followed(engine: Engine) -> None:
    linear = formatted_linear("te-fp8")
    linear.weight = nn.Parameter(linear.weight.detach() * 3)
    run(linear, inputs())
    assert linear.weight.grad is not None


def test_delayed_scaling_resumes_exactly(engine: Engine) -> None:
    batches = [inputs(seed) * (1 + seed) for seed in range(5)]

    def train(linear: Linear, part: list[Tensor]) -> list[Tensor]:
        outputs = []
        for x in part:
            outputs.append(run(linear, x))
            refresh(linear)
        return outputs

    whole = train(formatted_linear("te-fp8-delayed"), batches)
    first = formatted_linear("te-fp8-delayed")
    train(first, batches[:2])
    saved = {key: tensor.clone() for key, tensor in format_state(nn.ModuleDict({"up": first})).items()}
    assert set(saved) == {f"up.{key}" for key in first.format.state()} and len(saved) == 4
    second = formatted_linear("te-fp8-delayed")
    fresh = second.format.state()
    for key, tensor in fresh.items():  # in place, as a checkpoint does
        tensor.copy_(saved[f"up.{key}"])
    assert not torch.equal(saved["up.scale_forward"], torch.ones(3))
    assert all(map(torch.equal, train(second, batches[2:]), whole[2:]))
    forgetful = formatted_linear("te-fp8-delayed")
    assert not torch.equal(train(forgetful, batches[2:])[0], whole[2])


def test_delayed_scaling_runs_inside_of_its_context_only(engine: Engine) -> None:
    linear = formatted_linear("te-fp8-delayed")
    with pytest.raises(RuntimeError, match=r"outside of model\.precision\.te\.context"):
        linear(inputs())


@pytest.mark.parametrize("name", ["te-fp8", "te-nvfp4"])
def test_the_others_keep_no_state_and_need_no_context(engine: Engine, name: str) -> None:
    linear = formatted_linear(name)
    assert linear.format.state() == {}
    linear(inputs()).sum().backward()
    assert engine.flags == [True]


@pytest.mark.parametrize(("capability", "reduced"), [((10, 0), False), ((12, 1), True)])
def test_nvfp4_leaves_out_what_the_desktop_lacks(monkeypatch, engine: Engine, capability, reduced: bool) -> None:
    pretend_gpu(monkeypatch, capability)
    recipe = te.numerics("te-nvfp4", CUDA)
    assert (recipe.disable_rht, recipe.disable_stochastic_rounding) == (reduced, reduced)


def test_the_names_are_the_packages_recipes(engine: Engine) -> None:
    found = [te.numerics(name, CUDA).name for name in NAMES]
    assert found == ["Float8CurrentScaling", "DelayedScaling", "NVFP4BlockScaling"]


@pytest.mark.parametrize("name", NAMES)
def test_it_breaks_the_graph_and_no_more(engine: Engine, name: str) -> None:
    linear = formatted_linear(name)
    step = torch.compile(lambda x: F.relu(linear(x * 2)).square().sum(), backend="aot_eager")
    with te.context(name, CPU):
        compiled = step(inputs())
    compiled.backward()
    gradient, linear.weight.grad = linear.weight.grad, None
    assert gradient.isfinite().all() and gradient.any() and engine.flags == [True]


def test_layers_share_their_pieces_and_compile_once(engine: Engine) -> None:
    layers = 6
    model = small_gpt(layers=layers, windows=(8,) * (layers - 1) + (32,), value_layers=tuple(range(1, layers, 2)))
    for module in model.blocks.modules():
        if isinstance(module, Linear) and min(module.shape) >= 16:
            module.format = TeFormat(module.weight, "te-fp8")
    torch._dynamo.reset()
    ids = torch.arange(64).view(2, 32)
    step = torch.compile(lambda ids: model(ids).square().sum(), dynamic=False, backend="aot_eager")
    graphs = []
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):  # or layers beyond it would run uncompiled
        for _ in range(3):
            refresh(model)
            step(ids).backward()
            graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[2] and len(engine.flags) == 3 * 4 * layers


# Refusals: each says what is missing, as the end of "precision te-fp8 …".


def test_it_refuses_other_devices(monkeypatch) -> None:
    assert te.refuses("te-fp8", CPU) == "needs a CUDA GPU, found cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert te.refuses("te-fp8", CUDA) == "needs a CUDA GPU, found none"


@pytest.mark.parametrize(
    ("name", "capability", "needed"),
    [("te-fp8", (8, 6), "8.9"), ("te-fp8-delayed", (8, 0), "8.9"), ("te-nvfp4", (9, 0), "10.0")],
)
def test_it_refuses_old_gpus(monkeypatch, engine: Engine, name: str, capability, needed: str) -> None:
    pretend_gpu(monkeypatch, capability)
    found = f"{capability[0]}.{capability[1]}"
    assert te.refuses(name, CUDA) == f"needs compute capability {needed} or later, found {found}"


@pytest.mark.parametrize("name", NAMES)
def test_it_says_that_the_package_is_absent(monkeypatch, name: str) -> None:
    pretend_gpu(monkeypatch, (10, 0))
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    assert "not installed" in te.refuses(name, CUDA)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise OSError('libcudart.so.13: cannot open shared object file')", "OSError: libcudart.so.13"),
        ("assert False, 'package version mismatch'", "AssertionError: package version mismatch"),
        ("import a_module_that_is_not_there", "misses the module a_module_that_is_not_there"),
        ("", "AttributeError"),
    ],
)
def test_it_says_that_the_package_is_broken(monkeypatch, tmp_path, source: str, expected: str) -> None:
    pretend_gpu(monkeypatch, (10, 0))
    (tmp_path / "transformer_engine" / "pytorch").mkdir(parents=True)
    (tmp_path / "transformer_engine" / "__init__.py").write_text("")
    (tmp_path / "transformer_engine" / "pytorch" / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("transformer_engine", "transformer_engine.pytorch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    try:
        assert expected in te.refuses("te-fp8", CUDA)
    finally:
        for name in ("transformer_engine", "transformer_engine.pytorch"):
            sys.modules.pop(name, None)


def test_it_passes_on_the_packages_own_reason(monkeypatch, engine: Engine) -> None:
    pretend_gpu(monkeypatch, (10, 0))
    engine.available = (False, "CublasLt version 12.1.3.x or higher required")
    assert te.refuses("te-nvfp4", CUDA) == f"is refused by Transformer Engine: {engine.available[1]}"


@pytest.mark.parametrize("name", NAMES)
def test_it_is_tried_before_it_is_trusted(monkeypatch, engine: Engine, name: str) -> None:
    assert te._refuses_trial(name, CPU) is None
    assert engine.delayed == [], "the trial leaves no state"
    engine.factor = 1.5
    assert te._refuses_trial(name, CPU) == "computes wrongly on this device: product off by 50.0%"
    engine.factor = float("nan")
    assert "product off by nan%" in te._refuses_trial(name, CPU)

    def fail(*_args, **_kwargs) -> None:
        raise RuntimeError("CUDA error: no kernel image is available\nmore")

    monkeypatch.setattr(FakeLinear, "forward", fail)
    found = te._refuses_trial(name, CPU)
    assert found == "fails at its first product: RuntimeError: CUDA error: no kernel image is available"
