"""The report of a run: one HTML file that opens offline, with everything the run folder tells.

Same folder, same bytes: no clock, no random ids, since DVC hashes the page. A section whose data is missing or broken
says so in place of its content. The page holds no script, and its content security policy would let none run.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
from typing import Any

from app.charts import LOSS, THROUGHPUT, Panel, bands, in_tokens, smooth, svg
from app.figures import date, duration, percent, plain, si
from app.markup import definitions, esc, flatten, missing, shorten, table
from app.report_peek import peek
from app.report_results import answers, chats, data, judged_tasks, tasks
from app.run_record import RunRecord, StageRecord, first_number, number, read_run, step_of
from config.errors import UserError
from config.files import write_atomic

# A URL's user and password, and its query, which may hold a token: pages are shown to others.
_SECRET = re.compile(r"""(https?://)(?:[^\s/@'"]*@)?([^\s?'"]*)(\?[^\s'"]*)?""")

TEMPLATE = Path(__file__).with_name("report_template.html")


def write(run: Path, out: Path) -> None:
    """Write the report of the run folder `run` to `out`. UserError if `run` is no folder."""
    if not run.is_dir():
        raise UserError(f"{run} is not a folder; expected a run such as runs/tiny: run `dvc repro` first")
    record = read_run(run)
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=esc(f"{record.name} · Tandem report"), body="\n".join(_body(record))
    )
    write_atomic(out, page)


def _body(record: RunRecord) -> list[str]:
    """The page's sections in order: (anchor, heading, function that fills it)."""
    sections: list[tuple[str, str, Callable[[RunRecord], str]]] = [
        ("loss", "Loss", _loss),
        ("speed", "Throughput", _speed),
        ("learning", "What it answered while it learned", answers),
        ("tasks", "Tasks", tasks),
        ("chats", "Sample chats", chats),
        ("data", "Data", data),
        ("peek", "A look at the data", peek),
        ("profile", "Profile", _profile),
        ("machine", "Machine and versions", _machine),
        ("notes", "Notes on this run", _notes),
    ]
    links = "".join(f'<a href="#{anchor}">{esc(heading)}</a>' for anchor, heading, _ in sections)
    filled = [f'<section id="{a}"><h2>{esc(h)}</h2>\n{fill(record)}</section>' for a, h, fill in sections]
    return [_headline(record, f"<nav>{links}</nav>"), *filled, "<footer>Written by Tandem.</footer>"]


# --- headline ---------------------------------------------------------------------------------------------------------


def _headline(record: RunRecord, nav: str) -> str:
    stages = record.trained
    parameters = next((p for s in stages if (p := first_number((s.start, "parameters"))) is not None), None)
    tokens = [stage.tokens for stage in stages if stage.tokens is not None]
    seconds = [stage.seconds for stage in stages if stage.seconds is not None]
    where = next((text for stage in stages if (text := _machine_name(stage.start))), "machine not recorded")
    bits, bits_of = _final_bits(record)
    judged = [verdict for _, _, verdict in judged_tasks(record) if verdict in ("pass", "short")]
    ended = [end for stage in stages if (end := number(stage.end.get("time"))) is not None]
    tiles = [
        (f"{si(parameters)}" if parameters else "n/a", "parameters"),
        (f"{si(sum(tokens))}" if tokens else "n/a", "tokens trained on"),
        (duration(sum(seconds)) if seconds else "n/a", "training time"),
        (f"{bits:.3f}" if bits is not None else "n/a", f"bits per byte, {bits_of}"),
        (f"{judged.count('pass')} of {len(judged)}" if judged else "n/a", "tasks meet their floor"),
    ]
    boxes = "".join(f'<div class="tile"><b>{esc(value)}</b><span>{esc(name)}</span></div>' for value, name in tiles)
    when = f", finished {date(max(ended))}" if ended else ""
    trained = " → ".join(stage.name for stage in stages) or "no stage trained"
    remarks = _remarks(record)
    note = f'<div class="note"><ul>{"".join(f"<li>{r}</li>" for r in remarks)}</ul></div>' if remarks else ""
    return (
        f"<header><h1>Run <code>{esc(record.name)}</code></h1>"
        f'<p class="lead">{esc(trained)}, on {esc(where)}{esc(when)}.</p>'
        f'<div class="tiles">{boxes}</div>{note}{nav}</header>'
    )


