"""Tables of results: settings told apart, runs averaged, ratios to the peer's best, one page and one picture."""

import json
from pathlib import Path

import pytest

from bench import table
from bench.table import best_peers, ceilings_of, linear_table, markdown, page, read_lines, step_table, steps
from config.errors import UserError


def ours(**changes) -> dict:
    line = {
        "bench": "step",
        "depth": 20,
        "precision": "bf16",
        "attention": "fa4",
        "window": "SSSL",
        "micro_batch": 32,
        "accum": 8,
        "seq": 2048,
        "ms": 2400.0,
        "tok_s": 220_000,
        "tflops": 600.0,
        "gib": 40.0,
        "ceiling_bf16_tflops": 800.0,
        "device": "H200",
        "torch": "2.11.0",
    }
    return line | changes


def peer(**changes) -> dict:
    line = {
        "peer": "nanochat",
        "depth": 20,
        "fp8": False,
        "window": "L",
        "attention": "sdpa",
        "micro_batch": 32,
        "accum": 8,
        "ms": 3200.0,
        "tok_s": 160_000,
        "tflops": 520.0,
        "gib": 72.0,
        "loss": 7.1,
    }
    return line | changes


def cells(text: str, trainer: str) -> list[str]:
    """The cells of the table's one row of a trainer."""
    (row,) = [line for line in text.splitlines() if f"| {trainer} |" in line]
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_runs_before_and_after_are_averaged_and_their_spread_is_shown() -> None:
    found = steps([peer(tok_s=160_000, gib=72.0), ours(), peer(tok_s=164_000, gib=72.4)])
    assert [figures.runs for figures in found] == [1, 2]
    assert found[1].tok_s == 162_000 and found[1].gib == 72.4
    assert found[1].spread == pytest.approx(4 / 162)
    assert "2 (2.5%)" in cells(step_table(found), "nanochat")


def test_ratios_are_over_the_peers_best_of_the_same_row() -> None:
    lines = [
        ours(tok_s=243_000, gib=36.0),
        peer(tok_s=160_000),
        peer(tok_s=164_000),
        peer(tok_s=120_000, window="SSSL", attention="varlen"),
        peer(tok_s=200_000, fp8=True),  # another number format
        peer(tok_s=150_000, accum=1),  # another batch
        peer(tok_s=500_000, depth=12),
    ]
    found = steps(lines)
    best = best_peers(found)
    assert [best[figures.setting.row].tok_s for figures in found if not figures.setting.who] == [162_000]
    row = cells(step_table(found), "Tandem")
    assert "**1.50**" in row and row[-1] == f"{36 / 72:.2f}"


def test_fp8_of_any_kind_stands_against_the_peers_fp8() -> None:
    lines = [ours(precision="te-fp8-delayed", tok_s=300_000), peer(fp8=True, tok_s=200_000), peer(tok_s=160_000)]
    assert "**1.50**" in cells(step_table(steps(lines)), "Tandem")


def test_without_a_peer_there_is_no_ratio() -> None:
    row = cells(step_table(steps([ours(precision="fp32", gib=None), peer()])), "Tandem")
    assert row[-1] == row[-2] == row[-5] == "–"


def test_settings_that_differ_are_told_apart() -> None:
    lines = [ours(), ours(window="L"), ours(attention="varlen"), ours(recompute="R"), ours(seq=1024)]
    assert len(steps(lines)) == 5
    assert len(steps([ours(), ours(loss=1.0)])) == 1


def test_runs_on_data_are_no_measure_of_speed() -> None:
    assert [found.runs for found in steps([ours(), ours(losses=[1.0], tok_s=1)])] == [1]


def test_reads_lines_among_other_output(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "peer.log").write_text(f"compiling\n{json.dumps(peer())}\n{{not json\n" + '{"other": 1}\n')
    (tmp_path / "ours.jsonl").write_text(f"{json.dumps(ours())}\n{json.dumps(ours())}\n")
    (tmp_path / "old.png").write_bytes(b"\x89PNG")
    assert len(read_lines(tmp_path)) == 3


@pytest.mark.parametrize("name", [".", "missing"])
def test_a_folder_without_results_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError):
        read_lines(tmp_path / name)


def linear_line(factor: float) -> dict:
    shape = {"inputs": 1280, "outputs": 5120}
    return {
        "bench": "linear",
        "ceiling_fp8_tflops": 1400.0,
        "products": [{**shape, "format": "fp8", "tflops": 1200.0}],
        "layers": [
            {**shape, "recipe": "bf16", "tflops": 700.0},
            {**shape, "recipe": "fp8", "tflops": 1000.0 * factor},
        ],
    }


def test_the_fastest_recipe_of_a_shape_is_bold() -> None:
    text = linear_table([linear_line(1.0), linear_line(1.1), ours()])
    assert text.splitlines()[-1] == "| 1280 × 5120 | 1200 | 700 | **1050** |"


def test_ceilings_are_the_median_of_those_measured() -> None:
    lines = [ours(ceiling_bf16_tflops=value) for value in (700.0, 790.0, 800.0)] + [linear_line(1.0), peer()]
    assert ceilings_of(lines) == {"bf16": 790.0, "fp8": 1400.0}


def test_a_table_has_all_columns_and_dashes_for_what_is_missing() -> None:
    assert markdown([{"a": 1}, {"a": None, "b": 0}]).splitlines() == [
        "| a | b |",
        "| --- | --- |",
        "| 1 | – |",
        "| – | 0 |",
    ]


def test_the_page_holds_every_kind_of_result() -> None:
    loss = {"bench": "loss", "rows": 64, "copy_gbps": 4000.0, "results": [{"recipe": "bf16", "ms": 25.0}]}
    text = page([ours(), peer(), linear_line(1.0), loss])
    for heading in ("### Full step", "### One linear layer", "### loss\n", "### loss: results"):
        assert heading in text
    assert "H200, torch 2.11.0" in text and "bf16 800 TFLOP/s" in text and "4000" not in text


def test_writes_page_and_picture(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "all.jsonl").write_text("\n".join(map(json.dumps, [ours(), peer(), linear_line(1.0)])))
    table.main([str(folder), "--markdown", str(tmp_path / "speed.md"), "--png", str(tmp_path / "speed.png")])
    assert "**1.38**" in (tmp_path / "speed.md").read_text(encoding="utf-8")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
