"""The loop: resumed as if nothing had been, stopped with its work saved, and ended by a loss that is not one."""

import json
import os
import signal
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from config.errors import UserError
from data.loader import update_rows
from tests.small_job import CONFIG, Killed, MemoryRows, run_job, same, small_job, weights, with_rate
from training.checkpoint import Position
from training.loop import Hook, StoppedError
from training.telemetry import read_events

UPDATES = 7


def logs(folder: Path) -> dict[int, tuple]:
    """Of each log line of a run, all that doesn't depend on the clock."""
    found = {}
    for event in read_events(folder / "events.jsonl"):
        if event["event"] == "log":
            assert event["step"] not in found, "a resumed run logs nothing twice"
            found[event["step"]] = tuple(event[key] for key in ("loss", "lr", "grad_norm", "tokens"))
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, torch.Tensor]:
    job = small_job(tmp_path_factory.mktemp("undisturbed"), UPDATES)
    assert run_job(job).step == UPDATES
    return weights(job)


@settings(max_examples=12, deadline=None)
@given(
    kills=st.lists(st.integers(0, UPDATES - 1), min_size=1, max_size=3),
    checkpoint_updates=st.integers(1, 4),
    log_updates=st.integers(1, 3),
)
def test_killed_at_any_updates_the_weights_end_the_same(
    tmp_path_factory, undisturbed, kills: list[int], checkpoint_updates: int, log_updates: int
) -> None:
    intervals = {"checkpoint_updates": checkpoint_updates, "log_updates": log_updates}
    plain = small_job(tmp_path_factory.mktemp("plain"), UPDATES, **intervals)
    run_job(plain)
    folder = tmp_path_factory.mktemp("killed")
    for kill in sorted(kills):
        with pytest.raises(Killed):
            run_job(small_job(folder, UPDATES, **intervals), kill_before=kill)
    last = small_job(folder, UPDATES, **intervals)
    assert run_job(last) == Position(UPDATES, json.loads(json.dumps(run_loss(plain))))
    assert same(weights(last), weights(plain)) and same(weights(last), undisturbed)
    assert logs(folder) == logs(plain.telemetry.path.parent)


def run_loss(job) -> float:
    return job.checkpoints.load_newest(job.model, job.optimizer).loss


def test_a_finished_run_does_nothing_more(tmp_path: Path, undisturbed) -> None:
    run_job(small_job(tmp_path, UPDATES))
    again = small_job(tmp_path, UPDATES, seed=5)
    assert run_job(again).step == UPDATES
    assert same(weights(again), undisturbed)


def test_training_learns(tmp_path: Path) -> None:
    job = small_job(tmp_path, 40, log_updates=10, checkpoint_updates=100)
    run_job(job, MemoryRows(count=6))
    losses = [values[0] for values in logs(tmp_path).values()]
    assert list(logs(tmp_path)) == [10, 20, 30, 40]
    assert losses[0] > 2.5 and losses[-1] < 1.0


def test_micro_batches_do_not_change_the_update(tmp_path: Path) -> None:
    """Gradient accumulation: 6 rows at once, or 4 and 2, or one by one."""
    found = []
    for size in (6, 4, 1):
        run_job(small_job(tmp_path / str(size), 5, config=replace(CONFIG, micro_batch=size)))
        found.append(logs(tmp_path / str(size)))
    for lines in found[1:]:
        assert lines[1] == pytest.approx(found[0][1], rel=1e-5), "the first loss and the first gradient's norm"
        assert [line[0] for line in lines.values()] == pytest.approx([line[0] for line in found[0].values()], rel=1e-4)


def test_an_all_masked_update_changes_no_weight(tmp_path: Path) -> None:
    job = small_job(tmp_path, 3)
    before = weights(job)
    everything = MemoryRows(masked=range(20))
    assert run_job(job, everything) == Position(3, 0.0)
    assert same(weights(job), before) and job.optimizer.steps == 0
    assert [values[0] for values in logs(tmp_path).values()] == [0.0, 0.0, 0.0]


def test_masked_rows_among_others_leave_the_loss_finite_and_right(tmp_path: Path) -> None:
    job = small_job(tmp_path, 4)
    run_job(job, MemoryRows(masked=range(0, 20, 2)))
    assert all(1 < values[0] < 6 for values in logs(tmp_path).values())


