"""Charts of a run: small SVGs for the report, drawn by hand so that CSS gives them their colours in light and dark,
and one PNG of the loss for the README.

The x axis is training time in tokens (updates where tokens are unknown), one band a stage. A stage with a small share
of the tokens still gets a readable band: each band then has its own scale, which its ticks show.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from app.figures import plain, si
from app.run_record import StageRecord, number, read_run, step_of

T = TypeVar("T")

LEAST_BAND = 0.17  # share of the plot's width that the shortest stage gets


@dataclass(frozen=True)
class Panel:
    """What one chart shows: a field of the log events over all stages."""

    key: str
    title: str
    short: str  # what the readout calls it
    log_scale: bool = False  # else linear, from zero
    validation: bool = False  # validation events hold the same field: draw them as rings


LOSS = Panel("loss", "Loss, nats a token", "loss", log_scale=True, validation=True)
THROUGHPUT = (Panel("tok_s", "Tokens a second", "tok/s"), Panel("tflops", "Achieved TFLOP/s", "TFLOP/s"))


@dataclass(frozen=True)
class Band:
    """A stage's place on the x axis: pixels `left` to `left + width` hold 0 to `extent` x units."""

    stage: StageRecord
    left: float
    width: float
    extent: float
    per_step: float  # x units a step: tokens, or 1

    def x(self, step: float) -> float:
        return self.left + self.width * min(step * self.per_step / self.extent, 1.0)


@dataclass(frozen=True)
class Scale:
    """The y axis: values `low` to `high` on pixels `bottom` to `top`; outside values are drawn at the edge."""

    low: float
    high: float
    top: float
    bottom: float
    log: bool

    def y(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.bottom - (self.bottom - self.top) * share

    def ticks(self, count: int) -> list[float]:
        if not self.log or self.high / self.low < 3:
            return nice_ticks(self.low, self.high, count)
        for mantissas in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            ticks = [m * 10.0**d for d in decades for m in mantissas if self.low <= m * 10.0**d <= self.high]
            if len(ticks) >= count - 1:
                break
        return ticks[:: math.ceil(len(ticks) / (count + 2))]


def in_tokens(stages: Sequence[StageRecord]) -> bool:
    """Whether all stages say how many tokens an update has, so that one axis of tokens serves."""
    return all(stage.tokens_per_update for stage in stages)


def bands(stages: Sequence[StageRecord], left: float, width: float) -> list[Band]:
    """Share `width` pixels among the stages that have steps, by their extent, none below LEAST_BAND."""
    stages = [stage for stage in stages if stage.last_step > 0]
    tokens = in_tokens(stages)
    per_step = [stage.tokens_per_update or 1.0 if tokens else 1.0 for stage in stages]
    extents = [max(stage.last_step * unit, 1e-9) for stage, unit in zip(stages, per_step, strict=True)]
    shares = [max(extent / sum(extents), LEAST_BAND) for extent in extents]
    placed = []
    for stage, unit, extent, share in zip(stages, per_step, extents, shares, strict=True):
        pixels = width * share / sum(shares)
        placed.append(Band(stage, left, pixels, extent, unit))
        left += pixels
    return placed


def svg(stages: Sequence[StageRecord], panel: Panel, width: int, height: int, readout: bool) -> str:
    """One chart as an SVG element, "" where no stage has a finite value. `readout`: figures on hover, by CSS alone."""
    left, right, top, bottom = 46, width - 10, 46, height - 24
    placed = bands(stages, left, right - left)
    scale = _scale(placed, panel, top, bottom)
    if scale is None:
        return ""
    narrow = width < 600
    parts = [_frame(placed, scale, right, narrow)]
    parts += [_stage_lines(band, scale, panel) for band in placed]
    if readout:
        parts += [_strips(band, scale, panel, right) for band in placed]
    label = escape(f"{panel.title}, by stage: " + "; ".join(_summary(band.stage, panel) for band in placed))
    title = escape(panel.title + (" (log scale)" if scale.log else ""))
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        f'<text class="title" x="2" y="14">{title}</text>{"".join(parts)}</svg>'
    )


