"""One record of a file to a document: its text, or the conversation in it.

A record is read as the first that it fits of `data.chat_shapes.SHAPES`, and else as {"text"}.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from data.chat_shapes import SHAPES, conversation, find
from data.conversation import Conversation
from data.text import clean_text, shortened


def parse(record: Any, skipped: Counter[str]) -> str | Conversation | None:
    """What a record holds; None if it is skipped, which `skipped` counts by reason.

    Raises ValueError, with the reason, for a record of no known shape.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"a record must be an object, found {type(record).__name__}; {_expected()}")
    if shape := find(record):
        return conversation(shape.read(record), skipped)
    if "text" in record:
        return _text(record["text"], skipped)
    if any(record.keys() >= set(shape.keys) for shape in SHAPES):  # the columns are there, with null in them
        skipped["empty"] += 1
        return None
    held = ", ".join(f"`{key}`" for key, value in record.items() if value is not None)
    raise ValueError(f"unknown shape: found {shortened(held, 120) or 'no key with a value'}; {_expected()}")


def _text(text: Any, skipped: Counter[str]) -> str | None:
    if text is not None and not isinstance(text, str):
        raise ValueError(f"`text` must be a string, found {type(text).__name__}")
    if not text or text.isspace():
        skipped["empty"] += 1
        return None
    return clean_text(text)


def _expected() -> str:
    return f'expected {{"text"}}, {", ".join(str(shape) for shape in SHAPES[:-1])} or {SHAPES[-1]}'
