"""Charts: what they draw is where it should be, for any figures a run may log."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.charts import LEAST_BAND, LOSS, THROUGHPUT, bands, loss_curve_png, nice_ticks, smooth, spread, svg, thin
from app.figures import date, duration, percent, plain, si
from app.run_record import StageRecord


def stage(name: str, losses: list, per_update: int | None = 100, **fields) -> StageRecord:
    """A stage with one log line an update."""
    log = [{"event": "log", "step": i + 1, "loss": loss, "tok_s": 1000} for i, loss in enumerate(losses)]
    start = {"tokens_per_update": per_update} if per_update else {}
    return StageRecord(name, start=start, log=log, found=True, **fields)


def coordinates(drawing: str, kind: str) -> list[tuple[float, float]]:
    """The points of the first path of a class."""
    path = re.search(rf'<path class="{kind}[^"]*" d="M([^"]*)"', drawing)
    return [tuple(map(float, point.split())) for point in path[1].split("L")] if path else []


def test_bands_share_the_width_by_tokens_and_keep_the_short_ones_readable():
    stages = [stage("pretrain", [1] * 900), stage("midtrain", [1] * 600), stage("sft", [1] * 2)]
    first, second, third = bands(stages, 40, 1000)
    assert first.left == 40 and third.left + third.width == pytest.approx(1040)
    assert first.width / second.width == pytest.approx(1.5)
    assert third.width >= 1000 * LEAST_BAND / (1 + LEAST_BAND)
    assert first.extent == 90_000 and first.x(450) == pytest.approx(40 + first.width / 2)


def test_updates_serve_where_one_stage_does_not_say_its_tokens():
    pair = bands([stage("pretrain", [1] * 30), stage("sft", [1] * 10, per_update=None)], 0, 100)
    assert [band.extent for band in pair] == [30, 10]


def test_a_falling_loss_falls_in_the_drawing_and_stays_inside_it():
    drawing = svg([stage("pretrain", [10 / (i + 1) for i in range(200)])], LOSS, 1000, 400, readout=True)
    line = coordinates(drawing, "line")
    assert [y for _, y in line] == sorted(y for _, y in line)  # down is a larger y
    assert [x for x, _ in line] == sorted(x for x, _ in line)
    assert all(46 <= x <= 990 and 46 <= y <= 376 for x, y in line + coordinates(drawing, "raw"))
    assert "log scale" in drawing and "pretrain · 20\u202fk tokens · update 200 · loss 0.05" in drawing


def test_validation_resumes_and_bad_values_are_drawn():
    marked = stage(
        "sft",
        [3.0, None, 2.0, float("nan"), 1.0],
        validation=[{"step": 5, "loss": 1.2}, {"step": 6}],
        resumes=[{"step": 3}],
    )
    drawing = svg([marked], LOSS, 1000, 400, readout=True)
    assert drawing.count('class="ring sft"') == 1
    assert drawing.count('class="mark"') == 1
    assert drawing.count('class="bad"') == 2
    assert "validation 1.2<" in drawing
    assert len(coordinates(drawing, "raw")) == 3


def test_nothing_to_draw_is_no_drawing():
    assert svg([], LOSS, 1000, 400, readout=True) == ""
    assert svg([stage("sft", [None, float("inf")])], LOSS, 1000, 400, readout=True) == ""
    assert svg([stage("sft", [1.0])], THROUGHPUT[1], 1000, 400, readout=True) == ""


def test_a_spike_does_not_flatten_the_rest():
    losses = [2.0 - i / 1000 for i in range(1000)]
    losses[500] = 1e6
    ys = [y for _, y in coordinates(svg([stage("pretrain", losses)], LOSS, 1000, 400, readout=False), "raw")]
    assert min(ys) == 46.0  # the spike touches the top
    assert max(ys) > 350


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.floats() | st.none(), max_size=40), min_size=1, max_size=3),
    st.sampled_from([None, 1, 65_536, 1e300, 1e-300]),
    st.sampled_from([LOSS, THROUGHPUT[0]]),
)
def test_any_figures_draw_within_the_frame(runs, per_update, panel):
    names = ("pretrain", "midtrain", "sft")
    stages = [stage(name, losses, per_update) for name, losses in zip(names, runs, strict=False)]
    for width in (372, 1000):
        drawing = svg(stages, panel, width, 300, readout=True)
        assert "nan" not in drawing.replace("not a number", "").lower()
        for kind in ("raw", "line"):
            assert all(0 <= x <= width and 0 <= y <= 300 for x, y in coordinates(drawing, kind))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_smoothing_stays_within_the_values_and_keeps_a_constant(values):
    points = list(enumerate(values))
    smoothed = [value for _, value in smooth(points)]
    slack = 1e-6 * max(1, *map(abs, values))
    assert min(values) - slack <= min(smoothed) and max(smoothed) <= max(values) + slack
    assert [value for _, value in smooth([(0, 5.0)] * 60)] == pytest.approx([5.0] * 60)


@given(st.integers(0, 500), st.integers(2, 20))
def test_spread_keeps_order_and_ends(length, count):
    kept = spread(range(length), count)
    assert len(kept) == min(length, count) and kept == sorted(set(kept))
    assert not length or (kept[0], kept[-1]) == (0, length - 1)


def test_thinning_keeps_the_extremes():
    points = [(i, 1.0) for i in range(1000)]
    points[321], points[654] = (321, 9.0), (654, -9.0)
    kept = thin(points, 20)
    assert len(kept) <= 40 and (321, 9.0) in kept and (654, -9.0) in kept and kept == sorted(kept)


@given(st.floats(-1e12, 1e12), st.floats(1e-6, 1e12), st.integers(1, 12))
def test_ticks_are_few_and_inside(low, span, count):
    ticks = nice_ticks(low, low + span, count)
    assert len(ticks) <= count + 2
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in ticks)


def test_numbers_as_people_read_them():
    shown = [si(v).replace("\u202f", " ") for v in (0, 0.1234, 7, 999.4, 999.9, 1016832, 5.2e9, 8.76e9, 1.5e19)]
    assert shown == ["0", "0.123", "7", "999", "1 k", "1.02 M", "5.2 B", "8.76 B", "15,000,000 T"]
    assert [plain(v) for v in (0.41234, 12.34, 1234.5)] == ["0.412", "12.3", "1,234"]
    assert [duration(s).replace("\xa0", " ") for s in (0.5, 59.99, 307, 7500, 594_000, -1, float("nan"))] == [
        "0.5 s", "1 min 0 s", "5 min 7 s", "2 h 5 min", "6 d 21 h", "n/a", "n/a",
    ]  # fmt: skip
    assert percent(0.9744) == "97.4\xa0%" and percent(None) == "n/a"
    assert date(0) == "1970-01-01 00:00 UTC" and "unknown" in date(1e300)


def test_png_is_a_picture_with_the_same_bytes_each_time(tmp_path):
    events = tmp_path / "run" / "events"
    events.mkdir(parents=True)
    for name in ("pretrain", "sft"):
        lines = [{"event": "start", "tokens_per_update": 512}]
        lines += [{"event": "log", "step": i, "loss": 5 / i} for i in range(1, 60)]
        lines += [{"event": "validation", "step": 50, "loss": 0.2}]
        (events / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    pictures = []
    for name in ("a.png", "b.png"):
        loss_curve_png(tmp_path / "run", tmp_path / "docs" / name)
        pictures.append((tmp_path / "docs" / name).read_bytes())
    assert pictures[0].startswith(b"\x89PNG") and pictures[0] == pictures[1]
    (tmp_path / "none").mkdir()
    loss_curve_png(tmp_path / "none", tmp_path / "none.png")
    assert (tmp_path / "none.png").stat().st_size > 1000
