"""The command that shows the data, and the stage that keeps what it found for the page."""

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from config.errors import UserError
from stages import peek, report


def test_it_shows_sources_lengths_and_rows(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peek.main()
    shown = capsys.readouterr().out
    for told in (
        "pretrain",
        "midtrain",
        "sft",
        "builtin:smoke_chats",
        "100.0 %",
        "bytes a token",
        "█",
        "┃",
        "row 1 of 3",
    ):
        assert told in shown, told


def test_without_shards_it_says_so_and_without_a_tokenizer_what_to_do(repository: Path, capsys) -> None:
    shutil.rmtree(repository / "runs" / "little" / "shards")
    peek.main()
    assert "No shards yet" in capsys.readouterr().out
    shutil.rmtree(repository / "runs" / "little" / "tokenizer")
    with pytest.raises(UserError, match="run dvc repro"):
        peek.main()


def test_what_is_learned_has_a_colour_of_its_own() -> None:
    console = Console(force_terminal=True, color_system="truecolor", width=200)
    with console.capture() as capture:
        console.print(
            peek.row_text([("document", ""), ("mark", "<|user_start|>"), ("read", "a [b]"), ("learned", "c")])
        )
    text = capture.get()
    assert "\x1b[1;35m┃" in text and "\x1b[32mc" in text and "a [b]" in text
    assert text.index("a [b]") < text.index("\x1b[32mc")


def test_the_report_keeps_what_it_found_and_goes_on_without(repository: Path) -> None:
    (repository / "runs" / "little" / "report.html").unlink(missing_ok=True)
    report.main()
    found = json.loads((repository / "runs" / "little" / "peek.json").read_text())
    assert set(found["mixtures"]) == {"pretrain", "midtrain", "sft"}
    page = (repository / "runs" / "little" / "report.html").read_text()
    assert "packed rows" in page and "builtin:smoke_chats" in page
    shutil.rmtree(repository / "runs" / "little" / "tokenizer")
    report.main()
    assert "could not be looked at" in (repository / "runs" / "little" / "report.html").read_text()
