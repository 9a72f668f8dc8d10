"""Sections of the report that show what the model learned, and from what: answers, tasks, sample chats, data."""

import math
from itertools import groupby
from typing import Any

from app.charts import spread
from app.figures import percent, plain
from app.markup import bar, definitions, esc, flatten, message, missing, parts_of, shorten, table, turns
from app.run_record import RunRecord, number, step_of

ANSWERS_SHOWN = 8  # replies to one fixed prompt


def answers(record: RunRecord) -> str:
    """A card for each fixed prompt: its replies in the order of training."""
    by_prompt: dict[str, list[tuple[str, int, Any]]] = {}
    for stage in record.trained:
        for event in stage.samples:
            prompt = str(event.get("prompt", ""))
            by_prompt.setdefault(prompt, []).append((stage.name, step_of(event), event.get("reply")))
    if not by_prompt:
        return missing("No stage has left answers to fixed prompts (`run.sample_count` sets how often they are asked).")
    cards = []
    for prompt, replies in by_prompt.items():
        runs = _runs(replies)
        shown = spread(runs, ANSWERS_SHOWN)
        rows = [
            [f'<span class="key {stage}"></span>{stage} {steps}', f'<div class="said">{message(reply, 400)}</div>']
            for stage, steps, reply in shown
        ]
        left = (
            f'<p class="quiet small">{len(runs) - len(shown)} more are in events/.</p>'
            if len(shown) < len(runs)
            else ""
        )
        head = f'<div class="prompt said">{esc(shorten(prompt, 400))}</div>'
        cards.append(f'<article class="card">{head}{table(["update", "reply"], rows, name="answers")}{left}</article>')
    intro = "The same prompts, put to the model at intervals. In pretrain it only goes on with the text."
    return f'<p class="quiet">{intro}</p><div class="cards two">{"".join(cards)}</div>'


def _runs(replies: list[tuple[str, int, Any]]) -> list[tuple[str, str, Any]]:
    """(stage, steps, reply): equal replies that follow each other in a stage become one, "300" or "300–900"."""
    runs: list[tuple[str, str, Any]] = []
    for (stage, _), same in groupby(replies, key=lambda item: (item[0], repr(item[2]))):
        first, *rest = same
        steps = f"{first[1]:,}–{rest[-1][1]:,}" if rest else f"{first[1]:,}"
        runs.append((stage, steps, first[2]))
    return runs


def judged_tasks(record: RunRecord) -> list[tuple[str, dict[str, Any], str]]:
    """(task, its figures, verdict): pass, short, no floor, or not measured."""
    tasks = (record.evaluate or {}).get("tasks")
    judged = []
    for name, figures in tasks.items() if isinstance(tasks, dict) else ():
        figures = figures if isinstance(figures, dict) else {"share": figures}
        share, floor = number(figures.get("share")), number(figures.get("floor"))
        if share is None:
            verdict = "not measured"
        elif floor is None:
            verdict = "no floor"
        else:
            verdict = "pass" if share >= floor - 1e-9 else "short"
        judged.append((str(name), figures, verdict))
    return judged


def tasks(record: RunRecord) -> str:
    judged = judged_tasks(record)
    if not judged:
        reason = (record.evaluate or {}).get("skipped") or (record.evaluate or {}).get("reason")
        text = f"Evaluation was skipped: {reason}" if reason else "There is no metrics/evaluate.json with tasks in it."
        return missing(shorten(text, 300)) + _bits(record)
    rows = []
    for name, figures, verdict in judged:
        share, floor, n = (number(figures.get(key)) for key in ("share", "floor", "n"))
        temperature = number(figures.get("temperature"))
        tone = {"pass": "good", "short": "bad"}.get(verdict, "none")
        words = {"pass": "✓ pass", "short": f"✗ short by {100 * ((floor or 0) - (share or 0)):.2g} points"}
        rows.append(
            [
                f"<code>{esc(name)}</code>",
                bar(share, floor, tone),
                esc(percent(share)),
                esc(percent(floor)),
                esc("n/a" if n is None else f"{n:,.0f}"),
                esc("n/a" if temperature is None else "greedy" if temperature == 0 else f"{temperature:g}"),
                f'<span class="verdict {tone}">{esc(words.get(verdict, verdict))}</span>',
            ]
        )
    intro = "Share of held-out prompts answered rightly. The upright line in a bar is the floor."
    head = ["task", "", "share", "floor", "n", "temperature", "result"]
    return f'<p class="quiet">{intro}</p>{table(head, rows, numeric=(2, 3, 4, 5), name="tasks")}{_bits(record)}'


def _bits(record: RunRecord) -> str:
    """Every figure that evaluation gave for held-out text."""
    measured = (record.evaluate or {}).get("bits_per_byte")
    if measured is None:
        return ""
    rows = flatten(measured if isinstance(measured, dict) else {"bits_per_byte": measured})
    rows = [(key, f"{float(text):.4g}" if "." in text and _is_float(text) else text) for key, text in rows]
    return f"<h3>Held-out text</h3>{definitions(rows)}"


