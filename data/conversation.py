"""What a chat is, before it becomes tokens: messages made of parts.

An assistant's message may hold calculator calls: a `calculator` part with the expression, then an `output`
part with what the calculator answered. Files hold the same as JSON: `{"messages": [{"role", "content"}]}`,
where content is a string, or a list of `{"type": "text" | "calculator" | "output", "text": …}`.
"""

from dataclasses import dataclass
from typing import Literal

PartKind = Literal["text", "calculator", "output"]


@dataclass(frozen=True)
class Part:
    """A piece of a message. `output` parts are written by the engine's calculator, never by the model."""

    kind: PartKind
    text: str


@dataclass(frozen=True)
class Message:
    """One turn. The user's message is a single text part."""

    role: Literal["user", "assistant"]
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """What a reader sees: the text parts joined, calculator calls left out."""
        return "".join(part.text for part in self.parts if part.kind == "text")


Conversation = tuple[Message, ...]


def user(text: str) -> Message:
    """A user's turn."""
    return Message("user", (Part("text", text),))


def assistant(*parts: Part | str) -> Message:
    """An assistant's turn from parts; a plain string is a text part."""
    return Message("assistant", tuple(Part("text", part) if isinstance(part, str) else part for part in parts))


@dataclass(frozen=True)
class Document:
    """One unit of training data: plain text or a conversation, and the name of the source it came from."""

    content: str | Conversation
    source: str

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.content, str)
