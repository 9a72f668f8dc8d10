"""Attention backends on the GPU: forward and backward against the float32 reference, and what `auto` chooses."""

import pytest
import torch

from model.attention.backends import BACKENDS, Request, reference
from model.attention.choose import choose
from model.engine import Engine, Sampling
from tests.small_gpt import small_gpt

pytestmark = pytest.mark.gpu


def request_of(**changes) -> Request:
    values = {"device": torch.device("cuda"), "dtype": torch.bfloat16, "head_dim": 128, "grouped": False}
    return Request(**{**values, "windowed": True, "compiled": True, **changes})


@pytest.mark.parametrize("name", ["varlen", "flex", "sdpa"])
@pytest.mark.parametrize("window", [1, 100, 512, 2048])
def test_agrees_with_the_reference(name: str, window: int) -> None:
    backend = BACKENDS[name]
    if problem := backend.refuses(request_of(windowed=window < 512)):
        pytest.skip(f"{name} {problem}")
    generator = torch.Generator("cuda").manual_seed(window)
    q, k, v, gradient = (
        torch.randn(2, 512, 4, 128, device="cuda", dtype=torch.bfloat16, generator=generator) for _ in range(4)
    )

    def run(attend) -> list[torch.Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        out = attend(*leaves, window)
        out.backward(gradient)
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    for found, expected in zip(run(backend.attend), run(reference), strict=True):
        assert found.isfinite().all()
        assert (found.float() - expected.float()).norm() <= 1e-2 * expected.float().norm() + 1e-3


def test_auto_never_takes_a_masked_path_for_windows() -> None:
    choice = choose("auto", request_of())
    assert choice.name in ("varlen", "flex")
    assert "sliding window" in BACKENDS["sdpa"].refuses(request_of())


def test_generation_on_the_gpu_is_that_of_the_cpu() -> None:
    model = small_gpt(context=32, windows=(8, 32))
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]]
    greedy = Sampling(temperature=0, max_tokens=15)
    expected = Engine(model, frozenset()).generate(prompts, greedy)
    assert Engine(model.cuda(), frozenset()).generate(prompts, greedy) == expected
