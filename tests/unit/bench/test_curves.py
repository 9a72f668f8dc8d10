"""Loss curves: means by recipe and seed, distances from bf16 over shared seeds, one picture."""

import json
from pathlib import Path

import pytest

from bench import curves
from bench.curves import means, table
from config.errors import UserError


def run(name: str, seed: int, level: float) -> dict:
    return {"bench": "step", "precision": name, "seed": seed, "losses": [9.0] * 50 + [level] * 50}


RUNS = [
    run("bf16", 0, 4.0),
    run("bf16", 1, 4.2),
    run("fp8", 0, 4.04),
    {"peer": "nanochat", "seed": 1, "losses": [9.0] * 50 + [4.158] * 50},
]


def test_means_are_of_the_last_updates_and_compared_seed_by_seed() -> None:
    assert means(RUNS)["bf16"] == {0: pytest.approx(4.0), 1: pytest.approx(4.2)}
    lines = table(RUNS).splitlines()
    assert lines[2] == "| `bf16` | 4.0000 | 4.2000 | – |"
    assert lines[3] == "| `fp8` | 4.0400 | – | +1.00% |"
    assert lines[4] == "| `nanochat` | – | 4.1580 | -1.00% |"


def test_a_folder_becomes_a_table_and_a_picture(tmp_path: Path, capsys) -> None:
    (tmp_path / "runs.jsonl").write_text("\n".join(map(json.dumps, RUNS)))
    curves.main([str(tmp_path), "--png", str(tmp_path / "losses.png")])
    assert "| `fp8` |" in capsys.readouterr().out
    assert (tmp_path / "losses.png").stat().st_size > 10_000


def test_without_runs_on_data_it_says_what_to_run(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text(json.dumps({"bench": "step", "precision": "bf16"}))
    with pytest.raises(UserError, match="no run on data of 50 updates"):
        curves.main([str(tmp_path)])
