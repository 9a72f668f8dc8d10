"""Several processes train as one does: same rows, same losses, same bits on all ranks, and each other's checkpoints."""

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from config.paths import ROOT
from tests.distributed.worker import ROWS, do
from tests.small_job import ALONE, same
from training.telemetry import read_events

pytestmark = pytest.mark.distributed
UPDATES, HALF = 50, 25


def torchrun(world: int, *tasks: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world}"]
    result = subprocess.run(
        [*command, "tests/distributed/worker.py", *tasks],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """50 updates on one, two and three ranks; the second half of `mixed` on three after a first half on two."""
    folder = tmp_path_factory.mktemp("ranks")
    do(f"train:{folder}/one:{UPDATES}", ALONE)
    for name in ("two", "three", "mixed", "stop"):
        (folder / name).mkdir()
    torchrun(
        2,
        f"train:{folder}/two:{UPDATES}",
        f"load:{folder}/one",
        f"stop:{folder}/stop",
    )
    newest_removed(folder / "two", folder / "mixed")
    torchrun(3, f"train:{folder}/three:{UPDATES}", f"load:{folder}/two", f"load:{folder}/one", *mixed(folder))
    do(f"load:{folder}/two", ALONE)
    do(f"load:{folder}/three", ALONE)
    return folder


def newest_removed(source: Path, target: Path) -> None:
    """A copy of a run that was ended after its first checkpoint."""
    shutil.copytree(source / "checkpoints", target / "checkpoints")
    shutil.rmtree(target / "checkpoints" / f"step-{UPDATES:08d}")
    (target / "checkpoints" / "checkpoints.json").write_text(f'{{"steps": [{HALF}]}}')


def mixed(folder: Path) -> list[str]:
    return [f"train:{folder}/mixed:{UPDATES}"]


def result(folder: Path, what: str, world: int, rank: int = 0) -> dict[str, Any]:
    return torch.load(folder / f"{what}-{world}-{rank}.pt", weights_only=False)


def losses(folder: Path) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in read_events(folder / "events.jsonl") if event["event"] == "log"}


@pytest.mark.parametrize("name", ["two", "three"])
def test_losses_agree_with_one_rank_at_every_update(runs: Path, name: str) -> None:
    alone, together = losses(runs / "one"), losses(runs / name)
    assert list(together) == list(alone) == list(range(1, UPDATES + 1))
    assert alone[1] - alone[UPDATES] > 1, "it learns"
    for step, loss in together.items():
        assert loss == pytest.approx(alone[step], rel=1e-4), f"update {step}"


def test_a_run_that_changes_its_ranks_half_way_agrees_too(runs: Path) -> None:
    alone, changed = losses(runs / "one"), losses(runs / "mixed")
    assert list(changed) == list(range(HALF + 1, UPDATES + 1))
    for step, loss in changed.items():
        assert loss == pytest.approx(alone[step], rel=1e-4), f"update {step}"


@pytest.mark.parametrize(("name", "world"), [("two", 2), ("three", 3)])
def test_all_ranks_together_see_the_rows_that_one_sees(runs: Path, name: str, world: int) -> None:
    alone = [rows for _, rows, _ in result(runs / "one", "train", 1)["seen"][:UPDATES]]
    assert all(len(rows) == ROWS for rows in alone)
    ranks = [result(runs / name, "train", world, rank)["seen"][:UPDATES] for rank in range(world)]
    for update, rows in enumerate(alone):
        assert [row for seen in ranks for row in seen[update][1]] == rows
        sizes = [len(seen[update][1]) for seen in ranks]
        assert max(sizes) - min(sizes) <= 1
        assert len({seen[update][2] for seen in ranks}) == 1, "all ranks have as many micro-batches"


@pytest.mark.parametrize(("name", "world"), [("two", 2), ("three", 3), ("mixed", 3), ("stop", 2)])
def test_weights_are_bit_identical_across_ranks(runs: Path, name: str, world: int) -> None:
    what = "stop" if name == "stop" else "train"
    results = [result(runs / name, what, world, rank) for rank in range(world)]
    for first, second in pairwise(results):
        assert same(first["state"], second["state"]) and first["steps"] == second["steps"]


@pytest.mark.parametrize(
    ("name", "made_by", "read_by"), [("two", 2, 1), ("two", 2, 3), ("one", 1, 2), ("one", 1, 3), ("three", 3, 1)]
)
def test_a_checkpoint_is_read_bit_for_bit_by_another_number_of_ranks(
    runs: Path, name: str, made_by: int, read_by: int
) -> None:
    written = result(runs / name, "train", made_by)
    for rank in range(read_by):
        found = result(runs / name, "load", read_by, rank)
        assert found["seen"] == [UPDATES] and found["steps"] == written["steps"] == UPDATES
        assert same(found["state"], written["state"])


def test_a_signal_to_one_rank_stops_all_at_the_same_update_with_the_state_saved(runs: Path) -> None:
    for rank in range(2):
        *_, said = result(runs / "stop", "stop", 2, rank)["seen"]
        assert "saved at update 4" in said
    assert (runs / "stop" / "checkpoints" / "step-00000004" / "manifest.json").exists()


def test_more_processes_than_the_group_is_an_error() -> None:
    """A launch of two in which one never comes must fail, and not train alone."""
    code = (
        "import training.distributed as d, datetime\n"
        "d.TIMEOUT = datetime.timedelta(seconds=2)\n"
        "d.join()\n"
        "print('trained alone')"
    )
    environment = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0 and "trained alone" not in done.stdout
