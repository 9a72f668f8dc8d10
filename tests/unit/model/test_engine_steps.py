"""How the engine works with steps: lean ones on a CPU, ones that run ahead of it as on a GPU, and none that work."""

import contextlib
import sys
import warnings
from collections import deque
from collections.abc import Iterator

import pytest
import torch

from config.errors import UserError
from model.decoding import captured
from model.decoding.steps import EagerSteps, Lean
from model.engine import Engine, Sampling
from model.linear import Format
from tests.small_gpt import small_gpt

GREEDY = Sampling(temperature=0, max_tokens=100)
SHAPES = {
    "plain": {},
    "grouped": {"heads": 4, "kv_heads": 2},
    "one key-value head": {"heads": 4, "kv_heads": 1, "value_layers": (0, 1)},
    "no value embeddings": {"value_layers": ()},
    "all windows short": {"windows": (4, 4)},
}


class Ahead(EagerSteps):
    """Draws at once and is read later, as steps on a GPU are."""

    ahead = True
    advances = 0

    def __init__(self, *rest: object) -> None:
        super().__init__(*rest)
        self.drawn = deque([super().read()])

    def read(self) -> list[int]:
        return self.drawn.popleft()

    def advance(self, ids: list[int | None]) -> None:
        Ahead.advances += 1
        super().advance([drawn if token is None else token for token, drawn in zip(ids, self.drawn[-1], strict=True)])
        self.drawn.append(super().read())

    def keep(self, rows: list[int]) -> None:
        super().keep(rows)
        self.drawn = deque([drawn[row] for row in rows] for drawn in self.drawn)


class Common:
    """A calculator whose marks random weights often say."""

    call_start, call_end, output_start, output_end = 30, 31, 32, 33

    def run(self, call: list[int]) -> list[int]:
        return [40 + sum(call) % 20]


def prompts(count: int, longest: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(0, 64, (length,), generator=generator).tolist() for length in lengths]


@pytest.fixture
def ahead(monkeypatch) -> Iterator[None]:
    Ahead.advances = 0
    monkeypatch.setattr("model.engine.EagerSteps", Ahead)


def talkative() -> Engine:
    model = small_gpt()
    with torch.no_grad():
        model.head.weight[30] *= 3
        model.head.weight[31] *= 3
    return Engine(model, frozenset(range(0, 20, 4)), Common())


def test_steps_that_run_ahead_say_the_same(monkeypatch) -> None:
    """With calls of the calculator, many ends, and rows that leave the batch."""
    engine, questions = talkative(), prompts(30, 12)
    expected = engine.generate(questions, GREEDY)
    assert sum(32 in reply for reply in expected) > 3 and len({len(reply) for reply in expected}) > 3
    monkeypatch.setattr("model.engine.EagerSteps", Ahead)
    assert engine.generate(questions, GREEDY) == expected
    assert [list(engine.stream(question, GREEDY)) for question in questions] == expected


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_no_step_runs_ahead_of_the_last_token(ahead, limit: int) -> None:
    engine = Engine(small_gpt(), frozenset())
    assert len(list(engine.stream([1, 2], Sampling(temperature=0, max_tokens=limit)))) == limit
    assert Ahead.advances == limit - 1
    assert len(list(engine.stream([1] * 31, GREEDY))) == 1
    assert Ahead.advances == limit - 1, "a step beyond the context"


def test_one_step_at_most_runs_after_a_stop(ahead) -> None:
    model = small_gpt()
    whole = list(Engine(model, frozenset()).stream([1, 2], GREEDY))
    stop = next(token for at, token in enumerate(whole) if at > 2 and token not in whole[:at])
    Ahead.advances = 0
    reply = list(Engine(model, frozenset({stop})).stream([1, 2], GREEDY))
    assert reply == whole[: len(reply)] and whole[len(reply)] == stop
    assert Ahead.advances == len(reply) + 1


# The lean forward pass


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("rows", [1, 3])
def test_lean_steps_are_those_of_the_model(changes: dict, rows: int, monkeypatch) -> None:
    model = small_gpt(**changes)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 64, (rows, 30), generator=generator).tolist()
    lengths = [3 + 2 * row for row in range(rows)]

    def hidden(lean: bool) -> torch.Tensor:
        monkeypatch.setattr(Lean, "serves", staticmethod(lambda _model: lean))
        fed = [row[:length] for row, length in zip(ids, lengths, strict=True)]
        steps = EagerSteps(model, fed, GREEDY, torch.Generator())
        assert (steps.lean is not None) == lean
        found = []
        for step in range(20):
            steps.advance([row[length + step] for row, length in zip(ids, lengths, strict=True)])
            found.append(steps.hidden)
        return torch.stack(found)

    torch.testing.assert_close(hidden(True), hidden(False), rtol=1e-5, atol=1e-5)


def test_lean_serves_plain_float32_only() -> None:
    assert Lean.serves(small_gpt())
    assert not Lean.serves(small_gpt().to(torch.bfloat16))
    formatted = small_gpt()
    formatted.blocks[0].mlp.up.format = Format()
    assert not Lean.serves(formatted)


def test_an_embedding_of_zeros_is_no_nan() -> None:
    model = small_gpt()
    with torch.no_grad():
        model.embedding.weight[5].zero_()
    steps = EagerSteps(model, [[1, 2]], GREEDY, torch.Generator())
    steps.advance([5])
    assert steps.hidden.isfinite().all()


# Kernels of our own that are not to be had


def test_fp8_weights_without_a_gpu_are_one_line() -> None:
    with pytest.raises(UserError, match="weights in fp8 need a CUDA GPU; leave fp8_weights off"):
        Engine(small_gpt(), frozenset(), fp8_weights=True)


def test_kernels_that_do_not_import_are_replaced_with_one_warning(monkeypatch) -> None:
    """As on a GPU whose Triton is broken."""
    engine = Engine(small_gpt(), frozenset())
    expected = engine.generate([[1, 2, 3]], GREEDY)
    monkeypatch.setattr(captured, "refuses", lambda _model, fp8=False: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: contextlib.nullcontext())
    monkeypatch.setitem(sys.modules, "model.decoding.device_step", None)
    with pytest.warns(UserWarning, match="fails on this device: .*PyTorch's serve, slower"):
        assert engine.generate([[1, 2, 3]], GREEDY) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine.generate([[1, 2, 3]], GREEDY) == expected


def test_what_our_kernels_need_is_said() -> None:
    assert captured.refuses(small_gpt()) == "a CUDA GPU"


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (200, 256), (256, 256)])
def test_buckets_are_the_next_power_of_two(rows: int, size: int) -> None:
    assert captured.bucket(rows) == size
