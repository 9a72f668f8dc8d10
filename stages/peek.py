"""A look at a profile's data in the terminal: sources and shares, compression, lengths, a few packed rows in colour.

    python -m stages.peek <profile>

Works once the tokenizer is there; shares and rows are shown once the shards are. Writes nothing but what sources that
have to be downloaded leave in the cache folder.
"""

import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from config.errors import run_main
from config.paths import TRAINING_STAGES
from config.profile import read_section
from data.config import DataConfig
from data.peek import look
from data.text import readable_size
from data.tokenizer import Tokenizer
from stages.process import start

STYLES = {"document": "bold magenta", "mark": "cyan", "learned": "green", "read": "grey62", "padding": "red"}
BAR = 40  # characters of the longest one


def main() -> None:
    paths = start("peek")
    data = read_section(paths, "data", DataConfig)
    tokenizer = Tokenizer.load(paths.tokenizer)
    found = look(data, tokenizer, {stage: paths.manifest(stage) for stage in TRAINING_STAGES})
    piped = not sys.stdout.isatty()  # then nobody's window folds the lines, and a search finds the names whole
    console = Console(width=160 if piped else None)
    for mixture, figures in found["mixtures"].items():
        console.rule(f"[bold]{mixture}")
        console.print(sources_table(figures["sources"], compared=found["gpt2"] is None))
        console.print(histogram(figures["lengths"]))
        if figures["rows"]:
            console.print(legend())
        else:
            console.print(
                "No shards yet, so there are neither shares nor rows to show: run dvc repro shard", style="dim"
            )
        for number, row in enumerate(figures["rows"], 1):
            console.print(Text.assemble((f"\nrow {number} of {len(figures['rows'])}: ", "bold"), row_text(row)))
    if found["gpt2"]:
        console.print(Text(found["gpt2"], "dim"))


def sources_table(sources: list[dict[str, Any]], compared: bool) -> Table:
    """A row a source; `compared` adds GPT-2's column."""
    table = Table(box=None, pad_edge=False)
    table.add_column("source", overflow="fold")
    columns = ["weight", "share of tokens", "looked at", "bytes a token", *(["GPT-2's"] if compared else [])]
    for name in columns:
        table.add_column(name, justify="right")
    for source in sources:
        share = "" if source["share"] is None else f"{100 * source['share']:.1f} %"
        seen = f"{'all ' if source['whole'] else 'first '}{source['documents']:,}, {readable_size(source['bytes'])}"
        cells = [f"{source['weight']:g}", share, seen, _ratio(source["bytes_per_token"])]
        if compared:
            cells.append(_ratio(source["gpt2_bytes_per_token"]))
        table.add_row(Text(source["source"]), *cells)
    return table


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def histogram(lengths: list[list[int]]) -> Text:
    """Documents by their number of tokens, a line for each doubling."""
    most = max((count for *_, count in lengths), default=0)
    lines = ["\ntokens a document"]
    first = next((at for at, (*_, count) in enumerate(lengths) if count), 0)
    for low, high, count in lengths[first:]:
        lines.append(f"{low:>11,} – {high:<11,} {'█' * round(BAR * count / most) if most else ''} {count:,}")
    return Text("\n".join(lines))


def legend() -> Text:
    """What the colours of a row mean."""
    return Text.assemble(
        "\n",
        ("┃ a document begins", STYLES["document"]),
        "  ",
        ("learned", STYLES["learned"]),
        "  ",
        ("only read", STYLES["read"]),
        "  ",
        ("<|mark|>", STYLES["mark"]),
    )


def row_text(segments: list[tuple[str, str]]) -> Text:
    """A packed row in colour."""
    text = Text()
    for kind, words in segments:
        shown = {"document": "┃", "padding": f"[{words} of padding]"}.get(kind, words)
        text.append(shown, STYLES[kind])
    return text


if __name__ == "__main__":
    run_main(main)
