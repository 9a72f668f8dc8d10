"""Which backend a run gets: the order of each architecture, refusals with their reasons, and what takes over."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from config.errors import UserError
from model.attention import choose as choosing
from model.attention import native
from model.attention.backends import BACKENDS, Request
from model.attention.check import check
from model.attention.choose import choose
from model.attention.flash import FA2, FA3, FA4

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ARCHITECTURES = {(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)}


def request(**changes) -> Request:
    facts = {"device": CPU, "dtype": torch.bfloat16, "head_dim": 128, "grouped": False, "windowed": True}
    return Request(**{**facts, **changes})


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Call with a compute capability: requests for `cuda` see that GPU, and backends are checked on the CPU instead."""

    def pretend(*capability: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        monkeypatch.setattr(choosing, "check", lambda backend, asked: check(backend, replace(asked, device=CPU)))

    return pretend


@pytest.fixture
def site(monkeypatch, tmp_path: Path):
    """Call with {file: source}: packages that can be imported, in place of any installed flash-attention."""
    own = ("flash_attn", "flash_attn_interface", "flash_attn_3")
    for name in [name for name in sys.modules if name.split(".")[0] in own]:
        monkeypatch.delitem(sys.modules, name)
    path = [folder for folder in sys.path if not any((Path(folder) / name).exists() for name in own)]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *path])

    def install(files: dict[str, str]) -> None:
        for name, source in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)

    yield install
    for name in [name for name in sys.modules if name.split(".")[0] in own]:
        del sys.modules[name]


FAKE = """
import torch
from tests.fake_flash import Kernels, fa4_functions

functions = fa4_functions(Kernels())

def _flash_attn_fwd(q, k, v, **options):
    {before}
    out, lse, *rest = functions["_flash_attn_fwd"](q, k, v, **options)
    {forward}
    return out, lse, *rest

def _flash_attn_bwd(q, k, v, out, dout, lse, **options):
    {backward}
    return functions["_flash_attn_bwd"](q, k, v, out, dout, lse, **options)
"""


ONE_KEY_MORE = "if options['window_size_left'] is not None: options['window_size_left'] += 1"


def fa4(before: str = "pass", forward: str = "pass", backward: str = "pass") -> dict[str, str]:
    """A FlashAttention 4 that works but for what is put in."""
    return {"flash_attn/cute/interface.py": FAKE.format(before=before, forward=forward, backward=backward)}