def _summary(stage: StageRecord, panel: Panel) -> str:
    points = stage.points(panel.key)
    if not points:
        return f"{stage.name} none"
    return f"{stage.name} {plain(points[0][1])} to {plain(smooth(points)[-1][1])}"


def _scale(placed: list[Band], panel: Panel, top: float, bottom: float) -> Scale | None:
    """Range of the y axis: all of the smoothed and validation values, and nearly all of the raw ones."""
    raw, sure = [], []
    for band in placed:
        points = band.stage.points(panel.key)
        raw += [value for _, value in points]
        sure += [value for _, value in smooth(points)]
        if panel.validation:
            sure += [value for _, value in _validation(band.stage, panel)]
    if not sure:
        return None
    raw.sort()
    high = max(raw[int(0.995 * (len(raw) - 1))] if raw else -math.inf, max(sure))
    if not panel.log_scale or min(sure) < 1e-9:
        low = min(0.0, min(sure))
        return Scale(low, high + max(0.08 * (high - low), 1e-9 * max(1.0, abs(low))), top, bottom, log=False)
    low = min(raw[int(0.005 * (len(raw) - 1))] if raw and raw[0] >= 1e-9 else math.inf, min(sure))
    return Scale(low * 0.95, high * 1.05, top, bottom, log=True)


def _validation(stage: StageRecord, panel: Panel) -> list[tuple[int, float]]:
    """(step, value) of the validation events."""
    return [(step_of(e), value) for e in stage.validation if (value := number(e.get(panel.key))) is not None]


def _frame(placed: list[Band], scale: Scale, right: float, narrow: bool) -> str:
    """Grid, band backgrounds and names, ticks of both axes."""
    parts = []
    for band in placed:
        name, x, w = band.stage.name, band.left, band.width
        parts.append(
            f'<rect class="band {name}" x="{x:.1f}" y="{scale.top}" width="{w:.1f}" '
            f'height="{scale.bottom - scale.top}"/>'
            f'<text class="band-name {name}" x="{x + 3:.1f}" y="{scale.top - 7}">{escape(name)}</text>'
        )
        for tick in _band_ticks(band, 46 if narrow else 84, last=band is placed[-1]):
            at = x + w * tick / band.extent
            anchor = "end" if at > right - 12 else "start" if tick == 0 else "middle"
            parts.append(
                f'<path class="tick" d="M{at:.1f} {scale.bottom}v4"/>'
                f'<text class="axis" x="{at:.1f}" y="{scale.bottom + 17}" text-anchor="{anchor}">{si(tick)}</text>'
            )
    for tick in scale.ticks(5):
        y = scale.y(tick)
        parts.append(
            f'<path class="grid" d="M{placed[0].left} {y:.1f}H{right}"/>'
            f'<text class="axis" x="{placed[0].left - 6}" y="{y + 4:.1f}" text-anchor="end">{si(tick)}</text>'
        )
    return "".join(parts)


