import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.chat_shapes import SHAPES, conversation, find, worked_answer
from data.conversation import Conversation, Part, assistant, user

CHAT = (user("q"), assistant("a"))


def _read(record: dict) -> tuple[Conversation | None, dict[str, int]]:
    shape = find(record)
    assert shape is not None
    skipped: Counter[str] = Counter()
    return conversation(shape.read(record), skipped), dict(skipped)


def _said(speaker: str, text: object) -> dict[str, object]:
    return {"from": speaker, "value": text}


def _wrote(role: str, text: object) -> dict[str, object]:
    return {"role": role, "content": text}


RECORDS = {
    "messages": {"messages": [_wrote("user", "q"), _wrote("assistant", "a")]},
    "messages in ShareGPT's words": {"messages": [_said("human", "q"), _said("gpt", "a")]},
    "ShareGPT": {"conversations": [_said("human", "q"), _said("gpt", "a")]},
    "roles in capitals": {"messages": [_wrote("User", "q"), _wrote("ASSISTANT", "a")]},
    "an empty system": {"messages": [_wrote("system", " "), _wrote("user", "q"), _wrote("assistant", "a")]},
    "LMSYS": {"conversation": [_wrote("user", "q"), _wrote("assistant", "a")]},
    "Dolly": {"instruction": "q", "context": "", "response": "a"},
    "ShareGPT in OpenAI's words": {"conversations": [_wrote("user", "q"), _wrote("assistant", "a")]},
    "Alpaca": {"instruction": "q", "input": "", "output": "a"},
    "Alpaca without an input": {"instruction": "q", "output": "a"},
    "Alpaca with null": {"instruction": "q", "input": None, "output": "a", "system": None},
    "completion": {"prompt": "q", "completion": "a"},
    "response": {"prompt": "q", "response": "a"},
    "TRL": {"prompt": [_wrote("user", "q")], "completion": [_wrote("assistant", "a")]},
    "TRL's prompt alone": {"prompt": [_wrote("user", "q")], "response": "a"},
    "question": {"question": "q", "answer": "a"},
}


@pytest.mark.parametrize("name", RECORDS)
def test_every_shape_gives_the_same_conversation(name: str) -> None:
    assert _read(RECORDS[name]) == (CHAT, {})
    assert _read({"id": 3, "text": "all of it", **RECORDS[name]}) == (CHAT, {})


words = st.text(min_size=1).filter(lambda text: text.strip() and "<<" not in text)


@given(words, words)
def test_no_shape_changes_the_words(asked: str, answered: str) -> None:
    for record in RECORDS.values():
        said = {'"q"': json.dumps(asked), '"a"': json.dumps(answered)}
        text = re.sub('"[qa]"', lambda word: said[word[0]], json.dumps(record))  # noqa: B023 (called at once)
        assert _read(json.loads(text)) == ((user(asked), assistant(answered)), {})


@pytest.mark.parametrize("speaker", ["human", "user"])
@pytest.mark.parametrize("answerer", ["gpt", "chatgpt", "bing", "bard", "assistant", "model"])
def test_speakers_of_sharegpt(speaker: str, answerer: str) -> None:
    turns = [_said("system", "s"), _said(speaker, "q"), _said(answerer, "a"), _said(speaker, "r"), _said(answerer, "b")]
    assert _read({"conversations": turns})[0] == (user("s\n\nq"), assistant("a"), user("r"), assistant("b"))


def test_system_beside_the_conversation() -> None:
    wanted = (user("s\n\nq"), assistant("a"))
    assert _read({"system": "s", **RECORDS["ShareGPT"]})[0] == wanted
    assert _read({"system": "s", **RECORDS["Alpaca"]})[0] == wanted
    assert _read({"system": " ", **RECORDS["Alpaca"]})[0] == CHAT


def test_the_input_follows_the_instruction_and_an_empty_line() -> None:
    assert _read({"instruction": "Add.", "input": "1, 2", "output": "3"})[0] == (user("Add.\n\n1, 2"), assistant("3"))
    assert _read({"instruction": "", "input": "1, 2", "output": "3"})[0] == (user("1, 2"), assistant("3"))


def test_a_prompt_of_messages_keeps_its_turns() -> None:
    prompt = [_wrote("system", "s"), _wrote("user", "q"), _wrote("assistant", "a"), _wrote("user", "r")]
    chat = (user("s\n\nq"), assistant("a"), user("r"), assistant("b"))
    assert _read({"prompt": prompt, "completion": [_wrote("assistant", "b")]})[0] == chat
    assert _read({"prompt": prompt, "completion": "b"})[0] == chat