def test_auto_takes_matmul_when_compiled_and_sdpa_else() -> None:
    assert choose("auto", request(compiled=True)).name == "matmul"
    plain = choose("auto", request(grouped=True))
    assert plain.name == "sdpa"
    assert plain.rejected == (("matmul", "is slower than sdpa without torch.compile"),)
    assert plain.reason == "first that works on cpu, checked against the reference"
    assert choose("sdpa", request(compiled=True)).reason.startswith("named by the profile")


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize(
    ("capability", "windows", "full"),
    [
        ((8, 0), "fa2 varlen flex", "fa2 varlen flex cudnn sdpa"),
        ((8, 9), "fa2 varlen flex", "fa2 varlen flex cudnn sdpa"),
        ((9, 0), "fa4 fa3 flex varlen fa2", "fa4 fa3 cudnn flex varlen fa2 sdpa"),
        ((10, 0), "fa4 flex varlen fa2", "fa4 cudnn flex varlen fa2 sdpa"),
        ((10, 3), "fa4 flex varlen fa2", "fa4 cudnn flex varlen fa2 sdpa"),
        ((11, 0), "fa4 flex varlen fa2", "fa4 cudnn flex varlen fa2 sdpa"),
        ((12, 0), "fa2 varlen flex fa4", "fa2 varlen flex fa4 cudnn sdpa"),
        ((12, 1), "fa2 varlen flex fa4", "fa2 varlen flex fa4 cudnn sdpa"),
        ((7, 5), "flex", "flex sdpa"),
    ],
)
def test_each_architecture_has_its_order(monkeypatch, capability, windows: str, full: str, windowed: bool) -> None:
    """All packages installed and working: first to last, each taking over from those before that fail their check."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr("model.attention.flash.Flash._missing", lambda self: None)
    expected = (windows if windowed else full).split()
    for failed in range(len(expected)):
        broken = set(expected[:failed])
        monkeypatch.setattr(choosing, "check", lambda one, _, broken=broken: "fails" if one.name in broken else None)
        choice = choose("auto", request(device=GPU, windowed=windowed))
        assert choice.name == expected[failed]
        assert [name for name, why in choice.rejected if why == "fails"] == expected[:failed]
    monkeypatch.setattr(choosing, "check", lambda *_: "fails")
    arch = f"sm_{capability[0]}{capability[1]}"
    with pytest.raises(UserError, match=f"no attention backend serves this run on {arch}: .*{expected[0]} fails"):
        choose("auto", request(device=GPU, windowed=windowed))


def test_every_backend_of_an_order_is_registered_under_its_name() -> None:
    names = {name for order in (*choosing.ORDER.values(), *choosing.OTHERS.values()) for name in order}
    assert names == set(BACKENDS) and all(BACKENDS[name].name == name for name in names)


@pytest.mark.parametrize("capability", sorted(ARCHITECTURES))
def test_windows_never_go_through_a_mask_on_a_gpu(monkeypatch, capability) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    for name in ("sdpa", "cudnn"):
        why = BACKENDS[name].refuses(request(device=GPU))
        assert "set model.attention to varlen or flex, or model.window_pattern to L" in why
        assert BACKENDS[name].refuses(request(device=GPU, windowed=False)) is None


@pytest.mark.parametrize("name", ["fa4", "fa3", "fa2", "varlen", "flex", "cudnn"])
def test_gpu_kernels_are_refused_on_a_cpu_by_name(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} needs a CUDA GPU"):
        choose(name, request(windowed=False))


@pytest.mark.parametrize(
    ("name", "capability", "changes", "why"),
    [
        ("fa4", (8, 0), {}, "has kernels for sm_9x, sm_10x, sm_11x, sm_12x, this GPU is sm_80"),
        ("fa3", (10, 0), {}, "has kernels for sm_9x, this GPU is sm_100"),
        ("fa3", (12, 1), {}, "has kernels for sm_9x, this GPU is sm_121"),
        ("fa2", (7, 5), {}, "this GPU is sm_75"),
        ("varlen", (7, 5), {}, "needs sm_80 or later, this GPU is sm_75"),
        ("cudnn", (7, 5), {"windowed": False}, "needs sm_80 or later, this GPU is sm_75"),
        ("fa4", (9, 0), {"dtype": torch.float32}, "needs bf16 or fp16, this run computes in torch.float32"),
        ("cudnn", (9, 0), {"dtype": torch.float32}, "needs bf16 or fp16"),
        ("fa4", (10, 0), {"head_dim": 192}, "needs a head size of at most 128 and a multiple of 8, found 192"),
        ("varlen", (9, 0), {"head_dim": 100}, "needs a head size of at most 256 and a multiple of 8, found 100"),
        ("flex", (9, 0), {"head_dim": 96}, "needs a head size that is a power of two, found 96"),
        ("flex", (12, 1), {"head_dim": 256}, "fails backward at head size 256 on sm_121: too little shared memory"),
        ("matmul", (9, 0), {}, "is made for CPUs"),
    ],
)
def test_refusals_say_why(on_a_gpu, name: str, capability, changes: dict, why: str) -> None:
    on_a_gpu(*capability)
    with pytest.raises(UserError, match=f"no attention backend serves this run on sm_.*: {name} .*{why}"):
        choose(name, request(device=GPU, **changes))


def test_an_absent_package_is_named(site) -> None:
    site({})
    for backend in (FA4, FA3, FA2):
        assert backend._missing() == f"needs the package {backend.package}, which is not installed"


def test_flash_attn_4_alone_is_not_taken_for_2(site) -> None:
    site(fa4())
    assert FA4._missing() is None
    assert FA2._missing() == "needs the package flash-attn, which is not installed"


@pytest.mark.parametrize("backend", [FA4, FA3, FA2], ids=lambda backend: backend.name)
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise ImportError('undefined symbol: _ZN3c10\\nmore')", "ImportError: undefined symbol: _ZN3c10"),
        ("raise OSError('libcudart.so.11: cannot open')", "OSError: libcudart.so.11: cannot open"),
        ("raise SystemExit('no GPU')", "SystemExit: no GPU"),
        ("import a_package_that_it_needs", "ModuleNotFoundError: No module named 'a_package_that_it_needs'"),
        ("def (", "SyntaxError: invalid syntax"),
        ("assert False", "AssertionError: "),
    ],
)
def test_a_package_that_fails_to_import_is_told_from_an_absent_one(site, backend, source: str, why: str) -> None:
    site({backend.module.replace(".", "/") + ".py": source})
    found = backend._missing()
    assert found.startswith(f"finds {backend.module}, which fails to import; install {backend.package} again: {why}")
    assert "\n" not in found


@pytest.mark.parametrize("backend", [FA4, FA3, FA2], ids=lambda backend: backend.name)
def test_a_package_without_the_functions_is_another_version(site, backend) -> None:
    first, second = backend.functions
    site({backend.module.replace(".", "/") + ".py": f"{first} = len\n"})
    assert backend._missing() == f"needs another version of {backend.package}: the installed one has no {second}"


def test_the_working_package_is_taken_first(site, on_a_gpu) -> None:
    site(fa4())
    on_a_gpu(9, 0)
    choice = choose("auto", request(device=GPU))
    assert (choice.name, choice.rejected) == ("fa4", ())
    assert choice.reason == "first that works on sm_90, checked against the reference"


@pytest.mark.parametrize(
    ("package", "why"),
    [
        ({}, "needs the package flash-attn-4, which is not installed"),
        (
            {"flash_attn/cute/interface.py": "import cutlass_of_another_version"},
            "install flash-attn-4 again: ModuleNotFound",
        ),
        ({"flash_attn/__init__.py": "1 / 0", **fa4()}, "install flash-attn-4 again: ZeroDivisionError"),
        ({"flash_attn/cute/interface.py": "_flash_attn_fwd = len"}, "the installed one has no _flash_attn_bwd"),
        (fa4(before="raise RuntimeError('no kernel image')"), "fails on this device: RuntimeError: no kernel image"),
        (fa4(forward="out = out * 1.1"), "is wrong on this device with full attention: output"),
        (fa4(forward="out = out * float('nan')"), "is wrong on this device with full attention: output is off by nan"),
        (fa4(before=ONE_KEY_MORE), "is wrong on this device with a window of 128: output is off by"),
        (fa4(backward="raise ValueError('no backward')"), "fails on this device: ValueError: no backward"),
        (fa4(backward=ONE_KEY_MORE), "is wrong on this device with a window of 128: dq is off by"),
        (fa4(backward="dout = dout * 2"), "is wrong on this device with full attention: dq is off by 1.0e+00"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[-30:],
)
def test_the_next_takes_over_from_a_package_absent_or_broken(site, on_a_gpu, monkeypatch, package: dict, why) -> None:
    """varlen and flex have no kernel on a CPU, so matmul stands in for the one that follows."""
    site(package)
    on_a_gpu(9, 0)
    monkeypatch.setitem(choosing.ORDER, "sm_9", ("fa4", "fa3", "stand-in"))
    monkeypatch.setitem(BACKENDS, "stand-in", native.Matmul())
    monkeypatch.setattr(native.Matmul, "refuses", lambda self, asked: None)
    choice = choose("auto", request(device=GPU, head_dim=64))
    assert choice.name == "stand-in"
    (first, first_why), second = choice.rejected
    assert first == "fa4" and why in first_why and "\n" not in first_why
    assert second == ("fa3", "needs the package flash-attn-3, which is not installed")
    with pytest.raises(UserError, match="no attention backend serves this run on sm_90: fa4 "):
        choose("fa4", request(device=GPU, head_dim=64))


@pytest.mark.gpu
@pytest.mark.parametrize("windowed", [False, True])
def test_auto_finds_a_checked_backend_on_this_gpu(windowed: bool) -> None:
    found = choose("auto", request(device=GPU, windowed=windowed))
    assert found.name in choosing.order(request(device=GPU))
