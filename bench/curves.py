"""Loss curves side by side: the JSON lines of runs on data, as a Markdown table and a picture.

    python -m bench.curves docs/results --markdown losses.md --png docs/losses.png

Reads a folder as bench.table does, and of its lines those with `losses`: of bench.step with --data, or of a peer. The
table has the mean over the last fifty updates of each run; the picture the curves, and each recipe's distance from bf16
of the same seed.
"""

import argparse
import statistics
from pathlib import Path

from bench.table import Line, markdown, read_lines
from config.errors import UserError, run_main
from config.files import write_atomic

LAST = 50  # updates, of which the mean is taken
SMOOTHED = 25  # updates, of a moving average in the picture
COLOURS = ("#1f5fbf", "#c4561b", "#0b8065", "#8250a8", "#b3261e", "#6b7785")
BASE = "bf16"


def name_of(line: Line) -> str:
    return line["peer"] if "peer" in line else line["precision"]


def means(lines: list[Line]) -> dict[str, dict[int, float]]:
    """Mean loss over the last updates, by recipe (or peer) and seed."""
    found: dict[str, dict[int, float]] = {}
    for line in lines:
        found.setdefault(name_of(line), {})[line.get("seed", 0)] = statistics.mean(line["losses"][-LAST:])
    return found


def table(lines: list[Line]) -> str:
    """A row a recipe: its mean by seed, and how far it is from bf16's over the seeds that both have."""
    found = means(lines)
    base = found.get(BASE, {})
    seeds = sorted({seed for runs in found.values() for seed in runs})
    rows = []
    for name, runs in found.items():
        shared = [seed for seed in runs if seed in base]
        apart = statistics.mean(runs[seed] / base[seed] - 1 for seed in shared) if shared and name != BASE else None
        row = {"recipe": f"`{name}`"} | {
            f"seed {seed}": f"{runs[seed]:.4f}" if seed in runs else None for seed in seeds
        }
        rows.append(row | {f"against `{BASE}`": None if apart is None else f"{apart:+.2%}"})
    return markdown(rows)


def smoothed(losses: list[float]) -> list[float]:
    """The mean of each SMOOTHED neighbouring updates."""
    return [statistics.mean(losses[at : at + SMOOTHED]) for at in range(len(losses) - SMOOTHED + 1)]


def draw(lines: list[Line], path: Path) -> None:
    """The curves above, and below them the distances from bf16."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(3, 2))
    names = list(dict.fromkeys(map(name_of, lines)))
    bases = {line.get("seed", 0): line["losses"] for line in lines if name_of(line) == BASE}
    for line in lines:
        name, seed, losses = name_of(line), line.get("seed", 0), line["losses"]
        style = {"color": COLOURS[names.index(name) % len(COLOURS)], "lw": 1, "ls": "-" if seed == 0 else "--"}
        updates = range(SMOOTHED, len(losses) + 1)
        above.plot(updates, smoothed(losses), label=name if seed == 0 else None, **style)
        if name != BASE and len(bases.get(seed, ())) == len(losses):
            apart = [mine - base for mine, base in zip(losses, bases[seed], strict=True)]
            below.plot(updates, smoothed(apart), **style)
    above.set_ylabel(f"loss, nats a token, mean of {SMOOTHED}", size=9)
    above.legend(fontsize=8, frameon=False)
    below.axhline(0, color="#1f2328", lw=0.6)
    below.set_ylabel(f"less {BASE}'s, mean of {SMOOTHED}", size=9)
    below.set_ylim(-0.1, 0.1)
    below.set_xlabel("updates; dashed: second seed", size=9)
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of files with JSON lines")
    parser.add_argument("--markdown", type=Path, help="write the table to this file instead of printing it")
    parser.add_argument("--png", type=Path, help="draw the curves into this file")
    args = parser.parse_args(argv)
    lines = [line for line in read_lines(args.folder) if len(line.get("losses", ())) >= LAST]
    if not lines:
        raise UserError(f"{args.folder} holds no run on data of {LAST} updates; run bench.step with --data into it")
    if args.markdown:
        write_atomic(args.markdown, table(lines) + "\n")
    else:
        print(table(lines))
    if args.png:
        draw(lines, args.png)


if __name__ == "__main__":
    run_main(main)