def test_a_record_of_several_shapes_is_read_as_the_first() -> None:
    for position, shape in enumerate(SHAPES):
        record: dict = {}
        for other in reversed(SHAPES[position:]):
            answer = "right" if other is shape else "wrong"
            turns = [_wrote("user", "q"), _wrote("assistant", answer)]
            record |= dict.fromkeys(other.keys, "q") | {other.keys[-1]: answer if len(other.keys) > 1 else turns}
        assert find(record) is shape
        assert _read(record)[0] == (user("q"), assistant("right"))
    assert find({"question": "q", "text": "t"}) is None


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"conversations": [_said("human", "q"), _said("function_call", "{}"), _said("gpt", "a")]}, "tool calls"),
        ({"conversations": [_said("human", "q"), _said("observation", None), _said("gpt", "a")]}, "tool calls"),
        ({"messages": [_wrote("user", "q"), {**_wrote("assistant", None), "function_call": {"n": 1}}]}, "tool calls"),
        ({"conversations": [_said("human", "q")]}, "no answer"),
        ({"conversations": []}, "no answer"),
        ({"messages": [_wrote("user", "q"), _wrote("assistant", " \n")]}, "no answer"),
        ({"instruction": "q", "input": "", "output": ""}, "no answer"),
        ({"prompt": "q", "completion": ""}, "no answer"),
        ({"prompt": [_wrote("user", "q")], "completion": []}, "no answer"),
        ({"question": "q", "answer": ""}, "no answer"),
    ],
)
def test_records_that_teach_no_answer_are_counted(record: dict, why: str) -> None:
    assert _read(record) == (None, {why: 1})


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"conversations": "hi"}, "`conversations` must be a list, found str"),
        ({"conversations": {"from": []}}, "`conversations` must be a list, found dict"),
        ({"conversations": ["hi"]}, "message 1 of `conversations` must be an object, found str"),
        ({"conversations": [_said("human", 3)]}, "message 1 of `conversations`: `value` must be .* found int"),
        ({"conversations": [_said("human", "q"), _said("wizard", "a")]}, "message 2 .* `from` 'wizard', expected"),
        ({"conversations": [_said(3, "q")]}, "message 1 of `conversations` has no `role`"),  # type: ignore[arg-type]
        ({"messages": [_wrote("user", [])]}, "message 1 of `messages`: `content` must be .* found an empty list"),
        ({"conversations": [], "system": 3}, "`system` must be a string, found int"),
        ({"instruction": 3, "output": "a"}, "`instruction` must be a string, found int"),
        ({"instruction": "q", "input": ["x"], "output": "a"}, "`input` must be a string, found list"),
        ({"instruction": "q", "output": {"a": 1}}, "`output` must be a string, found dict"),
        ({"prompt": 3, "completion": "a"}, "`prompt` must be a string or a list of messages, found int"),
        ({"prompt": "q", "completion": 3}, "`completion` must be a string or a list of messages, found int"),
        ({"prompt": "q", "response": ["a"]}, "message 1 of `response` must be an object, found str"),
        ({"question": ["q"], "answer": "a"}, "`question` must be a string, found list"),
    ],
)
def test_wrong_types_name_the_field(record: dict, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        _read(record)


def test_worked_answers() -> None:
    answer = "She sold 48/2 = <<48/2=24>>24 clips.\nIn all <<48+24=72>>72.\n#### 72"
    assert worked_answer(answer) == (
        Part("text", "She sold 48/2 = "),
        Part("calculator", "48/2"),
        Part("output", "24"),
        Part("text", "24 clips.\nIn all "),
        Part("calculator", "48+24"),
        Part("output", "72"),
        Part("text", "72.\n#### 72"),
    )
    assert _read({"question": "q", "answer": "<<1+1=2>>2"})[0] == (
        user("q"),
        assistant(Part("calculator", "1+1"), Part("output", "2"), "2"),
    )


def test_a_mark_the_calculator_refuses_is_left_out() -> None:
    assert worked_answer("so <<3+4=8>>8") == (Part("text", "so 8"),)
    assert worked_answer("<<10/3=3.33>>3.33")[:2] == (Part("calculator", "10/3"), Part("output", "3.33"))
    assert worked_answer("<<1,000*2=2,000>>2,000")[1] == Part("output", "2,000")
    assert worked_answer("<<2*3=six>>six") == (Part("text", "six"),)
    assert worked_answer("half is <<50%*8=4>>4") == (Part("text", "half is 4"),)
    assert worked_answer("a << b = c") == (Part("text", "a << b = c"),)
    assert worked_answer("") == (Part("text", ""),)
