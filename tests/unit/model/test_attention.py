"""Every backend of this device computes what the float32 reference does, and is chosen for a reason."""

import pytest
import torch

from config.errors import UserError
from model.attention import backends, choose
from model.attention.backends import BACKENDS, Request, causal_mask, reference

CPU = torch.device("cpu")
ON_CPU = ("sdpa", "matmul")


def leaves(length: int, heads: int, kv_heads: int, dim: int = 16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = [(2, length, count, dim) for count in (heads, kv_heads, kv_heads)]
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("window", [1, 7, 128, 1000])
@pytest.mark.parametrize("length", [1, 5, 127, 131, 300])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (3, 1)])
def test_backends_agree_with_the_reference(name: str, window: int, length: int, heads: tuple[int, int]) -> None:
    ours, theirs = leaves(length, *heads), leaves(length, *heads)
    out, expected = BACKENDS[name].attend(*ours, window), reference(*theirs, window)
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    out.backward(gradient)
    expected.backward(gradient)
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=1e-4)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=2e-5, rtol=1e-4)


def test_the_reference_is_attention() -> None:
    q, k, v = (x.detach() for x in leaves(6, 2, 1, 4))
    out = reference(q, k, v, 3)
    for at in range(6):
        for head in range(2):
            seen = slice(max(0, at - 2), at + 1)
            weights = (k[0, seen, 0] @ q[0, at, head] / 2).softmax(0)
            torch.testing.assert_close(out[0, at, head], weights @ v[0, seen, 0])


def test_causal_mask_ends_on_the_last_key() -> None:
    mask = causal_mask(2, 4, 2, CPU)
    assert mask.tolist() == [[False, True, True, False], [False, False, True, True]]


def request(**changes) -> Request:
    facts = {"device": CPU, "dtype": torch.float32, "head_dim": 16, "grouped": False, "windowed": True}
    return Request(**{**facts, **changes})


def test_auto_takes_matmul_when_compiled_and_sdpa_else() -> None:
    assert choose.choose("auto", request(compiled=True)).name == "matmul"
    plain = choose.choose("auto", request(grouped=True))
    assert plain.name == "sdpa"
    assert plain.rejected == (("matmul", "is slower than sdpa without torch.compile"),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ON_CPU)
def test_the_check_passes_what_is_right(name: str, dtype: torch.dtype) -> None:
    for grouped in (False, True):
        for windowed in (False, True):
            assert choose.check(BACKENDS[name], request(dtype=dtype, grouped=grouped, windowed=windowed)) is None


class Broken(backends.Sdpa):
    """Right forward, but one thing is wrong."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def attend(self, q, k, v, window):
        if self.fault == "import":
            raise RuntimeError("no kernel image\nfor this device")
        if self.fault == "window":
            return super().attend(q, k, v, q.shape[1])
        if self.fault == "backward":
            return super().attend(q, k.detach(), v, window)
        return super().attend(q, k, v, window) * float("nan")


@pytest.mark.parametrize("fault", ["import", "window", "backward", "nan"])
def test_a_broken_backend_is_passed_over_with_the_reason(monkeypatch, fault: str) -> None:
    monkeypatch.setitem(BACKENDS, "matmul", Broken(fault))
    choice = choose.choose("auto", request())
    assert choice.name == "sdpa"
    (name, why), *_ = choice.rejected
    assert name == "matmul" and "on this device" in why and "\n" not in why
    with pytest.raises(UserError, match="no attention backend serves this run on cpu: matmul"):
        choose.choose("matmul", request())


@pytest.mark.parametrize("name", ["varlen", "flex"])
def test_gpu_kernels_are_refused_on_a_cpu_by_name(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} needs a CUDA GPU"):
        choose.choose(name, request())


def test_sdpa_refuses_a_window_on_a_gpu_and_names_the_fix() -> None:
    why = BACKENDS["sdpa"].refuses(request(device=torch.device("cuda")))
    assert "set model.attention to varlen or flex, or model.window_pattern to L" in why
    assert BACKENDS["sdpa"].refuses(request(device=torch.device("cuda"), windowed=False)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("windowed", [False, True])
def test_auto_finds_a_checked_backend_on_this_gpu(windowed: bool) -> None:
    device = torch.device("cuda")
    found = choose.choose("auto", request(device=device, dtype=torch.bfloat16, head_dim=128, windowed=windowed))
    assert found.name in choose.ORDER["cuda"]
