"""Cleaning: which documents are left out of a corpus, what is removed from the rest, and how often.

All of it is off unless the profile asks for it, and all of it is counted: under the names in `DROPPED` for a document
that is left out, under those in `CHANGED` for one that stays. A conversation is judged by all its text and left out
as a whole. Cleaning depends on nothing but the document, apart from duplicates, which are told by `is_duplicate`.
"""

import re
import unicodedata
from collections import Counter
from dataclasses import replace
from functools import lru_cache

from data.config import Cleaning
from data.conversation import Conversation, Document, Message, Part

DROPPED = ("broken encoding", "mojibake", "not text", "empty", "too short", "too long", "duplicate")
CHANGED = ("control characters stripped", "mojibake kept")

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_LINE_BREAK = re.compile(r"\r\n|[\r\x0b\x0c]")
_BROKEN = re.compile(r"[\ufffd\ud800-\udfff]")

# 60 characters without a space are no word; base64 comes in lines of 64 (PEM) or 76 (MIME).
_BLOB = re.compile(r"[A-Za-z0-9+/]{60,}={0,2}")

# What the second byte of a UTF-8 pair becomes in Latin-1 or Windows-1252, less closing quotes, dashes, the ellipsis
# and the fixed space: those do follow a capital letter in good text ("SÃ…"), where the others don't.
_SECOND = r"[\x80-\x9f¡-ª¬-º¼-¿€‚ƒ„†‡ˆ‰Š‹ŒŽ•˜™š›œžŸ]"
# Pairs of Latin, Cyrillic and Arabic letters, the quotes and dashes of U+20xx, byte order mark, U+FFFD and emoji.
_MOJIBAKE = re.compile(rf"[ÂÃÐÑØÙ]{_SECOND}|Â\xa0|â€[\x80-\xbf‘-”–—…œ™¦¢˜š]|ï»¿|ï¿½|ðŸ")
# A page may quote an example or two: this many, and one in this many characters, are a document read wrongly.
_MOJIBAKE_LEAST, _MOJIBAKE_EVERY = 3, 1000


def clean(document: Document, options: Cleaning, counts: Counter[str]) -> Document | None:
    """`document` as it goes on, the same object if nothing changed; None if it is left out. `counts` says why.

    One reason counts for a document that is left out, the first. Encodings and shares are judged before controls are
    stripped, lengths after.
    """
    text = _whole(document.content)
    reason = _unreadable(text, options)
    stripped = document.content
    if reason is None and options.strip_controls:
        stripped = _stripped(document.content)
        if not _whole(stripped).strip():
            reason = "empty"
    length = len(_whole(stripped))
    if reason is None and options.min_characters is not None and length < options.min_characters:
        reason = "too short"
    if reason is None and options.max_characters is not None and length > options.max_characters:
        reason = "too long"
    if reason is not None:
        counts[reason] += 1
        return None
    if options.mojibake == "count" and is_mojibake(text):
        counts["mojibake kept"] += 1
    if stripped == document.content:
        return document
    counts["control characters stripped"] += 1
    return replace(document, content=stripped)


def is_duplicate(digest: bytes, seen: set[bytes], counts: Counter[str]) -> bool:
    """Whether content of this hash (16 bytes) was met before; `seen` remembers it.

    A million documents take about 100 MB: an object of 64 bytes and, as the table grows, 27 to 67 of the set for each.
    """
    if digest in seen:
        counts["duplicate"] += 1
        return True
    seen.add(digest)
    return False


def _unreadable(text: str, options: Cleaning) -> str | None:
    """The reason to leave out a text that nobody could read."""
    if options.max_broken_share is not None and broken_share(text) > options.max_broken_share:
        return "broken encoding"
    if options.min_text_share is not None and text_share(text) < options.min_text_share:
        return "not text"
    if options.mojibake == "drop" and is_mojibake(text):
        return "mojibake"
    return None


def broken_share(text: str) -> float:
    """Share of characters, from 0 to 1, that stand for bytes that could not be decoded."""
    return 0.0 if text.isascii() else len(_BROKEN.findall(text)) / len(text)


def text_share(text: str) -> float:
    """Share of characters, from 0 to 1, that people write: letters, marks, digits, spaces, punctuation; 1 for none.

    Runs of 60 and more of base64's characters are not among them, nor are symbols outside ASCII, emoji included.
    """
    foreign = sum(text.count(character) for character in set(text) if not _written(character))
    blobs = sum(match.end() - match.start() for match in _BLOB.finditer(text))
    return 1 - (foreign + blobs) / len(text) if text else 1.0


@lru_cache(maxsize=1 << 16)
def _written(character: str) -> bool:
    if character in "\n\t\r" or " " <= character <= "~":
        return True
    category = unicodedata.category(character)
    return category[0] in "LMNPZ" or category == "Cf"  # Cf: joiners and marks of direction, parts of words


def is_mojibake(text: str) -> bool:
    """Whether a text looks like UTF-8 that was read as Latin-1 or Windows-1252; when in doubt it does not."""
    if text.isascii():
        return False
    return len(_MOJIBAKE.findall(text)) >= max(_MOJIBAKE_LEAST, len(text) / _MOJIBAKE_EVERY)


def _whole(content: str | Conversation) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text for message in content for part in message.parts)


def _stripped(content: str | Conversation) -> str | Conversation:
    if isinstance(content, str):
        return _CONTROL.sub("", _LINE_BREAK.sub("\n", content))
    # Calls and outputs stay: what the calculator answers to a call must not change.
    return tuple(
        Message(m.role, tuple(Part(p.kind, _stripped(p.text)) if p.kind == "text" else p for p in m.parts))  # type: ignore[arg-type]
        for m in content
    )
