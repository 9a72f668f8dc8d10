"""One record of a file to a document: its text, or the conversation in it.

Shapes: {"text"}, {"messages": [{"role", "content"}]}, and {"question", "answer"} with GSM8K's `<<48/2=24>>` marks,
which become calculator calls. Other columns are ignored.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from data.calculator import evaluate
from data.conversation import Conversation, Message, Part, user
from data.text import clean_text

SHAPES = '{"text"}, {"messages": [{"role", "content"}]} or {"question", "answer"}'

_TOOL_ROLES = ("tool", "function", "assistant_tool_call")
_GSM8K_CALL = re.compile(r"<<([^<>=]*)=([^<>]*)>>")


def parse(record: Any, skipped: Counter[str]) -> str | Conversation | None:
    """What a record holds; None if it is skipped, which `skipped` counts by reason.

    Raises ValueError, with the reason, for a record of no known shape.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"a record is an object with {SHAPES}")
    if record.get("messages") is not None:
        return _conversation(record["messages"], skipped)
    if record.get("question") is not None and record.get("answer") is not None:
        question, answer = record["question"], record["answer"]
        if not isinstance(question, str) or not isinstance(answer, str):
            raise ValueError("`question` and `answer` must be strings")
        return user(clean_text(question)), Message("assistant", worked_answer(clean_text(answer)))
    if "text" in record:
        text = record["text"]
        if text is not None and not isinstance(text, str):
            raise ValueError(f"`text` must be a string, found {type(text).__name__}")
        if not text or text.isspace():
            skipped["empty"] += 1
            return None
        return clean_text(text)
    raise ValueError(f"unknown shape, expected {SHAPES}")


def worked_answer(answer: str) -> tuple[Part, ...]:
    """An answer of GSM8K as parts: `48/2 = <<48/2=24>>24` is text, the call 48/2, the output 24, and text.

    A mark that the calculator would refuse is left out: its answer stands in the text after it anyway.
    """
    parts: list[Part] = []
    text, position = "", 0
    for match in _GSM8K_CALL.finditer(answer):
        text += answer[position : match.start()]
        position = match.end()
        expression, output = match[1].strip(), match[2].strip()
        if output and evaluate(expression) is not None:
            parts += [Part("text", text)] if text else []
            parts += [Part("calculator", expression), Part("output", output)]
            text = ""
    text += answer[position:]
    return (*parts, Part("text", text)) if text or not parts else tuple(parts)


def _conversation(messages: Any, skipped: Counter[str]) -> Conversation | None:
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise ValueError(f"`messages` must be a list, found {type(messages).__name__}")
    turns: list[tuple[str, tuple[Part, ...]]] = []
    system = ""
    for position, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(f"message {position} has no `role`")
        role = message["role"]
        if role in _TOOL_ROLES or message.get("tool_calls"):
            skipped["tool calls"] += 1
            return None
        if role not in ("system", "user", "assistant"):
            raise ValueError(f"message {position} has role {role!r}, expected user, assistant or system")
        parts = _parts(message.get("content"), role, position)
        if role == "system":
            system += "".join(part.text for part in parts) + "\n\n"
        elif turns and turns[-1][0] == role:
            turns[-1] = (role, _joined(turns[-1][1], parts))
        else:
            turns.append((role, parts))
    if turns and turns[0][0] == "assistant":  # a greeting nobody asked for: there is no prompt for it
        turns = turns[1:]
    if len(turns) < 2:
        skipped["no answer"] += 1
        return None
    if system:
        turns[0] = ("user", (Part("text", system + turns[0][1][0].text),))
    return tuple(Message(role, parts) for role, parts in turns)  # type: ignore[arg-type]


def _parts(content: Any, role: str, position: int) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Part("text", clean_text(content)),)
    if isinstance(content, Sequence) and content:
        parts = tuple(_part(item, role, position) for item in content)
        # A user's message is one text part, by what data.conversation says.
        return parts if role == "assistant" else (Part("text", "".join(part.text for part in parts)),)
    raise ValueError(f"message {position} has no `content`")


def _part(item: Any, role: str, position: int) -> Part:
    if isinstance(item, Mapping) and isinstance(item.get("text"), str):
        kind = item.get("type", "text")
        if kind == "text" or (role == "assistant" and kind in ("calculator", "output")):
            return Part(kind, clean_text(item["text"]))
    raise ValueError(
        f"message {position} has a part that is not "
        '{"type": "text", "text": …} (or "calculator" and "output" in an assistant\'s message)'
    )


def _joined(first: tuple[Part, ...], second: tuple[Part, ...]) -> tuple[Part, ...]:
    """Two turns of one role as one, with an empty line between their texts."""
    if first[-1].kind == second[0].kind == "text":
        return (*first[:-1], Part("text", f"{first[-1].text}\n\n{second[0].text}"), *second[1:])
    return (*first, *second)