def _final_bits(record: RunRecord) -> tuple[float | None, str]:
    """Bits per byte of the finished model, and of which text: as evaluated, else the last validation."""
    measured = (record.evaluate or {}).get("bits_per_byte")
    if (value := number(measured)) is not None or (value := first_number((measured, "bits_per_byte"))) is not None:
        return value, "held-out text"
    if isinstance(measured, dict):
        for name, inner in measured.items():
            if (value := first_number((inner, "bits_per_byte"))) is not None or (value := number(inner)) is not None:
                return value, f"held-out {name}"
    for stage in reversed(record.stages):
        if stage.bits_per_byte is not None:
            return stage.bits_per_byte, f"validation of {stage.name}"
    return None, "not measured"


def _machine_name(start: dict[str, Any]) -> str:
    """A few words for the machine from a start event: "NVIDIA H200 · 2 ranks", "AMD EPYC 9R14 · 2 cores"."""
    machine = start.get("machine") if isinstance(start.get("machine"), dict) else {}
    versions = start.get("versions") if isinstance(start.get("versions"), dict) else {}
    name, cores, ranks = start.get("device"), number(machine.get("cores")), number(start.get("ranks"))
    if not name:
        return ""
    words = [str(name)]
    if cores is not None and versions.get("cuda") in (None, "none"):  # a GPU's speed is not in the cores beside it
        words.append(f"{cores:.0f} cores")
    if ranks is not None and ranks > 1:
        words.append(f"{ranks:.0f} ranks")
    return shorten(" · ".join(words), 120)


# --- loss and throughput ----------------------------------------------------------------------------------------------


def _figure(stages: Sequence[StageRecord], panel: Panel, wide: tuple[int, int]) -> str:
    """A chart twice, for a desk and for a phone; CSS shows one. "" where there is nothing to draw."""
    desk = svg(stages, panel, *wide, readout=True)
    phone = svg(stages, panel, 372, 240, readout=False)
    if not desk:
        return ""
    return f'<figure class="chart"><div class="wide">{desk}</div><div class="narrow">{phone}</div></figure>'


def _loss(record: RunRecord) -> str:
    chart = _figure(record.trained, LOSS, (1040, 400))
    if not chart:
        return missing("No loss was recorded: no training stage has left events in events/.") + _stages(record)
    unit = "tokens seen" if in_tokens([stage for stage in record.trained if stage.last_step]) else "updates"
    own = len({round(band.width / band.extent, 12) for band in bands(record.trained, 0, 1)}) > 1
    caption = f"Faint: each log line. Strong: smoothed. Rings: validation. Across: {unit} in each stage"
    caption += ", each stage on its own scale." if own else "."
    if any(stage.resumes for stage in record.trained):
        caption += " Dashed: the run was resumed here."
    if any(stage.not_finite("loss") for stage in record.trained):
        caption += " ×: the loss was not a number."
    caption += " Stages differ in text and in which tokens count, so their losses do not compare."
    return f'{chart}<p class="quiet small">{esc(caption)}</p>{_stages(record)}'


def _stages(record: RunRecord) -> str:
    """The table of stages: one row each, those that were not run as well."""
    rows = []
    for stage in record.stages:
        losses = [value for _, value in smooth(stage.points("loss"))]
        wait = [
            d / s for e in stage.log if (d := number(e.get("data_ms"))) is not None and (s := number(e.get("step_ms")))
        ]
        planned = first_number((stage.start, "updates"))
        updates = f"{stage.last_step:,}"
        if planned and planned > stage.last_step:
            updates += f" of {planned:,.0f}"
        name = f'<span class="key {stage.name}"></span>{esc(stage.name)}'
        if not stage.found:
            rows.append([name, '<span class="quiet">no events</span>', *[""] * 7])
            continue
        mfu = _median(stage, "mfu")
        rows.append(
            [
                name,
                esc(updates),
                esc(si(stage.tokens) if stage.tokens is not None else "n/a"),
                esc(duration(stage.seconds) if stage.seconds is not None else "n/a"),
                esc(f"{losses[0]:.3g} → {losses[-1]:.3g}" if losses else "n/a"),
                esc(f"{stage.bits_per_byte:.3f}" if stage.bits_per_byte is not None else "n/a"),
                esc(_plain_or_na(_median(stage, "tok_s"))),
                esc(_plain_or_na(_median(stage, "tflops")) + (f" ({percent(mfu, 0)} MFU)" if mfu else "")),
                esc(percent(statistics.median(wait) if wait else None)),
            ]
        )
    head = ["stage", "updates", "tokens", "time", "loss", "validation bits/byte", "tok/s", "TFLOP/s", "data wait"]
    return table(head, rows, numeric=range(1, 9), name="stages")


