"""Results side by side: a folder of JSON lines, ours and a peer's, as Markdown tables and a picture.

    python -m bench.table results/ --markdown speed.md --png speed.png

Reads every file of the folder for lines that are JSON objects: ours carry `bench`, a peer's `peer` with depth, fp8,
window, attention, micro_batch, accum, ms, tok_s, tflops, gib. Lines of the same setting, such as a peer's before and
after ours, are averaged, and how far they lie apart is shown. Ratios are ours over the peer's best of the same depth,
number format and batch, whatever attention and windows that ran with. Runs on data (`losses`) are no measure of speed.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.timing import number_format
from config.errors import UserError, run_main
from config.files import write_atomic

Line = dict[str, Any]
SEQ = 2048  # tokens a row where a line does not say
# What every result of ours carries and the page says once.
HEADER = {"bench", "date", "device", "torch", "triton", "cuda", "driver", "commit", "copy_gbps", "read_gbps"}


@dataclass(frozen=True, order=True)
class Setting:
    """What was measured; lines that agree in all of it are runs of the same thing."""

    depth: int
    format: str  # bf16, fp8, …
    micro_batch: int
    accum: int
    seq: int
    who: str  # empty for ours, so that ours come first
    recipe: str
    attention: str
    window: str

    @property
    def row(self) -> tuple[int, str, int, int, int]:
        """What has to be equal for two speeds to be compared."""
        return self.depth, self.format, self.micro_batch, self.accum, self.seq


@dataclass(frozen=True)
class Figures:
    """The runs of one setting, averaged."""

    setting: Setting
    runs: int
    tok_s: float
    spread: float  # of tok_s: largest less smallest, over the mean
    ms: float
    tflops: float
    gib: float | None


def read_lines(folder: Path) -> list[Line]:
    """All JSON objects that stand on a line of their own in the folder's files; UserError when there is none."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; expected one with the JSON lines of bench.step and the others")
    lines = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".png"):
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if text.startswith("{") and (line := parse(text)) is not None:
                lines.append(line)
    if not lines:
        raise UserError(f"{folder} holds no line with `bench` or `peer`; run the benchmarks with --json into it")
    return lines


def parse(text: str) -> Line | None:
    """A result, or None for any other line."""
    try:
        line = json.loads(text)
    except json.JSONDecodeError:
        return None
    return line if "bench" in line or "peer" in line else None


def setting_of(line: Line) -> Setting:
    recipe = line["precision"] if "bench" in line else ("fp8" if line["fp8"] else "bf16")
    return Setting(
        depth=line["depth"],
        format=number_format(recipe),
        micro_batch=line["micro_batch"],
        accum=line["accum"],
        seq=line.get("seq", SEQ),
        who=line.get("peer", ""),
        recipe=recipe if line.get("recompute", "K") == "K" else f"{recipe}, recompute {line['recompute']}",
        attention=line["attention"],
        window=line["window"],
    )


def steps(lines: Iterable[Line]) -> list[Figures]:
    """The full steps among the lines, averaged by setting, in order of setting."""
    runs: dict[Setting, list[Line]] = defaultdict(list)
    for line in lines:
        if ("peer" in line or line["bench"] == "step") and "losses" not in line:
            runs[setting_of(line)].append(line)
    return [average(setting, runs[setting]) for setting in sorted(runs)]


def average(setting: Setting, runs: list[Line]) -> Figures:
    speeds = [run["tok_s"] for run in runs]
    memory = [run["gib"] for run in runs if run.get("gib") is not None]
    return Figures(
        setting=setting,
        runs=len(runs),
        tok_s=statistics.mean(speeds),
        spread=(max(speeds) - min(speeds)) / statistics.mean(speeds),
        ms=statistics.mean(run["ms"] for run in runs),
        tflops=statistics.mean(run["tflops"] for run in runs),
        gib=max(memory, default=None),
    )


def best_peers(figures: Iterable[Figures]) -> dict[tuple, Figures]:
    """The peer's fastest setting in each row."""
    best: dict[tuple, Figures] = {}
    for found in figures:
        row = found.setting.row
        if found.setting.who and (row not in best or found.tok_s > best[row].tok_s):
            best[row] = found
    return best


def step_table(figures: list[Figures]) -> str:
    """The steps as Markdown, with ratios of speed and memory to the peer's best."""
    best = best_peers(figures)
    rows = []
    for found in figures:
        setting, peer = found.setting, best.get(found.setting.row)
        speed = memory = "–"
        if setting.who:
            speed = "best" if found is peer else "–"
        elif peer:
            speed = f"**{found.tok_s / peer.tok_s:.2f}**"
            memory = f"{found.gib / peer.gib:.2f}" if found.gib and peer.gib else "–"
        rows.append(
            {
                "depth": setting.depth,
                "micro × accum": f"{setting.micro_batch} × {setting.accum}",
                "trainer": setting.who or "Tandem",
                "recipe": setting.recipe,
                "attention": setting.attention,
                "windows": setting.window,
                "tok/s": f"{found.tok_s:,.0f}",
                "runs (spread)": f"{found.runs} ({found.spread:.1%})" if found.runs > 1 else "1",
                "over the peer's best": speed,
                "ms": f"{found.ms:,.1f}",
                "TFLOP/s": f"{found.tflops:.0f}",
                "GiB": "–" if found.gib is None else f"{found.gib:.1f}",
                "memory over the peer's": memory,
            }
        )
    return markdown(rows)


