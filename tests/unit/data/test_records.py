from collections import Counter

import pytest

from data.chat_shapes import SHAPES
from data.conversation import Part, assistant, user
from data.records import parse

QUESTION = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}


def _parse(record: object) -> tuple[object, dict[str, int]]:
    skipped: Counter[str] = Counter()
    return parse(record, skipped), dict(skipped)


def test_text_and_other_columns() -> None:
    assert _parse({"title": "t", "text": "words\n", "score": 3}) == ("words\n", {})
    assert _parse({"text": "a\ud800b"}) == ("a\ufffdb", {})


@pytest.mark.parametrize("text", ["", " \n\t", None])
def test_empty_text_is_counted(text: str | None) -> None:
    assert _parse({"text": text}) == (None, {"empty": 1})


def test_messages() -> None:
    assert _parse({"messages": [QUESTION, ANSWER]}) == ((user("q"), assistant("a")), {})


def test_parts() -> None:
    parts = [{"type": "text", "text": "x"}, {"type": "calculator", "text": "1+1"}, {"type": "output", "text": "2"}]
    chat, _ = _parse({"messages": [QUESTION, {"role": "assistant", "content": parts}]})
    assert chat == (user("q"), assistant("x", Part("calculator", "1+1"), Part("output", "2")))


def test_system_goes_before_the_first_question() -> None:
    chat, _ = _parse({"messages": [{"role": "system", "content": "Be kind."}, QUESTION, ANSWER]})
    assert chat == (user("Be kind.\n\nq"), assistant("a"))


def test_neighbours_of_one_role_are_joined() -> None:
    chat, _ = _parse({"messages": [QUESTION, QUESTION, ANSWER, ANSWER]})
    assert chat == (user("q\n\nq"), assistant("a\n\na"))


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([QUESTION, {"role": "assistant_tool_call", "content": "{}"}, ANSWER], "tool calls"),
        ([QUESTION, {"role": "tool", "content": "{}"}, ANSWER], "tool calls"),
        ([QUESTION, {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}], "tool calls"),
        ([QUESTION], "no answer"),
        ([ANSWER], "no answer"),
        ([ANSWER, QUESTION], "no answer"),
        ([], "no answer"),
    ],
)
def test_chats_that_teach_no_answer_are_counted(messages: list, why: str) -> None:
    assert _parse({"messages": messages}) == (None, {why: 1})


def test_a_greeting_nobody_asked_for_is_dropped() -> None:
    assert _parse({"messages": [ANSWER, QUESTION, ANSWER]})[0] == (user("q"), assistant("a"))


@pytest.mark.parametrize(
    "record",
    [
        *({}, [], "text", 3, None, {"body": "x"}, {"text": 3}, {"question": "q"}, {"question": "q", "answer": 3}),
        *({"messages": "hi"}, {"messages": 3}, {"messages": ["hi"]}, {"messages": [{"content": "x"}]}),
        *({"messages": [{"role": "wizard", "content": "x"}]}, {"messages": [{"role": "user"}]}),
        {"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}, ANSWER]},
        {"messages": [{"role": "user", "content": [{"type": "calculator", "text": "1+1"}]}, ANSWER]},
    ],
)
def test_unknown_shapes_are_errors(record: object) -> None:
    with pytest.raises(ValueError, match=r"shape|must be|role|content|part|object"):
        _parse(record)


def test_an_unknown_shape_names_the_keys_found_and_the_shapes_known() -> None:
    with pytest.raises(ValueError) as caught:
        _parse({"body": "x", "prompt": "p", "title": None, **{f"key{n}": n for n in range(1000)}})
    message = str(caught.value)
    assert "`body`, `prompt`, `key0`" in message
    assert "title" not in message
    for shape in SHAPES:
        assert all(f'"{key}"' in message for key in shape.keys)
    assert '{"text"}' in message
    assert len(message) < 400


def test_columns_that_hold_null_are_counted() -> None:
    for shape in SHAPES:
        assert _parse(dict.fromkeys(shape.keys)) == (None, {"empty": 1})
        assert _parse({**dict.fromkeys(shape.keys), "text": "t"}) == ("t", {})
    assert _parse({"prompt": "q", "completion": None}) == (None, {"empty": 1})
