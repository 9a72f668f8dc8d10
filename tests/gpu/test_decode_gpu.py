"""Generation on the GPU: recorded steps against the model's own forward pass, alone, in batches and in threads."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from model.decoding import captured
from model.decoding.captured import Workspace, quantized_matrices
from model.decoding.steps import prefill
from model.engine import Engine, Sampling
from model.gpt import GPT
from tests.small_gpt import small_gpt

pytestmark = pytest.mark.gpu
SHAPE = {"width": 256, "heads": 2, "kv_heads": 2, "mlp_width": 1024, "layers": 4, "vocab_size": 512, "context": 512}
WINDOWS = {"windows": (128, 128, 128, 512), "value_layers": (1, 3)}
NO_STOP: frozenset[int] = frozenset()
BF16_TOLERANCE, FP32_TOLERANCE = 6e-2, 1e-4  # of logits, relative


def model_of(dtype: torch.dtype = torch.float32, **changes) -> GPT:
    return small_gpt(**{**SHAPE, **WINDOWS, **changes}).to("cuda", dtype).eval()


def texts(rows: int, length: int, vocab: int = 512) -> Tensor:
    return torch.randint(0, vocab, (rows, length), generator=torch.Generator().manual_seed(0))


def recorded(work: Workspace, ids: Tensor, lengths: list[int], steps: int) -> Tensor:
    """Logits (steps, B, V) of feeding the rows of `ids` onward from their lengths."""
    state, rows = work.state, len(ids)
    with torch.inference_mode():
        prefill(state.model, [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)], state.cache)
        found = []
        for step in range(steps):
            state.ids.copy_(torch.stack([row[length + step] for row, length in zip(ids, lengths, strict=True)]))
            state.positions.copy_(torch.tensor(lengths) + step)
            work.run(rows)
            found.append(state.logits[:rows].clone())
        return torch.stack(found)


def expected(model: GPT, ids: Tensor, lengths: list[int], steps: int) -> Tensor:
    """The same from a forward pass over the whole text, without a cache."""
    with torch.no_grad():
        logits = model.logits(model(ids.cuda()))
    return torch.stack([logits[row, length : length + steps] for row, length in enumerate(lengths)], dim=1)


def worst(found: Tensor, wanted: Tensor) -> float:
    """The largest relative error of any row's logits."""
    return ((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max().item()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, BF16_TOLERANCE), (torch.float32, FP32_TOLERANCE)], ids=["bf16", "fp32"]
)
@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"heads": 4, "kv_heads": 2, "windows": (64, 100, 512, 512)},
        {"heads": 12, "kv_heads": 1, "value_layers": (), "width": 384, "mlp_width": 1536},
    ],
    ids=["plain", "grouped", "no value embeddings"],
)
def test_recorded_steps_are_those_of_the_model(dtype, tolerance: float, rows: int, changes: dict) -> None:
    """Across the edge of the window, several blocks of keys, and rows of different lengths."""
    model = model_of(dtype, **changes)
    ids = texts(rows, 400)
    lengths = [100 + 9 * row for row in range(rows)]
    work = Workspace(model, rows, 512)
    assert worst(recorded(work, ids, lengths, 200), expected(model, ids, lengths, 200)) < tolerance


DEPTH_20 = {"width": 1280, "heads": 10, "kv_heads": 10, "mlp_width": 5120, "vocab_size": 32_768, "context": 2048}


@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("rows", [1, 4])
def test_long_texts_of_a_wide_model(rows: int, fp8: bool) -> None:
    """Many programs share a head's keys here, and every multiprocessor has rows of every matrix."""
    model = model_of(torch.bfloat16, **DEPTH_20, layers=2, windows=(512, 2048), value_layers=(1,))
    quantized = quantized_matrices(model) if fp8 else None
    ids = texts(rows, 2048, 32_768)
    for length in (2, 700, 2040):
        lengths = [max(1, length - 100 * row) for row in range(rows)]
        found = recorded(Workspace(model, rows, 2048, quantized), ids, lengths, 6)
        assert worst(found, expected(model, ids, lengths, 6)) < (0.3 if fp8 else BF16_TOLERANCE)