def _is_float(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def chats(record: RunRecord) -> str:
    """A card for each task: one right and one wrong answer, the others folded away."""
    cards = []
    for name, figures, _ in judged_tasks(record):
        samples = figures.get("samples")
        samples = [sample for sample in samples if isinstance(sample, dict)] if isinstance(samples, list) else []
        shown = [s for want in (True, False) for s in [s for s in samples if bool(s.get("correct")) is want][:1]]
        rest = [sample for sample in samples if all(sample is not s for s in shown)]
        if not shown:
            continue
        more = f"<details><summary>{len(rest)} more</summary>{''.join(map(_chat, rest))}</details>" if rest else ""
        head = f"<header><code>{esc(name)}</code><span>{esc(percent(number(figures.get('share'))))}</span></header>"
        cards.append(f'<article class="card">{head}{"".join(map(_chat, shown))}{more}</article>')
    if not cards:
        return missing("There are no sample chats: metrics/evaluate.json holds none.")
    intro = "Held-out prompts: one right and, where there is one, one wrong answer to each task."
    return f'<p class="quiet">{intro}</p><div class="cards chats">{"".join(cards)}</div>'


def _chat(sample: dict[str, Any]) -> str:
    right = bool(sample.get("correct"))
    bubbles = [
        f'<div class="bubble said {"user" if role == "user" else "reply"}">{message(content)}</div>'
        for role, content in turns(sample.get("prompt"))
    ]
    bubbles.append(f'<div class="bubble said reply">{message(sample.get("reply"))}</div>')
    answer = "".join(text for _, text in parts_of(sample.get("answer")))
    expected = f" · expected: {esc(shorten(answer, 200))}" if answer and not right else ""
    verdict = f'<span class="verdict {"good" if right else "bad"}">{"✓ right" if right else "✗ wrong"}</span>'
    return f'<div class="chat">{"".join(bubbles)}<div class="expected">{verdict}{expected}</div></div>'


def data(record: RunRecord) -> str:
    """Each stage's sources with their shares, and what sharding made of them."""
    if not record.shards:
        return missing("There are no shard manifests (shards/<stage>.json), so the sources are not known.")
    parts = []
    for stage, manifest in record.shards.items():
        parts.append(f'<h3><span class="key {stage}"></span>{esc(stage)}</h3>')
        sources = _sources(manifest)
        if sources:
            parts.append(_source_table(sources))
        if splits := _splits(manifest):
            parts.append(f'<p class="quiet small">{esc(splits)}</p>')
        if not sources and not splits:
            parts.append(missing("The manifest holds no counts that this page knows."))
    return "".join(parts)


def _sources(manifest: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(name, its figures) of each source, from a list of records or a dict by name."""
    found = manifest.get("sources")
    if isinstance(found, dict):
        found = [{"source": name, **figures} for name, figures in found.items() if isinstance(figures, dict)]
    records = [record for record in found if isinstance(record, dict)] if isinstance(found, list) else []
    return [(str(record.get("source", record.get("name", "unnamed"))), record) for record in records]


def _splits(manifest: dict[str, Any]) -> str:
    """The splits' counts in one line: "train: 12,000 rows, 3.1 M tokens"."""
    words = []
    splits = manifest.get("splits")
    for name, figures in splits.items() if isinstance(splits, dict) else ():
        counts = {key: number(value) for key, value in figures.items()} if isinstance(figures, dict) else {}
        told = [f"{plain(count)} {key.replace('_', ' ')}" for key, count in counts.items() if count]
        words.append(f"{name}: {', '.join(told)}" if told else "")
    held = manifest.get("validation")
    if isinstance(held, str) and held != "held out":
        words.append(f"validation text {held}")
    return shorten("; ".join(filter(None, words)), 600)


def _source_table(sources: list[tuple[str, dict[str, Any]]]) -> str:
    """Shares are of the tokens, or of whatever count the sources have."""
    figures = [{key: n for key, value in record.items() if (n := number(value)) is not None} for _, record in sources]
    keys = list(dict.fromkeys(key for counts in figures for key in counts))
    measure = next((key for key in ("tokens", "bytes", "documents", "rows") if key in keys), None)
    total = sum(counts.get(measure, 0) for counts in figures) if measure else 0
    rows = []
    for (name, record), counts in zip(sources, figures, strict=True):
        share = counts.get(measure, 0) / total if total > 0 else None
        skipped = record.get("skipped")
        left_out = ", ".join(f"{n} {why}" for why, n in skipped.items()) if isinstance(skipped, dict) else ""
        note = f'<div class="quiet small">left out: {esc(shorten(left_out, 200))}</div>' if left_out else ""
        cells = [plain(counts.get(key, 0.0)) for key in keys]
        rows.append([esc(shorten(name, 120)) + note, bar(share, None, ""), esc(percent(share)), *map(esc, cells)])
    head = ["source", "", f"share of {measure}" if measure else "share", *(key.replace("_", " ") for key in keys)]
    return table(head, rows, numeric=range(2, 3 + len(keys)), name="sources")
