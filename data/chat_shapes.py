"""The shapes in which chat data comes, one reader for each: a record to the turns of a conversation.

`SHAPES` is the list of them. A record that fits two is read as the first: `tatsu-lab/alpaca` has a `text` with the
whole prompt beside its columns, `ultrachat_200k` a `prompt` beside its `messages`. Columns that no shape names are
ignored, and one that holds null counts as absent, since columnar files have every column in every record.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data.calculator import evaluate
from data.conversation import Conversation, Message, Part
from data.text import clean_text

Record = Mapping[str, Any]
Turn = tuple[str, tuple[Part, ...]]  # a role of _ROLES' values, and what is said

# What the sets call the speakers. A turn of "tool" makes the conversation one that is skipped.
_ROLES = {
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "model", "bot"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "tool_call", "tool_response", "assistant_tool_call", "observation", "ipython"), "tool"),
    **dict.fromkeys(("function", "function_call", "function_response"), "tool"),
}

_GSM8K_CALL = re.compile(r"<<([^<>=]*)=([^<>]*)>>")


@dataclass(frozen=True)
class Shape:
    """A record has this shape when none of `keys` is missing or null in it; `read` then gives its turns.

    `read` raises ValueError, with the field at fault, for a record that has the keys and something else in them.
    """

    keys: tuple[str, ...]
    read: Callable[[Record], Iterator[Turn]]

    def fits(self, record: Record) -> bool:
        for key in self.keys:  # noqa: SIM110 (asked six times of every record: a generator takes three times as long)
            if record.get(key) is None:
                return False
        return True

    def __str__(self) -> str:
        return "{" + ", ".join(f'"{key}"' for key in self.keys) + "}"


def find(record: Record) -> Shape | None:
    """The first of SHAPES that a record fits; None when it is no chat."""
    return next((shape for shape in SHAPES if shape.fits(record)), None)


def conversation(turns: Iterator[Turn], skipped: Counter[str]) -> Conversation | None:
    """Turns as a conversation that starts with the user; None if it is skipped, which `skipped` counts by reason.

    What the system says goes before the first question, and neighbours of one role become one turn.
    """
    joined: list[Turn] = []
    system = ""
    for role, parts in turns:
        if role == "tool":
            skipped["tool calls"] += 1
            return None
        if role == "system":
            text = "".join(part.text for part in parts)
            system += f"{text}\n\n" if text.strip() else ""
        elif joined and joined[-1][0] == role:
            joined[-1] = (role, _joined(joined[-1][1], parts))
        else:
            joined.append((role, parts))
    if joined and joined[0][0] == "assistant":  # a greeting nobody asked for: there is no prompt for it
        joined = joined[1:]
    if not any(role == "assistant" and any(part.text.strip() for part in parts) for role, parts in joined):
        skipped["no answer"] += 1
        return None
    if system:
        joined[0] = ("user", (Part("text", system + joined[0][1][0].text),))
    return tuple(Message(role, parts) for role, parts in joined)  # type: ignore[arg-type]


def _joined(first: tuple[Part, ...], second: tuple[Part, ...]) -> tuple[Part, ...]:
    """Two turns of one role as one, with an empty line between their texts."""
    if first[-1].kind == second[0].kind == "text":
        return (*first[:-1], Part("text", f"{first[-1].text}\n\n{second[0].text}"), *second[1:])
    return (*first, *second)


def _messages(record: Record) -> Iterator[Turn]:
    """{"messages": [{"role", "content"}]}: OpenAI's, and what `data.conversation` says of parts."""
    return _turns(record["messages"], "messages")


def _sharegpt(record: Record) -> Iterator[Turn]:
    """{"conversations": [{"from": "human" | "gpt" | "system", "value"}]}, and a `system` beside it in some sets."""
    yield from _system(record)
    yield from _turns(record["conversations"], "conversations")


def _conversation(record: Record) -> Iterator[Turn]:
    """{"conversation": [{"role", "content"}]}: LMSYS's and WildChat's."""
    yield from _turns(record["conversation"], "conversation")


def _instructed(given: str, answer: str) -> Callable[[Record], Iterator[Turn]]:
    """{"instruction", `given`, `answer`}: what is given, if there is any, after the instruction and an empty line."""

    def read(record: Record) -> Iterator[Turn]:
        yield from _system(record)
        asked = [_string(record, "instruction")]
        if record.get(given) is not None:
            asked.append(_string(record, given))
        yield "user", (Part("text", "\n\n".join(text for text in asked if text.strip())),)
        yield "assistant", (Part("text", _string(record, answer)),)

    return read