def linear_table(lines: Iterable[Line]) -> str:
    """TFLOP/s of one layer by shape: the products alone, and each recipe; the fastest recipe in bold."""
    found: dict[tuple[int, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line.get("bench") == "linear":
            for product in line["products"]:
                name = f"products alone, {product['format']}"
                found[product["inputs"], product["outputs"]][name].append(product["tflops"])
            for layer in line["layers"]:
                found[layer["inputs"], layer["outputs"]][layer["recipe"]].append(layer["tflops"])
    rows = []
    for (inputs, outputs), by_name in sorted(found.items()):
        means = {name: statistics.mean(values) for name, values in by_name.items()}
        fastest = max((name for name in means if "alone" not in name), key=means.__getitem__, default=None)
        cells = {name: f"**{mean:.0f}**" if name == fastest else f"{mean:.0f}" for name, mean in means.items()}
        rows.append({"inputs × outputs": f"{inputs} × {outputs}"} | cells)
    return markdown(rows)


def other_tables(lines: Iterable[Line]) -> dict[str, str]:
    """All other benchmarks by heading: a row a line of its plain values, and its lists of rows as they are."""
    rows: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line.get("bench") in (None, "step", "linear"):
            continue
        plain = {
            key: value
            for key, value in line.items()
            if key not in HEADER and not key.startswith("ceiling_") and not isinstance(value, list | dict)
        }
        if plain:
            rows[line["bench"]].append(plain)
        for key, value in line.items():
            if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
                rows[f"{line['bench']}: {key}"] += value
    return {heading: markdown(found) for heading, found in rows.items()}


def markdown(rows: list[Line]) -> str:
    """Rows as a Markdown table; columns in the order in which they first appear, what a row lacks as a dash."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = [keys, ["---"] * len(keys), *[["–" if row.get(key) is None else row[key] for key in keys] for row in rows]]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def ceilings_of(lines: Iterable[Line]) -> dict[str, float]:
    """Median of the matrix ceilings (TFLOP/s) that the lines carry, by number format."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        for form in ("bf16", "fp8"):
            if line.get(f"ceiling_{form}_tflops"):
                found[form].append(line[f"ceiling_{form}_tflops"])
    return {form: statistics.median(values) for form, values in found.items()}


def page(lines: list[Line]) -> str:
    """Everything as Markdown, each part under a heading, with what it was measured on."""
    parts = []
    machines = sorted({f"{line['device']}, torch {line['torch']}" for line in lines if "device" in line})
    if machines:
        parts.append("Measured on " + "; ".join(machines) + ".")
    limits = ", ".join(f"{form} {value:.0f} TFLOP/s" for form, value in ceilings_of(lines).items())
    if limits:
        parts.append(f"Matrix ceilings measured in the same runs: {limits}.")
    if figures := steps(lines):
        parts.append("### Full step\n\n" + step_table(figures))
    if any(line.get("bench") == "linear" for line in lines):
        parts.append("### One linear layer, TFLOP/s\n\n" + linear_table(lines))
    parts += [f"### {heading}\n\n{text}" for heading, text in other_tables(lines).items()]
    return "\n\n".join(parts) + "\n"


def draw(figures: list[Figures], ceilings: dict[str, float], path: Path) -> None:
    """Achieved TFLOP/s of each step as a bar, against the ceiling of its number format."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(10, 1.2 + 0.34 * len(figures)), layout="constrained")
    axis = figure.add_subplot()
    for at, found in enumerate(figures):
        setting = found.setting
        axis.barh(at, found.tflops, height=0.72, color="#9aa4af" if setting.who else "#1f5fbf")
        ceiling = ceilings.get(setting.format)
        share = ""
        if ceiling:
            axis.plot([ceiling, ceiling], [at - 0.42, at + 0.42], color="#b3261e", lw=1.6)
            share = f" ({found.tflops / ceiling:.0%})"
        text = f"{found.tflops:.0f}{share} "
        axis.text(found.tflops, at, text, ha="right", va="center", size=8, color="#1f2328" if setting.who else "white")
    names = [
        f"d{found.setting.depth} {found.setting.recipe} {found.setting.micro_batch}×{found.setting.accum} · "
        f"{found.setting.who or 'Tandem'}, {found.setting.attention}, {found.setting.window}"
        for found in figures
    ]
    axis.set_yticks(range(len(figures)), names)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.08 * max([found.tflops for found in figures] + list(ceilings.values())))
    axis.set_xlabel("TFLOP/s of the full step, and its share of the measured ceiling", size=9, color="#57606a")
    axis.tick_params(labelsize=8, length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    marks = [("#1f5fbf", "Tandem"), ("#9aa4af", "peer"), ("#b3261e", "matrix ceiling, measured")]
    handles = [Patch(color=colour, label=label) for colour, label in marks]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of files with JSON lines")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file instead of printing them")
    parser.add_argument("--png", type=Path, help="draw the steps against the ceilings into this file")
    args = parser.parse_args(argv)
    lines = read_lines(args.folder)
    if args.markdown:
        write_atomic(args.markdown, page(lines))
    else:
        print(page(lines), end="")
    if args.png:
        figures = steps(lines)
        if not figures:
            raise UserError(f"{args.folder} holds no full step to draw; expected lines of bench.step or of a peer")
        draw(figures, ceilings_of(lines), args.png)


if __name__ == "__main__":
    run_main(main)
