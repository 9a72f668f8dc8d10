"""Generation: the same tokens however they are decoded, the calculator's turn, and an end for every reply."""

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from config.errors import UserError
from model.cache import KVCache
from model.engine import Engine, Sampling
from model.gpt import GPT
from tests.small_gpt import small_gpt

GREEDY = Sampling(temperature=0, max_tokens=100)
NO_STOP: frozenset[int] = frozenset()
PROMPT = [1, 2, 3]


def greedy(model: GPT, prompt: list[int], stop_ids: frozenset[int] = NO_STOP, limit: int = 100) -> list[int]:
    """Argmax of the uncached forward pass, token by token."""
    ids = list(prompt)
    while len(ids) < model.config.context and len(ids) - len(prompt) < limit:
        with torch.no_grad():
            token = int(model.logits(model(torch.tensor([ids])))[0, -1].argmax())
        if token in stop_ids:
            break
        ids.append(token)
    return ids[len(prompt) :]


def prompts_of_many_lengths(count: int, longest: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(64) for _ in range(draw.randint(1, longest))] for _ in range(count)]


class Scripted(torch.nn.Module):
    """Says what `script` says at each position of the text, whatever it reads; sees what it was fed."""

    def __init__(self, script: dict[int, int], vocab_size: int = 20, context: int = 32) -> None:
        super().__init__()
        self.real = small_gpt(vocab_size=vocab_size, context=context)
        self.config = self.real.config
        self.embedding = self.real.embedding
        self.script = script
        self.fed: list[int] = []

    def forward(self, ids: Tensor, cache: object, positions: Tensor) -> Tensor:
        self.fed += ids[0].tolist()
        return positions[..., None].float()

    def logits(self, hidden: Tensor) -> Tensor:
        wanted = torch.tensor([self.script.get(int(at) + 1, 0) for at in hidden[:, 0]])
        return 10 * torch.nn.functional.one_hot(wanted, self.config.vocab_size).float()


class Adder:
    """Sums the ids of a call."""

    call_start, call_end, output_start, output_end = 10, 11, 12, 13

    def __init__(self, answer: list[int] | None = None) -> None:
        self.answer = answer
        self.calls: list[list[int]] = []

    def run(self, call: list[int]) -> list[int]:
        self.calls.append(call)
        return [sum(call)] if self.answer is None else self.answer


def say(*tokens: int) -> dict[int, int]:
    """The script of a model that says these after PROMPT."""
    return {len(PROMPT) + at: token for at, token in enumerate(tokens)}


@pytest.mark.parametrize("changes", [{}, {"heads": 4, "kv_heads": 1}, {"windows": (4, 4)}])
def test_stream_generate_and_uncached_argmax_agree_up_to_the_end_of_the_context(changes: dict) -> None:
    model = small_gpt(**changes)
    engine = Engine(model, NO_STOP)
    for prompt in prompts_of_many_lengths(4, 20):
        expected = greedy(model, prompt)
        assert len(expected) == 32 - len(prompt)
        assert list(engine.stream(prompt, GREEDY)) == expected
        assert engine.generate([prompt], GREEDY) == [expected]


@pytest.mark.parametrize("stop_ids", [NO_STOP, frozenset(range(0, 64, 9)), frozenset(range(0, 64, 3))])
def test_a_batch_of_many_lengths_and_ends_gives_each_prompt_its_own_reply(stop_ids: frozenset[int]) -> None:
    model = small_gpt(heads=4, kv_heads=2)
    prompts = prompts_of_many_lengths(40, 25, seed=1)
    expected = [greedy(model, prompt, stop_ids) for prompt in prompts]
    engine = Engine(model, stop_ids)
    assert engine.generate(prompts, GREEDY) == expected
    if stop_ids:
        assert len({len(reply) for reply in expected}) > 3, "the prompts are to end at many times"


def test_more_prompts_than_a_batch_holds(monkeypatch) -> None:
    monkeypatch.setattr("model.engine.BATCH_ROWS", 4)
    model = small_gpt()
    prompts = prompts_of_many_lengths(11, 12)
    sampling = Sampling(temperature=0, max_tokens=6)
    assert Engine(model, NO_STOP).generate(prompts, sampling) == [greedy(model, p, NO_STOP, 6) for p in prompts]


def test_finished_rows_leave_the_batch(monkeypatch) -> None:
    sizes: list[int] = []
    attend = KVCache.attend

    def noted(self: KVCache, layer: int, q: Tensor, *rest: object) -> Tensor:
        sizes.append(len(q))
        return attend(self, layer, q, *rest)

    monkeypatch.setattr(KVCache, "attend", noted)
    Engine(small_gpt(), frozenset(range(0, 64, 3))).generate(prompts_of_many_lengths(40, 12), GREEDY)
    assert sizes[0] == 40 and sizes[-1] < 5


