"""What a run folder tells about itself, read leniently: whatever is missing, cut off or odd becomes an empty value.

A report is wanted most when something went wrong, so nothing here raises for the content of a file. What could not be
read is counted, and the page says so. Reading only: no torch, and no knowledge of how the figures were made.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.paths import TRAINING_STAGES

Event = dict[str, Any]


@dataclass(frozen=True)
class StageRecord:
    """One training stage. Events are in the order of steps; steps that a resumed run did again count once."""

    name: str
    start: Event = field(default_factory=dict)
    end: Event = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)
    validation: list[Event] = field(default_factory=list)
    samples: list[Event] = field(default_factory=list)
    resumes: list[Event] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    found: bool = False  # an events file was there
    unreadable_lines: int = 0

    @property
    def last_step(self) -> int:
        """The highest step that any event names; 0 if none does."""
        return max([step_of(event) for event in (*self.log, *self.validation, *self.samples, self.end)], default=0)

    @property
    def tokens_per_update(self) -> float | None:
        return first_number((self.start, "tokens_per_update"), (self.metrics, "tokens_per_update"))

    @property
    def tokens(self) -> float | None:
        """Tokens trained on up to the last step."""
        if self.tokens_per_update and self.last_step:
            return self.tokens_per_update * self.last_step
        last_log = self.log[-1] if self.log else {}
        return first_number((self.metrics, "tokens"), (last_log, "tokens"))

    @property
    def seconds(self) -> float | None:
        """Time in training steps: as the stage summed it up, else from the log's time a step; waits between the
        attempts of a resumed run do not count."""
        said = first_number((self.end, "seconds"), (self.metrics, "seconds"))
        timed = self.points("step_ms")
        if said is not None or not timed:
            return said
        steps = [0, *(step for step, _ in timed)]
        return sum((step - before) * ms / 1e3 for before, (step, ms) in zip(steps[:-1], timed, strict=True))

    @property
    def bits_per_byte(self) -> float | None:
        """The last one measured on this stage's validation text."""
        last = self.validation[-1] if self.validation else {}
        return first_number(
            (last, "bits_per_byte"), (self.metrics, "bits_per_byte"), (self.metrics, "validation_bits_per_byte")
        )

    def points(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of the log lines whose `key` is a finite number."""
        return [(step_of(event), value) for event in self.log if (value := number(event.get(key))) is not None]

    def not_finite(self, key: str) -> list[int]:
        """Steps at which `key` was logged, but as NaN, infinity or null."""
        return [step_of(event) for event in self.log if key in event and number(event[key]) is None]


@dataclass(frozen=True)
class RunRecord:
    """A whole run: `stages` in training order, those without any file included (their `found` is False)."""

    name: str
    profile: str | None
    stages: tuple[StageRecord, ...]
    evaluate: dict[str, Any] | None
    shards: dict[str, dict[str, Any]]
    peek: dict[str, Any] | None = None

    @property
    def trained(self) -> list[StageRecord]:
        """The stages that left events."""
        return [stage for stage in self.stages if stage.found]


def read_run(run: Path) -> RunRecord:
    """Read what is there of `runs/<profile>/`."""
    shards = {stage: _object(run / "shards" / f"{stage}.json") for stage in TRAINING_STAGES}
    return RunRecord(
        name=run.resolve().name,
        profile=_text(run / "profile.yaml"),
        stages=tuple(
            read_stage(stage, run / "events" / f"{stage}.jsonl", run / "metrics" / f"{stage}.json")
            for stage in TRAINING_STAGES
        ),
        evaluate=_object(run / "metrics" / "evaluate.json"),
        shards={stage: manifest for stage, manifest in shards.items() if manifest is not None},
        peek=_object(run / "peek.json"),
    )


def read_stage(name: str, events: Path, metrics: Path | None = None) -> StageRecord:
    """Read one stage's events (also those of a stage still running) and, where given, its metrics."""
    figures = (_object(metrics) if metrics else None) or {}
    text = _text(events)
    if text is None:
        return StageRecord(name, metrics=figures)
    parsed = [_parse(line) for line in text.split("\n") if line.strip()]
    record = StageRecord(name, metrics=figures, found=True, unreadable_lines=sum(event is None for event in parsed))
    for event in parsed:
        if event is not None:
            _fold(record, event)
    return record


def _fold(record: StageRecord, event: Event) -> None:
    """Add one event. A step at or below one already seen means that a resumed run did it again: the later one holds."""
    kind, step = event.get("event"), step_of(event)
    if kind == "start":
        record.start.clear()
        record.start.update(event)
        record.end.clear()
    elif kind == "end":
        record.end.clear()
        record.end.update(event)
    elif kind == "log":
        _rewind(record.log, step - 1)
        record.log.append(event)
    elif kind == "validation":
        _rewind(record.validation, step - 1)
        record.validation.append(event)
    elif kind == "sample":
        _rewind(record.samples, step)
        again = (step, event.get("prompt"))
        record.samples[:] = [old for old in record.samples if (step_of(old), old.get("prompt")) != again]
        record.samples.append(event)
    elif kind == "resume":
        for events in (record.log, record.validation, record.samples):
            _rewind(events, step)
        record.resumes.append(event)


def _rewind(events: list[Event], step: int) -> None:
    """Drop the events after `step`; the list is in the order of steps."""
    while events and step_of(events[-1]) > step:
        events.pop()


def number(value: Any) -> float | None:
    """`value` as a finite float; None for anything else (NaN, null, text, true), and beyond 1e100, where sums of
    figures and their products could overflow."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e100 <= value <= 1e100:
        return None
    return float(value)


def first_number(*places: tuple[Any, str]) -> float | None:
    """The first finite number among (dict, key) places."""
    for holder, key in places:
        if isinstance(holder, dict) and (value := number(holder.get(key))) is not None:
            return value
    return None


def step_of(event: Event) -> int:
    """The event's step; 0 where it has none that makes sense."""
    step = number(event.get("step"))
    return int(step) if step is not None and 0 <= step < 1e15 else 0


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _parse(text: str) -> dict[str, Any] | None:
    """A JSON object, or None. Python's reader takes NaN, which JSON proper has no word for."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _object(path: Path) -> dict[str, Any] | None:
    text = _text(path)
    return None if text is None else _parse(text)
