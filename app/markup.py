"""Text that nobody vouches for (model output, file names, settings) as HTML that shows it and does nothing else."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

# Calculator calls within text: special tokens spelled out, or `[347 + 589 = 936]` as evaluation writes them.
_CALL = re.compile(
    r"<\|calculator_start\|>(?P<a>.*?)<\|calculator_end\|>|<\|output_start\|>(?P<b>.*?)<\|output_end\|>"
    r"|\[(?P<c>[\d+\-*/(). ]+) = (?P<d>-?[\d.]+|error)\] ?",
    re.DOTALL,
)


def esc(value: Any) -> str:
    """Escaped text; control characters, marks that turn the direction of text and half characters become visible."""
    return escape("".join(_visible(c) for c in str(value)))


def _visible(character: str) -> str:
    code = ord(character)
    if character in "\n\t" or 0x20 <= code < 0x7F:
        return character
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures, ␀ to ␟
    if unicodedata.bidirectional(character) in _TURNING or unicodedata.category(character) in ("Cc", "Cs"):
        return f"[U+{code:04X}]"
    return character


_TURNING = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})


def shorten(text: str, limit: int) -> str:
    """The first `limit` characters, saying how many are left out."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def parts_of(content: Any) -> list[tuple[str, str]]:
    """(kind, text) of a message in any shape that files hold it in: text, a list of parts, or a message."""
    if isinstance(content, dict):
        inner = content.get("content", content.get("parts"))
        if inner is not None:
            return parts_of(inner)
        return [(str(content.get("type", content.get("kind", "text"))), str(content.get("text", "")))]
    if isinstance(content, (list, tuple)):
        return [part for item in content for part in parts_of(item)]
    if content is None:
        return []
    parts, done = [], 0
    text = str(content)
    for match in _CALL.finditer(text):
        parts.append(("text", text[done : match.start()]))
        parts += [("calculator", call) for call in (match["a"], match["c"]) if call is not None]
        parts += [("output", output) for output in (match["b"], match["d"]) if output is not None]
        done = match.end()
    return [part for part in (*parts, ("text", text[done:])) if part[1]]


def message(content: Any, limit: int = 700) -> str:
    """A message as HTML, calculator calls shown as such. At most about `limit` characters."""
    out = []
    for kind, text in parts_of(content):
        if limit <= 0:
            out.append("…")
            break
        text, limit = shorten(text, limit), limit - len(text)
        if kind == "calculator":
            out.append(f'<span class="calc"><span class="calc-name">calculator</span> {esc(text)}</span>')
        elif kind == "output":
            out.append(f'<span class="calc out">= {esc(text)}</span> ')
        else:
            out.append(esc(text))
    return "".join(out) or '<span class="quiet">(nothing)</span>'


def turns(content: Any) -> list[tuple[str, Any]]:
    """(role, content) of a prompt: one user turn where it is plain text, else the messages of a conversation."""
    if isinstance(content, (list, tuple)) and content and all(isinstance(m, dict) and "role" in m for m in content):
        return [(str(m["role"]), m) for m in content]
    return [("user", content)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = (), name: str = "") -> str:
    """A table of cells that are HTML already; columns in `numeric` align right. `name`: a class for its style."""
    right = set(numeric)

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f'<{tag}{" class=num" if i in right else ""} data-label="{esc(head[i])}">{cell}</{tag}>'
            for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    heading = "".join(f"<th{' class=num' if i in right else ''}>{esc(h)}</th>" for i, h in enumerate(head))
    rows_and_head = f"<thead><tr>{heading}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="{name}">{rows_and_head}</table></div>'


def flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """(dotted key, text) of nested settings, in their own order."""
    if isinstance(value, (list, tuple)):
        if not any(isinstance(item, (dict, list)) for item in value):
            return [(prefix, ", ".join(map(_word, value)))]
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return [row for key, inner in value.items() for row in flatten(inner, f"{prefix}.{key}".removeprefix("."))]
    return [(prefix, _word(value))]


def _word(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "n/a", True: "yes", False: "no"}[value]
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)


def definitions(rows: Iterable[tuple[str, str]]) -> str:
    """Key and value pairs as a definition list."""
    return (
        '<dl class="facts">'
        + "".join(f"<div><dt>{esc(key)}</dt><dd>{esc(shorten(value, 300))}</dd></div>" for key, value in rows)
        + "</dl>"
    )


def bar(share: float | None, floor: float | None, tone: str) -> str:
    def width(value: float) -> str:
        return f"{100 * min(max(value, 0), 1):.1f}%"

    fill = f'<i class="{tone}" style="width:{width(share)}"></i>' if share is not None else ""
    line = f'<em style="left:calc({width(floor)} - 1px)"></em>' if floor is not None else ""
    return f'<div class="bar">{fill}{line}</div>'


def missing(text: str) -> str:
    """What a section says in place of its content."""
    return f'<p class="missing">{esc(text)}</p>'