def _prompted(answer: str) -> Callable[[Record], Iterator[Turn]]:
    """{"prompt", `answer`}, each a string, or a list of messages: TRL's conversational form.

    The loss takes in the assistant's turns of such a prompt too, as in any conversation.
    """

    def read(record: Record) -> Iterator[Turn]:
        for key, role in (("prompt", "user"), (answer, "assistant")):
            if isinstance(record[key], str):
                yield role, (Part("text", _string(record, key)),)
            else:
                yield from _turns(record[key], key, "a string or a list of messages")

    return read


def _question(record: Record) -> Iterator[Turn]:
    """{"question", "answer"}, with GSM8K's `<<48/2=24>>` marks, which become calculator calls."""
    yield "user", (Part("text", _string(record, "question")),)
    yield "assistant", worked_answer(_string(record, "answer"))


SHAPES = (
    Shape(("messages",), _messages),
    Shape(("conversations",), _sharegpt),
    Shape(("conversation",), _conversation),
    Shape(("instruction", "output"), _instructed("input", "output")),  # Alpaca
    Shape(("instruction", "response"), _instructed("context", "response")),  # Dolly
    Shape(("prompt", "completion"), _prompted("completion")),
    Shape(("prompt", "response"), _prompted("response")),
    Shape(("question", "answer"), _question),
)


def worked_answer(answer: str) -> tuple[Part, ...]:
    """An answer of GSM8K as parts: `48/2 = <<48/2=24>>24` is text, the call 48/2, the output 24, and text.

    A mark that the calculator would refuse, or answer in another way than by rounding, is left out: what it says stands
    in the text after it anyway.
    """
    parts: list[Part] = []
    text, position = "", 0
    for match in _GSM8K_CALL.finditer(answer):
        text += answer[position : match.start()]
        position = match.end()
        expression, output = match[1].strip(), match[2].strip()
        if _agree(evaluate(expression), evaluate(output)):
            parts += [Part("text", text)] if text else []
            parts += [Part("calculator", expression), Part("output", output)]
            text = ""
    text += answer[position:]
    return (*parts, Part("text", text)) if text or not parts else tuple(parts)


def _agree(calculated: str | None, written: str | None) -> bool:
    """Whether two numbers, as the calculator writes them, are the same but for rounding; None is no number."""
    if calculated is None or written is None:
        return False
    return calculated == written or abs(float(calculated) - float(written)) <= 0.01 * max(1.0, abs(float(calculated)))


def _string(record: Record, key: str) -> str:
    if not isinstance(record[key], str):
        raise ValueError(f"`{key}` must be a string, found {type(record[key]).__name__}")
    return clean_text(record[key])


def _system(record: Record) -> Iterator[Turn]:
    if record.get("system") is not None and (text := _string(record, "system")).strip():
        yield "system", (Part("text", text),)


def _turns(messages: Any, field: str, expected: str = "a list") -> Iterator[Turn]:
    """A list of {"role", "content"} or of {"from", "value"}: sets mix the two words for one thing."""
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise ValueError(f"`{field}` must be {expected}, found {type(messages).__name__}")
    for position, message in enumerate(messages, 1):
        place = f"message {position} of `{field}`"
        if not isinstance(message, Mapping):
            raise ValueError(f"{place} must be an object, found {type(message).__name__}")
        said_by, said = ("from", "value") if message.get("from") is not None else ("role", "content")
        name = message.get(said_by)
        if not isinstance(name, str):
            raise ValueError(f"{place} has no `role` (nor `from`)")
        role = _ROLES.get(name.lower())
        if message.get("tool_calls") or message.get("function_call"):
            role = "tool"
        if role is None:
            raise ValueError(f"{place} has `{said_by}` {name!r}, expected one of {', '.join(_ROLES)}")
        yield role, () if role == "tool" else _parts(message.get(said), role, f"{place}: `{said}`")


def _parts(content: Any, role: str, place: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Part("text", clean_text(content)),)
    if isinstance(content, Sequence) and content:
        parts = tuple(_part(item, role, place) for item in content)
        # A user's message is one text part, by what data.conversation says.
        return parts if role == "assistant" else (Part("text", "".join(part.text for part in parts)),)
    found = "an empty list" if isinstance(content, Sequence) else type(content).__name__
    raise ValueError(f"{place} must be a string or a list of parts, found {found}")


def _part(item: Any, role: str, place: str) -> Part:
    if isinstance(item, Mapping) and isinstance(item.get("text"), str):
        kind = item.get("type", "text")
        if kind == "text" or (role == "assistant" and kind in ("calculator", "output")):
            return Part(kind, clean_text(item["text"]))
    raise ValueError(
        f"{place} has a part that is not "
        '{"type": "text", "text": …} (or "calculator" and "output" in an assistant\'s message)'
    )