def test_no_prompts_no_replies() -> None:
    assert Engine(small_gpt(), NO_STOP).generate([], GREEDY) == []


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_max_tokens(limit: int) -> None:
    engine = Engine(small_gpt(), NO_STOP)
    sampling = Sampling(temperature=0, max_tokens=limit)
    whole = engine.generate([PROMPT], GREEDY)[0]
    assert engine.generate([PROMPT, [5]], sampling)[0] == whole[:limit]
    assert list(engine.stream(PROMPT, sampling)) == whole[:limit]


def test_a_stop_id_ends_the_reply_and_is_not_in_it() -> None:
    model = Scripted(say(4, 5, 6, 7))
    assert Engine(model, frozenset({6, 9})).generate([PROMPT], GREEDY) == [[4, 5]]
    assert Engine(Scripted(say(6)), frozenset({6})).generate([PROMPT], GREEDY) == [[]]


def test_a_prompt_one_short_of_the_context_gets_one_token() -> None:
    engine = Engine(small_gpt(), NO_STOP)
    assert len(engine.generate([[1] * 31], GREEDY)[0]) == 1


@pytest.mark.parametrize("length", [0, 32, 40])
def test_an_empty_or_too_long_prompt_is_one_line(length: int) -> None:
    with pytest.raises(UserError, match=f"the prompt has {length} tokens; expected 1 to 31"):
        next(Engine(small_gpt(), NO_STOP).stream([1] * length, GREEDY))


def test_a_model_in_bf16_generates() -> None:
    model = small_gpt().to(torch.bfloat16)
    assert len(Engine(model, NO_STOP).generate([PROMPT], GREEDY)[0]) == 29


# Sampling


def many(seed: int | None, rows: int = 16, **settings) -> list[list[int]]:
    sampling = Sampling(**{"temperature": 1.0, "max_tokens": 8, **settings}, seed=seed)
    return Engine(small_gpt(), NO_STOP).generate([PROMPT] * rows, sampling)


def test_samples_repeat_with_their_seed_and_differ_with_another() -> None:
    assert many(5) == many(5)
    assert many(5) != many(6)


def test_without_a_seed_every_call_differs() -> None:
    torch.manual_seed(0)
    first = many(None)
    torch.manual_seed(0)
    assert many(None) != first


def test_rows_of_one_prompt_differ_from_the_first_token_on() -> None:
    replies = many(5)
    assert len({reply[0] for reply in replies}) > 3
    assert len({tuple(reply) for reply in replies}) == 16


def test_samples_differ_beyond_a_batch_too(monkeypatch) -> None:
    monkeypatch.setattr("model.engine.BATCH_ROWS", 8)
    replies = many(5, 32)
    assert len({tuple(reply) for reply in replies}) == 32
    assert replies == many(5, 32)


def test_generation_leaves_the_global_generator_alone() -> None:
    engine = Engine(small_gpt(), NO_STOP)
    before = torch.get_rng_state()
    engine.generate([PROMPT] * 3, Sampling(temperature=1.0, max_tokens=4))
    assert torch.equal(torch.get_rng_state(), before)


def share_drawn(count: int = 4000, **settings) -> Tensor:
    """Shares of first tokens over many draws."""
    replies = many(1, count, max_tokens=1, **settings)
    return torch.bincount(torch.tensor(replies).flatten(), minlength=64) / count


def probabilities(temperature: float) -> Tensor:
    model = small_gpt()
    with torch.no_grad():
        return (model.logits(model(torch.tensor([PROMPT])))[0, -1] / temperature).softmax(-1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature: float) -> None:
    """Total variation over 4,000 draws: about 0.05 by chance."""
    distance = (share_drawn(temperature=temperature) - probabilities(temperature)).abs().sum() / 2
    assert distance < 0.1


def test_top_k_off_one_and_some() -> None:
    assert (share_drawn(top_k=0) > 0).sum() > 20
    assert many(5, top_k=0) == many(5) == many(5, top_k=64) == many(5, top_k=1000)
    assert many(5, top_k=1) == many(6, top_k=1) == many(5, temperature=0)
    best = set(probabilities(1.0).topk(5).indices.tolist())
    assert set(share_drawn(top_k=5).nonzero().flatten().tolist()) == best


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    ordered, order = probabilities(1.0).sort(descending=True)
    count = int((ordered.cumsum(0) < 0.6).sum()) + 1
    assert 1 < count < 30
    assert set(share_drawn(top_p=0.6).nonzero().flatten().tolist()) == set(order[:count].tolist())
    assert many(5, top_p=1e-6) == many(5, temperature=0)