def _band_ticks(band: Band, pixels: float, last: bool) -> list[float]:
    """Round numbers about `pixels` apart, none so near the end that it touches the next band's zero."""
    ticks, least = [0.0], max(2, int(band.width // pixels))
    end = band.extent * (1 if last else 1 - 24 / band.width)
    for room in range(least, least + 4):
        ticks = [tick for tick in nice_ticks(0, band.extent, room) if tick <= end]
        if len(ticks) > 1:
            break
    return ticks


def _stage_lines(band: Band, scale: Scale, panel: Panel) -> str:
    """A stage's raw and smoothed lines, validation rings, marks of resumes and of values that were no number."""
    stage = band.stage
    points = stage.points(panel.key)
    smoothed = smooth(points)
    rings = spread(_validation(stage, panel), max(2, int(band.width / 12))) if panel.validation else []
    buckets = max(8, int(band.width / 2))
    raw_path = _path(thin(points, buckets), band, scale)
    smooth_path = _path(smoothed[:: max(1, len(smoothed) // buckets)] + smoothed[-1:], band, scale)
    parts = [
        f'<path class="mark" d="M{band.x(step_of(event)):.1f} {scale.top}V{scale.bottom}"><title>resumed</title></path>'
        for event in stage.resumes
    ]
    parts.append(f'<path class="raw {stage.name}" d="{raw_path}"/><path class="line {stage.name}" d="{smooth_path}"/>')
    parts += [
        f'<circle class="ring {stage.name}" cx="{band.x(step):.1f}" cy="{scale.y(value):.1f}" r="3.2"/>'
        for step, value in rings
    ]
    parts += [
        f'<text class="bad" x="{band.x(step):.1f}" y="{scale.top + 12}" text-anchor="middle">×'
        f"<title>not a number at update {step:,}</title></text>"
        for step in spread(stage.not_finite(panel.key) if panel.validation else [], 20)
    ]
    if smoothed:
        x = band.x(smoothed[-1][0]) - 4
        near = [scale.y(v) for step, v in (*smoothed, *rings) if band.x(step) > x - 40]
        y = max(min(near) - 8, scale.top + 11)
        parts.append(f'<text class="last" x="{x:.1f}" y="{y:.1f}">{plain(smoothed[-1][1])}</text>')
    return "".join(parts)


def _path(points: list[tuple[int, float]], band: Band, scale: Scale) -> str:
    if len(points) == 1:  # a line of no length is drawn as a dot by its round caps
        points = points * 2
    return "M" + "L".join(f"{band.x(step):.1f} {scale.y(value):.1f}" for step, value in points) if points else ""


def _strips(band: Band, scale: Scale, panel: Panel, right: float) -> str:
    """Invisible strips over the plot; the one under the pointer shows its figures in the top line."""
    points = band.stage.points(panel.key)
    if not points:
        return ""
    smoothed = dict(smooth(points))
    rings = _validation(band.stage, panel) if panel.validation else []
    chosen = spread(points, max(1, int(band.width / 9)))
    xs = [band.x(step) for step, _ in chosen]
    edges = [band.left, *((a + b) / 2 for a, b in pairwise(xs)), band.left + band.width]
    parts = []
    for (step, value), x, start, end in zip(chosen, xs, edges[:-1], edges[1:], strict=True):
        text = f"{band.stage.name} · update {step:,} · {panel.short} {plain(value)}"
        if in_tokens([band.stage]):
            text = text.replace(" · ", f" · {si(step * band.stage.tokens_per_update)} tokens · ", 1)
        before = [ring for ring in rings if ring[0] <= step]
        if before:
            text += f" · validation {plain(before[-1][1])}"
        parts.append(
            f'<g class="strip"><rect x="{start:.1f}" y="{scale.top}" width="{max(end - start, 0):.1f}" '
            f'height="{scale.bottom - scale.top}"/><circle cx="{x:.1f}" cy="{scale.y(smoothed[step]):.1f}" r="3.5"/>'
            f'<text x="{right}" y="14" text-anchor="end">{escape(text)}</text></g>'
        )
    return "".join(parts)


def smooth(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Exponential moving average over about a twenty-fifth of the points, both ways, so that it lags neither."""
    keep = 1 - 2 / (min(max(len(points) / 25, 2), 50) + 1)
    values = [value for _, value in points]
    ahead, back = _average(values, keep), _average(values[::-1], keep)[::-1]
    return [(step, (a + b) / 2) for (step, _), a, b in zip(points, ahead, back, strict=True)]


def _average(values: Sequence[float], keep: float) -> list[float]:
    """Moving average of what came so far, free of bias at its start."""
    average, weight, out = 0.0, 0.0, []
    for value in values:
        average, weight = keep * average + (1 - keep) * value, keep * weight + (1 - keep)
        out.append(average / weight)
    return out


def thin(points: list[tuple[int, float]], buckets: int) -> list[tuple[int, float]]:
    """At most 2 × `buckets` points: each bucket's lowest and highest, so that spikes stay."""
    if len(points) <= 2 * buckets:
        return points
    kept = []
    for i in range(buckets):
        bucket = points[i * len(points) // buckets : (i + 1) * len(points) // buckets]
        kept += sorted({min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])})
    return kept


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of the items, evenly spaced, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    if count == 1:
        return [items[-1]]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Round values from `low` to `high`, about `count` steps apart."""
    if not high > low:
        return [low]
    rough = (high - low) / max(count, 1)
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= rough * 0.999)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def loss_curve_png(run: Path, path: Path) -> None:
    """Draw the loss of all stages of `runs/<profile>/` as a PNG of 1600 × 720 pixels, the same bytes each time."""
    # Imported here: the report itself needs no matplotlib, whose import takes a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    record = read_run(run)
    placed = [band for band in bands(record.trained, 0, 1) if band.stage.points("loss")]
    figure = Figure(figsize=(10, 4.5), dpi=160, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    if not placed:
        figure.text(0.5, 0.5, "no loss was recorded", ha="center", color="#57606a")
    else:
        scale = _scale(placed, LOSS, 1, 0)
        axes = figure.subplots(1, len(placed), sharey=True, squeeze=False, width_ratios=[b.width for b in placed])[0]
        figure.get_layout_engine().set(wspace=0.0, w_pad=0.06)
        for axis, band in zip(axes, placed, strict=True):
            _png_band(axis, band, scale, first=axis is axes[0])
        axis_name = "tokens" if in_tokens([band.stage for band in placed]) else "updates"
        figure.supxlabel(f"{axis_name} in each stage", fontsize=9, color="#57606a")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


def _png_band(axis: Any, band: Band, scale: Scale, first: bool) -> None:
    """One stage's part of the PNG; `axis` is a matplotlib Axes."""
    colour = {"pretrain": "#2563c9", "midtrain": "#0b8065", "sft": "#b35c00"}[band.stage.name]
    points = band.stage.points("loss")
    axis.set_yscale("log" if scale.log else "linear")
    axis.set_ylim(scale.low, scale.high)
    axis.set_yticks(scale.ticks(5), [si(tick) for tick in scale.ticks(5)])
    axis.minorticks_off()
    axis.set_xlim(0, band.extent)
    ticks = nice_ticks(0, band.extent, max(2, int(band.width * 9)))
    ticks = [tick for tick in ticks if tick < 0.9 * band.extent or band.left + band.width > 0.999]
    axis.set_xticks(ticks, [si(tick) for tick in ticks])
    for draw, style in ((lambda p: p, {"alpha": 0.25, "lw": 0.8}), (smooth, {"lw": 2})):
        drawn: Callable = draw
        axis.plot([s * band.per_step for s, _ in points], [v for _, v in drawn(points)], color=colour, **style)
    rings = spread(_validation(band.stage, LOSS), max(2, int(band.width * 70)))
    ring_style = {"ms": 5, "mfc": "white", "mec": colour, "mew": 1.5, "clip_on": False, "zorder": 5}
    axis.plot([s * band.per_step for s, _ in rings], [v for _, v in rings], "o", **ring_style)
    axis.set_title(band.stage.name, loc="left", fontsize=10, color=colour, fontweight="bold")
    axis.grid(axis="y", color="#d8dee4", lw=0.7)
    axis.tick_params(labelsize=9, colors="#57606a", length=3 if first else 0, axis="y")
    axis.tick_params(labelsize=9, colors="#57606a", length=3, axis="x")
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom" or (side == "left" and first))
        spine.set_color("#8c959f")
    if first:
        axis.set_ylabel("loss, nats a token" + (" (log scale)" if scale.log else ""), fontsize=9, color="#57606a")
