"""The report's look at the data: compression by source, lengths of documents, a few packed rows with their loss mask.

What it shows is in the run folder's peek.json, which stage report writes; like all of the page, it takes what it finds.
"""

from typing import Any

from app.figures import percent, plain
from app.markup import bar, esc, missing, shorten, table
from app.run_record import RunRecord, number

KINDS = ("document", "mark", "learned", "read", "padding")
ROW_SHOWN = 1200  # characters of a row


def peek(record: RunRecord) -> str:
    """Each mixture's sample of sources, its lengths and rows."""
    mixtures = (record.peek or {}).get("mixtures")
    if not isinstance(mixtures, dict) or not mixtures:
        why = (record.peek or {}).get("error")
        return missing(f"The data could not be looked at: {why}" if why else "There is no peek.json.")
    absent = record.peek.get("gpt2") if record.peek else None
    parts = []
    for name, figures in mixtures.items():
        if not isinstance(figures, dict):
            continue
        parts.append(f'<h3><span class="key {esc(name)}"></span>{esc(name)}</h3>')
        parts += [_sources(_objects(figures.get("sources"))), _lengths(figures.get("lengths"))]
        parts += [_rows(figures.get("rows"))]
    note = f'<p class="quiet small">{esc(shorten(absent, 300))}.</p>' if isinstance(absent, str) else ""
    return "".join(parts) + note


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _sources(sources: list[dict[str, Any]]) -> str:
    if not sources:
        return missing("No source was looked at.")
    rows = []
    for source in sources:
        ratios = [number(source.get(key)) for key in ("bytes_per_token", "gpt2_bytes_per_token")]
        seen = "all" if source.get("whole") is True else "the first"
        rows.append(
            [
                esc(shorten(str(source.get("source", "unnamed")), 120)),
                bar(number(source.get("share")), None, ""),
                esc(percent(number(source.get("share")))),
                esc(f"{seen} {plain(number(source.get('documents')) or 0)}"),
                *(esc("n/a" if ratio is None else f"{ratio:.2f}") for ratio in ratios),
            ]
        )
    head = ["source", "", "share of tokens", "documents looked at", "bytes a token", "of GPT-2"]
    return table(head, rows, numeric=range(2, 6), name="sources")


def _lengths(lengths: Any) -> str:
    """Documents by their number of tokens, a line for each doubling."""
    counted = [
        values
        for entry in (lengths if isinstance(lengths, list) else [])
        if isinstance(entry, list) and len(entry) == 3 and None not in (values := [number(item) for item in entry])
    ]
    while counted and not counted[0][2]:
        counted.pop(0)
    if not counted:
        return ""
    most = max(count for *_, count in counted) or 1
    rows = [
        [esc(f"{plain(low)} – {plain(high)}"), bar(count / most, None, ""), esc(plain(count))]
        for low, high, count in counted
    ]
    return table(["tokens a document", "", "documents"], rows, numeric=(2,), name="sources")


def _rows(rows: Any) -> str:
    shown = []
    for row in rows if isinstance(rows, list) else []:
        parts, left = [], ROW_SHOWN
        for segment in row if isinstance(row, list) else []:
            if not (isinstance(segment, list) and len(segment) == 2 and segment[0] in KINDS):
                continue
            kind, text = segment[0], str(segment[1])
            if left <= 0:
                parts.append("…")
                break
            text = {"document": "┃", "padding": f"[{text} of padding]"}.get(kind, text)
            parts.append(f'<span class="{kind}">{esc(shorten(text, left))}</span>')
            left -= len(text)
        if parts:
            shown.append(f'<div class="row">{"".join(parts)}</div>')
    if not shown:
        return ""
    legend = (
        '<span class="document">┃</span> a document begins; <span class="learned">learned</span>, '
        '<span class="read">only read</span>, <span class="mark">marks</span>'
    )
    return (
        f'<details><summary>{len(shown)} packed rows</summary><div class="row">{legend}</div>{"".join(shown)}</details>'
    )
