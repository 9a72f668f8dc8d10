import threading
import time
from collections.abc import Iterator

import pytest

from app.reply import Answer, ChatModel, Settings, answer
from config.errors import UserError
from data.calculator import CalculatorTool
from data.conversation import Part, assistant, user
from data.tokenizer import SPECIALS, Tokenizer

CONTEXT = 100


@pytest.fixture(scope="module")
def tok() -> Tokenizer:
    return Tokenizer.train(["aa"], 256 + len(SPECIALS))


class Scripted:
    """A model that says given ids, and remembers what it was asked and whether it was closed."""

    def __init__(self, tok: Tokenizer, ids: list[int], seconds: float = 0.0) -> None:
        self.ids, self.seconds = ids, seconds
        self.prompt: list[int] = []
        self.settings: Settings | None = None
        self.closed = threading.Event()
        self.model = ChatModel(tok, CONTEXT, self.stream)

    def stream(self, prompt: list[int], settings: Settings) -> Iterator[int]:
        self.prompt, self.settings = prompt, settings
        try:
            for token in self.ids[: settings.max_tokens]:
                yield token
                time.sleep(self.seconds)
        finally:
            self.closed.set()


def last(steps: Iterator[Answer]) -> Answer:
    return list(steps)[-1]


def test_an_answer_grows_and_completes(tok: Tokenizer):
    script = Scripted(tok, tok.encode("Hello you"), seconds=0.02)
    steps = list(answer(script.model, (user("Hi"),), Settings(seed=7), threading.Event()))
    texts = [step.message.text for step in steps]
    assert texts[0] == "" and texts[-1] == "Hello you"
    assert len(set(texts)) > 2 and all(texts[-1].startswith(text) for text in texts)
    assert [step.ending for step in steps] == [None] * (len(steps) - 1) + ["complete"]
    assert steps[-1].tokens == 9 and steps[-1].seed == script.settings.seed == 7


def test_a_reply_with_a_calculation_has_its_parts(tok: Tokenizer):
    tool = CalculatorTool(tok)
    call = tok.encode("3+4")
    ids = [*tok.encode("It is "), tool.call_start, *call, tool.call_end, tool.output_start, *tool.run(call)]
    script = Scripted(tok, [*ids, tool.output_end, *tok.encode("7.")])
    reply = last(answer(script.model, (user("3+4"),), Settings(), threading.Event()))
    assert reply.parts == (Part("text", "It is "), Part("calculator", "3+4"), Part("output", "7"), Part("text", "7."))
    assert reply.message.text == "It is 7."


def test_a_call_without_its_answer_is_no_part_of_the_turn():
    cut = Answer((Part("text", "It is "), Part("calculator", "3+4")), seed=1, ending="stopped")
    assert cut.message == assistant("It is ")


def test_characters_are_never_halved(tok: Tokenizer):
    text = "né 你好 👩‍🚀"
    script = Scripted(tok, tok.encode(text), seconds=0.01)
    texts = [step.message.text for step in answer(script.model, (user("x"),), Settings(), threading.Event())]
    assert texts[-1] == text
    assert not any("\ufffd" in text for text in texts)


@pytest.mark.parametrize("tokens", range(1, 8))
def test_a_reply_cut_inside_a_character_leaves_it_out(tok: Tokenizer, tokens: int):
    script = Scripted(tok, tok.encode("a👍b👍"))
    reply = last(answer(script.model, (user("x"),), Settings(max_tokens=tokens), threading.Event()))
    assert reply.message.text == ("a" if tokens < 5 else "a👍" if tokens == 5 else "a👍b")
    assert reply.ending == "length"


def test_stop_ends_at_once_and_closes_the_model(tok: Tokenizer):
    script = Scripted(tok, tok.encode("A long reply"), seconds=0.5)
    stop = threading.Event()
    steps = answer(script.model, (user("x"),), Settings(), stop)
    while not next(steps).parts:
        pass
    stop.set()
    asked = time.monotonic()
    reply = last(steps)
    assert time.monotonic() - asked < 0.2
    assert (reply.ending, reply.message.text) == ("stopped", "A")
    assert script.closed.wait(2)


def test_leaving_closes_the_model(tok: Tokenizer):
    script = Scripted(tok, tok.encode("A long reply"), seconds=0.01)
    steps = answer(script.model, (user("x"),), Settings(), threading.Event())
    next(steps)
    steps.close()
    assert script.closed.wait(2)


def test_what_the_model_raises_is_raised(tok: Tokenizer):
    def stream(prompt: list[int], settings: Settings) -> Iterator[int]:
        yield 65
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        list(answer(ChatModel(tok, CONTEXT, stream), (user("x"),), Settings(), threading.Event()))


def test_old_turns_give_way_and_prompt_and_reply_fit_the_context(tok: Tokenizer):
    said = tuple(turn for number in range(9) for turn in (user(f"question {number}"), assistant("yes")))
    script = Scripted(tok, tok.encode("z" * 300))
    reply = last(answer(script.model, (*said, user("and now?")), Settings(max_tokens=200), threading.Event()))
    assert reply.dropped_turns > 0 and reply.dropped_turns % 2 == 0
    assert not reply.question_cut
    assert len(script.prompt) + reply.tokens == CONTEXT
    assert reply.ending == "context"
    assert tok.decode(script.prompt).endswith("and now?")


def test_a_question_too_long_by_itself_loses_its_beginning(tok: Tokenizer):
    script = Scripted(tok, tok.encode("ok"))
    reply = last(answer(script.model, (user("a" * 500 + " the end"),), Settings(), threading.Event()))
    assert reply.question_cut and reply.ending == "complete"
    assert tok.decode(script.prompt).endswith(" the end")


def test_without_a_seed_each_reply_has_a_fresh_one(tok: Tokenizer):
    script = Scripted(tok, tok.encode("ok"))
    seeds = {last(answer(script.model, (user("x"),), Settings(), threading.Event())).seed for _ in range(5)}
    assert len(seeds) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"seed": -1},
        {"seed": 2**63},
        {"max_tokens": 0},
    ],
)
def test_impossible_settings_are_refused(wrong: dict):
    with pytest.raises(UserError, match="expected"):
        Settings(**wrong)