def test_a_logged_loss_is_the_mean_over_all_targets_of_its_interval(tmp_path: Path) -> None:
    config = with_rate(1e-12)  # so that the loss of every update is that of the first weights
    each = small_job(tmp_path / "each", 6, config=config)
    run_job(each)
    both = small_job(tmp_path / "both", 6, config=config, log_updates=3, checkpoint_updates=6)
    run_job(both)
    rows, order = MemoryRows(), []
    for index in range(6):
        order.append(int(rows.target_counts[update_rows(index, 6, len(rows), 0)].sum()))
    single = [values[0] for values in logs(tmp_path / "each").values()]
    for step, at in ((3, 0), (6, 3)):
        parts = range(at, at + 3)
        expected = sum(single[i] * order[i] for i in parts) / sum(order[i] for i in parts)
        assert logs(tmp_path / "both")[step][0] == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_is_not_finite_names_the_rate_and_spoils_no_checkpoint(tmp_path: Path) -> None:
    job = small_job(tmp_path, 6, log_updates=100, checkpoint_updates=2)
    compute, calls = job.loss_sum, count()

    def poisoned(ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return compute(ids, targets) * (float("nan") if next(calls) == 7 else 1)  # in update 4: two calls an update

    job.loss_sum = poisoned
    with pytest.raises(UserError, match=r"the loss is nan.* at update 4; lower pretrain\.learning_rate \(0\.02\)"):
        run_job(job)
    assert job.checkpoints.steps() == [2]
    assert all(tensor.isfinite().all() for tensor in weights_at_newest(tmp_path).values())


def test_a_gradient_that_is_not_finite_is_caught_too(tmp_path: Path) -> None:
    job = small_job(tmp_path, 2)
    job.model.head.weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(UserError, match=r"the gradient's norm (nan|inf) at update 1"):
        run_job(job)
    assert job.checkpoints.steps() == []


def weights_at_newest(folder: Path) -> dict[str, torch.Tensor]:
    job = small_job(folder)
    job.checkpoints.load_newest(job.model, job.optimizer)
    return weights(job)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_and_the_run_goes_on_from_there(tmp_path: Path, undisturbed, number: int) -> None:
    before = signal.getsignal(number)
    send = Hook(frozenset({3}), lambda _: os.kill(os.getpid(), number))
    job = small_job(tmp_path, UPDATES, checkpoint_updates=100, log_updates=100, hooks=[send])
    with pytest.raises(StoppedError, match=f"{signal.Signals(number).name} received: saved at update 4"):
        run_job(job)
    assert signal.getsignal(number) is before, "the handlers are put back"
    assert job.checkpoints.steps() == [4]
    rest = small_job(tmp_path, UPDATES, checkpoint_updates=100, log_updates=100)
    run_job(rest)
    assert same(weights(rest), undisturbed)


def test_a_signal_in_the_last_update_stops_nothing(tmp_path: Path) -> None:
    send = Hook(frozenset({4}), lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert run_job(small_job(tmp_path, 4, hooks=[send])).step == 4


def test_hooks_are_called_after_their_updates_and_their_time_is_not_training(tmp_path: Path, monkeypatch) -> None:
    now = 0.0  # a clock that moves only where work is done
    monkeypatch.setattr("training.loop.time", SimpleNamespace(perf_counter=lambda: now))
    called: list[int] = []

    def look(step: int) -> None:
        nonlocal now
        called.append(step)
        now += 100.0

    job = small_job(tmp_path, 6, hooks=[Hook(frozenset({2, 5}), look)], log_updates=6, checkpoint_updates=6)
    compute = job.loss_sum

    def slowly(ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal now
        now += 2.0
        return compute(ids, targets)

    job.loss_sum = slowly
    run_job(job)
    assert called == [2, 5]
    (log,) = [event for event in read_events(tmp_path / "events.jsonl") if event["event"] == "log"]
    assert log["step_ms"] == 4000, "two micro-batches of 2 s"


def test_a_failing_hook_is_told_of_and_ends_nothing(tmp_path: Path, capsys) -> None:
    def fail(step: int) -> None:
        raise RuntimeError("out of memory")

    undisturbed = small_job(tmp_path / "undisturbed", 5)
    run_job(undisturbed)
    job = small_job(tmp_path / "failing", 5, hooks=[Hook(frozenset({3}), fail)])
    assert run_job(job).step == 5
    assert same(weights(job), weights(undisturbed))
    assert "update 3 failed and is passed over: RuntimeError: out of memory" in capsys.readouterr().out
    events = read_events(tmp_path / "failing" / "events.jsonl")
    assert [event["step"] for event in events if event["event"] == "hook_failed"] == [3]


def test_the_last_weights_are_on_disk_before_the_last_hook_runs(tmp_path: Path) -> None:
    """A run must not die in its last evaluation before its only save."""

    def die(step: int) -> None:
        raise Killed

    job = small_job(tmp_path, 5, hooks=[Hook(frozenset({5}), die)], checkpoint_updates=100)
    with pytest.raises(Killed):
        run_job(job)
    assert job.checkpoints.steps() == [5]
    assert same(weights_at_newest(tmp_path), weights(job))


def test_what_a_log_line_holds(tmp_path: Path) -> None:
    job = small_job(tmp_path, 4, log_updates=2)
    job.peak_tflops = 1e-3
    run_job(job)
    (first, last) = [event for event in read_events(tmp_path / "events.jsonl") if event["event"] == "log"]
    assert (first["step"], last["step"], last["tokens"]) == (2, 4, 4 * 96)
    assert last["lr"] == pytest.approx(CONFIG.learning_rate * CONFIG.final_scale)
    assert last["tok_s"] == pytest.approx(96 / last["step_ms"] * 1e3, rel=1e-2)
    assert last["tflops"] * 1e12 == pytest.approx(1000 * last["tok_s"], rel=0.1)
    assert last["mfu"] == pytest.approx(last["tflops"] / 1e-3, rel=0.1)
    assert last["grad_norm"] > 0 and last["data_ms"] >= 0 and last["eta_s"] == 0
    unknown = small_job(tmp_path / "unknown", 1)
    run_job(unknown)
    assert read_events(tmp_path / "unknown" / "events.jsonl")[0]["mfu"] is None, "no peak, no made-up share of it"


def test_the_device_is_asked_for_a_loss_only_where_it_is_logged(tmp_path: Path, monkeypatch) -> None:
    asked: list[int] = []
    item = torch.Tensor.item

    def noted(self: torch.Tensor) -> float:
        asked.append(1)
        return item(self)

    monkeypatch.setattr(torch.Tensor, "item", noted)
    run_job(small_job(tmp_path, 8, log_updates=4, checkpoint_updates=8))
    assert len(asked) == 2 * 2, "loss and gradient norm, at two log lines"