def _speed(record: RunRecord) -> str:
    charts = [_figure(record.trained, panel, (507, 250)) for panel in THROUGHPUT]
    if not any(charts):
        return missing("No throughput was recorded: no training stage has left log lines with tok_s or tflops.")
    absent = [panel.title for panel, chart in zip(THROUGHPUT, charts, strict=True) if not chart]
    text = f"Not recorded: {', '.join(absent)}." if absent else ""
    mfus = [mfu for stage in record.trained if (mfu := _median(stage, "mfu"))]
    if not mfus:
        text += " MFU: n/a, since no log line gives one: the device's peak is not known."
    return f'<div class="pair">{"".join(charts)}</div><p class="quiet small">{esc(text.strip())}</p>'


def _median(stage: StageRecord, key: str) -> float | None:
    values = [value for _, value in stage.points(key)]
    return statistics.median(values) if values else None


def _plain_or_na(value: float | None) -> str:
    return "n/a" if value is None else plain(value)


def _profile(record: RunRecord) -> str:
    if record.profile is None:
        return missing("There is no profile.yaml.")
    profile = _SECRET.sub(lambda url: f"{url[1]}{url[2]}{'?…' if url[3] else ''}", record.profile)
    lines = len(profile.splitlines())
    return (
        f"<details><summary>profile.yaml, with inheritance and overrides applied ({lines} lines)</summary>"
        f"<pre>{esc(shorten(profile, 60_000))}</pre></details>"
    )


def _machine(record: RunRecord) -> str:
    """What the start events say; once where all stages agree."""
    keys = ("device", "attention", "precision", "compiled", "ranks", "machine", "versions")
    seen: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for stage in record.trained:
        facts: list[tuple[str, str]] = []
        for key in keys:
            if key in stage.start:
                inner = stage.start[key]
                facts += (
                    flatten(inner)
                    if key in ("machine", "versions") and isinstance(inner, dict)
                    else [(key, text) for _, text in flatten(inner, key)]
                )
        if facts:
            seen.setdefault(tuple(facts), []).append(stage.name)
    if not seen:
        return missing("No stage has left a start event, so the machine is not known.")
    several = len(seen) > 1
    return "".join(
        (f"<h3>{esc(', '.join(names))}</h3>" if several else "") + definitions(facts) for facts, names in seen.items()
    )


def _notes(record: RunRecord) -> str:
    remarks = _remarks(record)
    if not remarks:
        return "<p>Each stage ran from start to end in one go, under unchanged code.</p>"
    return f"<ul>{''.join(f'<li>{remark}</li>' for remark in remarks)}</ul>"


def _remarks(record: RunRecord) -> list[str]:
    """What a reader should know before trusting the figures, as HTML."""
    remarks = []
    for stage in record.stages:
        name = esc(stage.name)
        if not stage.found:
            remarks.append(f"{name} has left no events.")
            continue
        if stage.resumes:
            steps = ", ".join(f"{step_of(event):,}" for event in stage.resumes[:10])
            times = "once" if len(stage.resumes) == 1 else f"{len(stage.resumes)} times"
            remarks.append(f"{name} was resumed {times}, at update {esc(steps)}.")
        if any(event.get("code_changed") is True for event in stage.resumes):
            remarks.append(f"<strong>{name} went on under changed code</strong>: its weights mix two versions of it.")
        if bad := stage.not_finite("loss"):
            remarks.append(
                f"The loss of {name} was not a number at update {bad[0]:,} ({_count(len(bad), 'log line')})."
            )
        if not stage.end:
            remarks.append(f"{name} has no end event: it was cut off after update {stage.last_step:,}.")
        if stage.unreadable_lines:
            remarks.append(f"{_count(stage.unreadable_lines, 'unreadable line')} in events/{name}.jsonl passed over.")
    return remarks


def _count(number_of: int, noun: str) -> str:
    return f"{number_of:,} {noun}{'' if number_of == 1 else 's'}"