def test_top_k_and_top_p_go_together() -> None:
    drawn = share_drawn(top_k=3, top_p=0.999)
    assert set(drawn.nonzero().flatten().tolist()) == set(probabilities(1.0).topk(3).indices.tolist())


def test_a_tiny_temperature_is_greedy_and_a_huge_one_uniform() -> None:
    assert many(5, temperature=1e-40) == many(5, temperature=0)
    assert (share_drawn(temperature=1e9) > 0).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"max_tokens": 0},
    ],
)
def test_impossible_sampling_is_one_line(wrong: dict) -> None:
    with pytest.raises(UserError, match="expected temperature ≥ 0"):
        Sampling(**wrong)


# The calculator


def test_the_tools_answer_follows_the_call_and_the_model_reads_it() -> None:
    tool = Adder()
    # What the model would say while the tool speaks (positions 7 to 9) is not heard.
    model = Scripted(say(10, 4, 5, 11, 1, 1, 1, 7, 15))
    reply = Engine(model, frozenset({15}), tool).generate([PROMPT], GREEDY)[0]
    assert reply == [10, 4, 5, 11, 12, 9, 13, 7]
    assert tool.calls == [[4, 5]]
    assert model.fed == [*PROMPT, *reply]


def test_stream_yields_the_tools_answer_too() -> None:
    engine = Engine(Scripted(say(10, 4, 11, 1, 1, 1, 15)), frozenset({15}), Adder())
    assert list(engine.stream(PROMPT, GREEDY)) == [10, 4, 11, 12, 4, 13]


def test_without_a_tool_the_marks_are_tokens_as_any() -> None:
    assert Engine(Scripted(say(10, 4, 11, 7, 15)), frozenset({15})).generate([PROMPT], GREEDY) == [[10, 4, 11, 7]]


@pytest.mark.parametrize(
    ("said", "calls"),
    [
        ((10, 4, 5), []),  # never ended
        ((4, 11, 5), []),  # never begun
        ((10, 4, 10, 5, 11), [[5]]),  # begun anew
        ((10, 11), [[]]),  # empty
        ((10, 4, 11, 1, 1, 1, 11), [[4]]),  # ended twice
    ],
)
def test_only_a_finished_call_is_run(said: tuple[int, ...], calls: list[list[int]]) -> None:
    tool = Adder()
    Engine(Scripted(say(*said, 15)), frozenset({15}), tool).generate([PROMPT], Sampling(temperature=0, max_tokens=20))
    assert tool.calls == calls


def test_the_answer_cannot_call_the_tool_again() -> None:
    tool = Adder(answer=[10, 7, 11])
    engine = Engine(Scripted(say(10, 4, 11, *[1] * 5, 15)), frozenset({15}), tool)
    assert engine.generate([PROMPT], GREEDY) == [[10, 4, 11, 12, 10, 7, 11, 13]]
    assert tool.calls == [[4]]


def test_an_answer_is_cut_where_the_reply_ends() -> None:
    engine = Engine(Scripted(say(10, 4, 11)), NO_STOP, Adder(answer=[6] * 50))
    assert engine.generate([PROMPT], Sampling(temperature=0, max_tokens=6)) == [[10, 4, 11, 12, 6, 6]]
    assert len(engine.generate([PROMPT], GREEDY)[0]) == 29


def test_calls_in_a_batch_go_to_their_own_rows() -> None:
    """Real weights, and marks so common that several rows call at various times."""

    class Common(Adder):
        call_start, call_end, output_start, output_end = 30, 31, 32, 33

        def run(self, call: list[int]) -> list[int]:
            return [40 + sum(call) % 20]

    model = small_gpt()
    with torch.no_grad():
        model.head.weight[30] *= 3
        model.head.weight[31] *= 3
    prompts = prompts_of_many_lengths(30, 12, seed=3)
    stop_ids = frozenset(range(0, 20, 4))
    engine = Engine(model, stop_ids, Common())
    together = engine.generate(prompts, GREEDY)
    assert together == [list(engine.stream(prompt, GREEDY)) for prompt in prompts]
    assert sum(32 in reply for reply in together) > 3, "the test needs calls"


def test_closing_a_stream_ends_the_work() -> None:
    model = Scripted({})
    stream: Iterator[int] = Engine(model, NO_STOP).stream(PROMPT, GREEDY)
    next(stream), next(stream)
    stream.close()
    assert len(model.fed) == len(PROMPT) + 1
    assert list(stream) == []