@pytest.mark.parametrize("rows", [1, 4])
def test_kernels_that_overlap_give_the_same_bits(rows: int) -> None:
    """A kernel that read before what it reads was written would differ, if not at each run."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip(f"needs compute capability 9.0, found {torch.cuda.get_device_capability()}")
    model = model_of(torch.bfloat16, layers=16, windows=(128,) * 16, value_layers=tuple(range(16)))
    found = []
    for overlap in (False, True):
        work = Workspace(model, rows, 512)
        work.overlap = overlap
        found.append(recorded(work, texts(rows, 500), [20] * rows, 400))
    assert torch.equal(*found)


def test_greedy_replies_are_those_of_eager_steps(monkeypatch) -> None:
    model = model_of()
    prompt, greedy = texts(1, 60)[0].tolist(), Sampling(temperature=0, max_tokens=200)
    engine = Engine(model, NO_STOP)
    reply = list(engine.stream(prompt, greedy))
    assert len(reply) == 200 and engine.workspaces.idle
    assert engine.generate([prompt], greedy) == [reply]
    monkeypatch.setattr(captured, "refuses", lambda _model, fp8=False: "other kernels")
    assert list(Engine(model, NO_STOP).stream(prompt, greedy)) == reply


def test_greedy_replies_in_bf16_are_likeliest_by_the_model() -> None:
    """Rounding may decide between two that are all but equally likely, so the ids themselves are not compared."""
    model = model_of(torch.bfloat16)
    prompt = texts(1, 60)[0].tolist()
    reply = list(Engine(model, NO_STOP).stream(prompt, Sampling(temperature=0, max_tokens=200)))
    with torch.no_grad():
        logits = model.logits(model(torch.tensor([prompt + reply], device="cuda")))[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(reply, device="cuda")[:, None])[:, 0]
    assert ((logits.max(dim=1).values - chosen) < 0.4).all()


@pytest.mark.parametrize("stop_ids", [NO_STOP, frozenset(range(0, 512, 60))], ids=["to the limit", "with ends"])
def test_a_batch_of_many_lengths_gives_each_prompt_its_own_reply(stop_ids: frozenset[int]) -> None:
    model = model_of()
    prompts = [row[: 3 + 5 * at].tolist() for at, row in enumerate(texts(20, 120))]
    sampling = Sampling(temperature=0, max_tokens=60)
    engine = Engine(model, stop_ids)
    together = engine.generate(prompts, sampling)
    assert together == [list(engine.stream(prompt, sampling)) for prompt in prompts]
    if stop_ids:
        assert len({len(reply) for reply in together}) > 5, "the prompts are to end at many times"


class Common:
    """A calculator whose marks random weights often say."""

    call_start, call_end, output_start, output_end = 30, 31, 32, 33

    def run(self, call: list[int]) -> list[int]:
        return [40 + sum(call) % 20]


def test_the_calculators_ids_are_fed() -> None:
    model = small_gpt().cuda()
    with torch.no_grad():
        model.head.weight[30] *= 3
        model.head.weight[31] *= 3
    prompts = [row[: 1 + at % 12].tolist() for at, row in enumerate(texts(30, 12, vocab=64))]
    greedy = Sampling(temperature=0, max_tokens=30)
    found = Engine(model, frozenset(range(0, 20, 4)), Common()).generate(prompts, greedy)
    assert sum(32 in reply for reply in found) > 3, "the test needs calls"
    assert found == Engine(model.cpu(), frozenset(range(0, 20, 4)), Common()).generate(prompts, greedy)


def test_a_seed_gives_the_same_text_and_another_another() -> None:
    engine = Engine(model_of(torch.bfloat16), NO_STOP)

    def said(seed: int | None, rows: int = 3, **settings) -> list[list[int]]:
        sampling = Sampling(**{"temperature": 1.0, "max_tokens": 20, **settings}, seed=seed)
        return engine.generate([[1, 2, 3]] * rows, sampling)

    assert said(5) == said(5) != said(6)
    assert said(2**63 + 7) == said(2**63 + 7)
    assert said(None) != said(None)
    assert len({tuple(reply) for reply in said(5)}) == 3
    likeliest = said(None, 1, temperature=0)
    assert said(5, 1, top_k=1) == said(6, 1, top_p=1e-6) == said(7, 1, temperature=1e-40) == likeliest


def test_draws_follow_the_distribution() -> None:
    """Total variation over 8,192 draws from 512 tokens: about 0.08 by chance."""
    from model.decoding.device_step import Draws, State

    logits = 2 * torch.randn(1, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    rows = 8192
    integers = {"dtype": torch.int64, "device": "cuda"}
    state = SimpleNamespace(
        logits=logits.expand(rows, -1).contiguous(),
        temperature=torch.tensor([0.8], device="cuda"),
        seed=torch.tensor([11], **integers),
        numbers=torch.arange(rows, **integers),
        positions=torch.zeros(rows, **integers),
        ids=torch.zeros(rows, **integers),
        draws=Draws(rows, 512, logits.device),
        slots=10,
    )
    State.draw(state, rows)
    share = torch.bincount(state.ids, minlength=512) / rows
    assert (share - (logits[0] / 0.8).softmax(-1)).abs().sum() / 2 < 0.12
    assert (state.positions == 1).all()


@pytest.mark.parametrize("vocab", [64, 1000, 32_768, 50_001])
def test_the_likeliest_is_drawn_whichever_program_has_it(vocab: int) -> None:
    """The first of several that are alike, as argmax has it."""
    from model.decoding.device_step import State

    state = State(model_of(vocab_size=vocab), 256, 512)
    generator = torch.Generator("cuda").manual_seed(0)
    state.logits.copy_(torch.randint(0, 1000, state.logits.shape, device="cuda", generator=generator))
    for step in range(3):
        state.draw(256)
        first = torch.arange(vocab, 0, -1, device="cuda") * (
            state.logits == state.logits.max(dim=1, keepdim=True).values
        )
        assert torch.equal(state.ids, first.argmax(dim=1)) and (state.positions == step + 1).all()


def test_two_threads_get_what_each_gets_alone() -> None:
    engine = Engine(model_of(torch.bfloat16), NO_STOP)
    jobs = [(texts(1, 30 + 40 * at)[0].tolist(), Sampling(temperature=0.9, seed=at, max_tokens=150)) for at in range(4)]

    def reply(job: tuple[list[int], Sampling]) -> list[int]:
        return list(engine.stream(*job))

    alone = [reply(job) for job in jobs]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(reply, jobs)) == alone
        batches = [pool.submit(engine.generate, [job[0]] * 5, job[1]) for job in jobs]
        together = [batch.result() for batch in batches]
    assert together == [engine.generate([job[0]] * 5, job[1]) for job in jobs]


def test_nothing_is_compiled_or_recorded_again(monkeypatch) -> None:
    import triton

    engine = Engine(model_of(torch.bfloat16), NO_STOP)
    prompts = texts(4, 300)

    def work(length: int, temperature: float) -> None:
        sampling = Sampling(temperature=temperature, seed=1, max_tokens=100)
        list(engine.stream(prompts[0][:length].tolist(), sampling))
        engine.generate(prompts[:, :length].tolist(), sampling)

    work(7, 0.0)
    compiled: list[object] = []
    recordings: list[object] = []
    record = captured.record
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **facts: compiled.append(facts))
    monkeypatch.setattr(captured, "record", lambda launch: recordings.append(launch) or record(launch))
    work(256, 0.8)
    work(64, 1.1)
    assert not compiled and not recordings
    small = Engine(model_of(width=128, heads=1, kv_heads=1, mlp_width=512), NO_STOP)
    list(small.stream([1, 2], Sampling(max_tokens=3)))
    assert compiled and recordings, "the test sees compilations"


def test_moved_or_recast_weights_are_not_read_from_where_they_were() -> None:
    model = model_of()
    engine, greedy = Engine(model, NO_STOP), Sampling(temperature=0, max_tokens=40)
    before = engine.generate([[1, 2, 3]], greedy)
    with torch.no_grad():
        model.head.weight.copy_(model.head.weight.flip(0))
    assert engine.generate([[1, 2, 3]], greedy) == Engine(model, NO_STOP).generate([[1, 2, 3]], greedy) != before
    model.head.weight.data = model.head.weight.data.flip(0).clone()
    assert engine.generate([[1, 2, 3]], greedy) == before


def test_weights_in_fp8_are_close() -> None:
    model = model_of(torch.bfloat16)
    ids = texts(1, 400)
    wanted = expected(model, ids, [100], 200)
    found = recorded(Workspace(model, 1, 512, quantized_matrices(model)), ids, [100], 200)
    error = ((found - wanted).norm() / wanted.norm()).item()
    assert 1e-3 < error < 0.3
    engine = Engine(model, NO_STOP, fp8_weights=True)
    assert len(list(engine.stream([1, 2, 3], Sampling(temperature=0, max_tokens=50)))) == 50


def test_kernels_that_are_wrong_here_are_replaced_with_one_warning(monkeypatch) -> None:
    model, greedy = model_of(), Sampling(temperature=0, max_tokens=30)
    wanted = Engine(model, NO_STOP).generate([[1, 2, 3]], greedy)
    monkeypatch.setitem(captured.TOLERANCE, torch.float32, 0.0)
    engine = Engine(model, NO_STOP)
    with pytest.warns(UserWarning, match="is off by .* on this device"):
        assert engine.generate([[1, 2, 3]], greedy) == wanted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine.generate([[1, 2, 3]], greedy) == wanted


@pytest.mark.parametrize("inputs", [32, 128, 1280, 1408, 2048, 5120, 6144, 8192, 16384])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_cuts_are_powers_of_two_and_fit_into_registers(inputs: int, itemsize: int) -> None:
    from model.decoding.device_step import power_of_two, tile

    cut = tile(inputs, itemsize)
    assert all(size == power_of_two(size) for size in (cut.rows, cut.block, cut.warps))
    bytes_a_thread = cut.rows * inputs * itemsize / (32 * cut.warps)
    assert bytes_a_thread <= 384 or cut.rows == 1


@pytest.mark.parametrize(
    ("older", "programs", "keys"), [(0, 1, 64), (64, 1, 64), (65, 2, 64), (511, 8, 64), (2047, 32, 64), (8191, 32, 256)]
)
def test_older_keys_are_shared_by_so_many_programs(older: int, programs: int, keys: int) -> None:
    from model.decoding.device_step import chunks

    assert chunks(older, 64) == (programs, keys)
