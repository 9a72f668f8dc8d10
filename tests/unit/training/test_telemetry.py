"""Events: whole lines, none twice after a resume; a progress line that a person can read."""

import json
from pathlib import Path

import pytest

from training.telemetry import PLAIN_INTERVAL_S, Telemetry, duration, progress_line, read_events


@pytest.fixture
def telemetry(tmp_path: Path) -> Telemetry:
    return Telemetry(tmp_path / "deep" / "events.jsonl", "sft", active=True)


def steps(telemetry: Telemetry) -> list[tuple[str, int | None]]:
    return [(event["event"], event.get("step")) for event in read_events(telemetry.path)]


def test_events_are_json_lines_with_a_time(telemetry: Telemetry) -> None:
    telemetry.event("start", device="CPU é\n\u2028", mfu=float("nan"))
    telemetry.event("log", step=1)
    first, second = telemetry.path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    assert json.loads(first) | {"time": 0} == {"event": "start", "time": 0, "device": "CPU é\n\u2028", "mfu": None}
    assert json.loads(second)["time"] > 1.7e9
    assert len(read_events(telemetry.path)) == 2


def test_rewind_drops_what_will_be_written_again(telemetry: Telemetry) -> None:
    telemetry.event("start")
    for step in (10, 20, 30):
        telemetry.event("log", step=step)
        telemetry.event("checkpoint", step=step)
    telemetry.rewind(20)
    telemetry.event("resume", step=20)
    assert steps(telemetry) == [
        ("start", None),
        ("log", 10),
        ("checkpoint", 10),
        ("log", 20),
        ("checkpoint", 20),
        ("resume", 20),
    ]


def test_a_run_that_starts_anew_starts_its_events_anew(telemetry: Telemetry) -> None:
    telemetry.event("start")
    telemetry.event("log", step=10)
    telemetry.rewind(0)
    telemetry.event("start")
    assert steps(telemetry) == [("start", None)]


def test_a_line_that_a_kill_cut_short_is_left_out(telemetry: Telemetry) -> None:
    telemetry.event("log", step=10)
    with telemetry.path.open("a") as file:
        file.write('{"event": "log", "st')
    assert steps(telemetry) == [("log", 10)]
    telemetry.rewind(15)
    telemetry.event("log", step=20)
    assert steps(telemetry) == [("log", 10), ("log", 20)]


def test_rewinding_what_is_not_there(telemetry: Telemetry) -> None:
    telemetry.rewind(5)
    assert not telemetry.path.exists()


def test_other_ranks_write_and_print_nothing(tmp_path: Path, capsys) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "log", "step": 9}\n')
    silent = Telemetry(path, "sft", active=False)
    silent.event("log", step=10)
    silent.say("hello")
    silent.progress("1/2", last=True)
    silent.rewind(0)
    assert path.read_text() == '{"event": "log", "step": 9}\n' and capsys.readouterr().out == ""


def test_progress_in_a_file_comes_every_few_seconds_and_at_the_end(telemetry: Telemetry, capsys, monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for second in range(25):
        now[0] = 100.0 + second
        telemetry.progress(f"line {second}")
    telemetry.progress("end", last=True)
    assert PLAIN_INTERVAL_S == 10
    assert capsys.readouterr().out.split("\n") == ["line 0", "line 10", "line 20", "end", ""]


def test_progress_on_a_terminal_overwrites_itself_and_makes_room_for_lines(telemetry: Telemetry, capsys) -> None:
    telemetry._overwrites = True
    telemetry.progress("one")
    telemetry.progress("two")
    telemetry.say("a line")
    telemetry.progress("three", last=True)
    assert capsys.readouterr().out == "\r\033[Kone\r\033[Ktwo\na line\n\r\033[Kthree\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (-3, "0:00"),
        (59.6, "1:00"),
        (83, "1:23"),
        (3600, "1:00:00"),
        (7384, "2:03:04"),
        (3 * 86400 + 4 * 3600 + 5 * 60, "3 d 04:05"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_progress_line() -> None:
    values = {"step": 1200, "updates": 3400, "loss": 2.1312, "tok_s": 41_234.0, "tflops": 0.238, "eta_s": 83}
    assert progress_line("pretrain", values) == (
        "pretrain 1,200/3,400  35 %  loss 2.131  41.2 k tok/s  0.24 TFLOP/s  1:23 left"
    )
