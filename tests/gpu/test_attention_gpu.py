"""Attention backends on the GPU: against the float32 reference, inside a compiled graph, beside a KV cache."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from model.attention.backends import BACKENDS, Request, reference
from model.attention.choose import choose
from model.cache import KVCache
from model.engine import Engine, Sampling
from tests.small_gpt import small_gpt

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
NAMES = [name for name in BACKENDS if name != "matmul"]


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    torch._dynamo.reset()


def request(**changes) -> Request:
    facts = {"device": GPU, "dtype": torch.bfloat16, "head_dim": 128, "grouped": False, "windowed": True}
    return Request(**{**facts, "compiled": True, **changes})


def served(name: str, **changes):
    """The backend, or a skip that says why this GPU or this installation does without it."""
    if problem := BACKENDS[name].refuses(request(**changes)):
        pytest.skip(f"{name} {problem}")
    return BACKENDS[name]


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, device=GPU, generator=generator).to(dtype)


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Distance over the expected one's norm; NaN where anything isn't finite."""
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("length", "window", "head_dim", "heads", "kv_heads"),
    [
        (512, 128, 128, 4, 4),
        (512, 100, 64, 4, 2),
        (512, 3, 128, 2, 2),
        (512, 512, 64, 4, 4),
        (2048, 128, 64, 2, 2),
        (2048, 512, 128, 4, 4),
        (2048, 512, 128, 6, 2),
        (2048, 2048, 128, 4, 4),
        (2048, 2048, 64, 6, 2),
    ],
)
def test_agrees_with_the_reference(
    name: str, length: int, window: int, head_dim: int, heads: int, kv_heads: int
) -> None:
    """Forward and backward, on views into one fused QKV tensor."""
    backend = served(name, head_dim=head_dim, grouped=heads != kv_heads, windowed=window < length)
    sizes = [heads, kv_heads, kv_heads]
    qkv, gradient = random(2, length, sum(sizes), head_dim), random(2, length, heads, head_dim)

    def run(attend, qkv: torch.Tensor) -> list[torch.Tensor]:
        leaf = qkv.clone().requires_grad_()
        out = attend(*leaf.split(sizes, dim=2), window)
        out.backward(gradient.to(out.dtype))
        return [out.detach(), *leaf.grad.split(sizes, dim=2)]

    results = zip(("output", "dq", "dk", "dv"), run(backend.attend, qkv), run(reference, qkv.float()), strict=True)
    for what, found, expected in results:
        assert found.dtype == torch.bfloat16
        assert off(found, expected) <= 1e-2, what


class TwoLayers(torch.nn.Module):
    """What surrounds attention in the model: a fused projection, normed q and k, v as it lies."""

    def __init__(self, attend, windows: tuple[int, int]) -> None:
        super().__init__()
        self.attend, self.windows = attend, windows
        self.qkv, self.out = (torch.nn.Parameter(random(*shape) / 16) for shape in ((768, 256), (256, 256)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for window in self.windows:
            q, k, v = (x @ self.qkv.T).view(*x.shape[:2], 6, 128).split(2, dim=2)
            q, k = (F.rms_norm(each, (128,)) for each in (q, k))
            x = x + self.attend(q, k, v, window).flatten(2) @ self.out.T
        return x


@pytest.mark.parametrize("name", NAMES)
def test_one_graph_compiled_once(name: str) -> None:
    """With windows where the backend has them; gradients as those of the reference, which isn't compiled."""
    windowed = BACKENDS[name].refuses(request()) is None
    backend = served(name, windowed=windowed)
    windows = (128, 512) if windowed else (512, 512)
    model, plain = TwoLayers(backend.attend, windows), TwoLayers(reference, windows)
    counter = CompileCounterWithBackend("inductor")
    step = torch.compile(model, fullgraph=True, dynamic=False, backend=counter)
    for seed in range(3):
        x = random(2, 512, 256) + seed
        for each, out in ((model, step(x)), (plain, plain(x))):
            each.qkv.grad = each.out.grad = None
            out.float().square().mean().backward()
        assert off(model.qkv.grad, plain.qkv.grad) <= 2e-2
        assert off(model.out.grad, plain.out.grad) <= 2e-2
    assert counter.frame_count == 1, "compiled again"


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("name", [*NAMES, "auto"])
def test_cached_logits_equal_uncached_ones_well_past_the_window(name: str, kv_heads: int) -> None:
    """A prompt of half the context, then a token at a time; fp16, whose rounding hides less than bf16's."""
    facts = {"dtype": torch.float16, "head_dim": 64, "grouped": kv_heads != 4, "compiled": False}
    windowed = name == "auto" or BACKENDS[name].refuses(request(**facts)) is None
    attend = (
        choose("auto", request(**facts)).attend if name == "auto" else served(name, **facts, windowed=windowed).attend
    )
    context = 192
    shape = {"context": context, "width": 256, "heads": 4, "kv_heads": kv_heads, "mlp_width": 256}
    model = small_gpt(attend=attend, **shape, windows=(32 if windowed else context, context)).to(GPU, torch.float16)
    ids = torch.randint(0, 64, (2, context), generator=torch.Generator().manual_seed(0)).to(GPU)
    cache = KVCache(model.config, 2, context, GPU, torch.float16)
    parts = [(0, 96), *((at, at + 1) for at in range(96, context))]
    found = []
    with torch.no_grad():
        expected = model.logits(model(ids))
        for start, stop in parts:
            positions = torch.arange(start, stop, device=GPU).expand(2, -1)
            cache.begin(positions)
            found.append(model.logits(model(ids[:, start:stop], cache, positions)))
    for (start, _), logits in zip(parts, found, strict=True):
        assert off(logits, expected[:, start : start + logits.shape[1]]) <= 2e-2, f"at position {start}"


def test_auto_never_takes_a_masked_path_for_windows() -> None:
    choice = choose("auto", request())
    assert choice.name in ("fa4", "fa3", "fa2", "varlen", "flex")
    for name in ("sdpa", "cudnn"):
        assert "sliding window" in BACKENDS[name].refuses(request())


def test_auto_takes_flash_attention_4_where_it_is_installed_and_was_measured() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("measured on sm_90 alone")
    served("fa4")
    for windowed in (True, False):
        choice = choose("auto", request(windowed=windowed))
        assert choice.name == "fa4", choice.rejected


def test_generation_on_the_gpu_is_that_of_the_cpu() -> None:
    model = small_gpt(context=32, windows=(8, 32))
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]]
    greedy = Sampling(temperature=0, max_tokens=15)
    expected = Engine(model, frozenset()).generate(prompts, greedy)
    assert Engine(model.cuda(), frozenset()).generate(prompts, greedy) == expected
