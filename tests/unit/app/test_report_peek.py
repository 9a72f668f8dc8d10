"""The report's look at the data: what peek.json says, shown and harmless."""

import json
from pathlib import Path

import pytest

from app.report_peek import peek
from app.run_record import read_run

LOOK = {
    "gpt2": None,
    "mixtures": {
        "sft": {
            "sources": [
                {"source": "chats/<a>", "weight": 1.0, "whole": False, "documents": 500, "share": 0.25, "bytes": 9}
                | {"tokens": 3, "bytes_per_token": 3.217, "gpt2_bytes_per_token": 4.1}
            ],
            "lengths": [[1, 1, 0], [2, 3, 40], [4, 7, 10]],
            "rows": [[["document", ""], ["mark", "<|user_start|>"], ["read", "Hi <b>"], ["learned", "Hello!"]]],
        }
    },
}


def shown(run: Path, look: object) -> str:
    (run / "peek.json").write_text(json.dumps(look))
    return peek(read_run(run))


def test_what_is_there_is_shown(tmp_path: Path) -> None:
    page = shown(tmp_path, LOOK)
    for told in ("chats/&lt;a&gt;", "25.0", "the first 500", "3.22", "4.10", "2 – 3", "&lt;|user_start|&gt;"):
        assert told in page, told
    assert '<span class="read">Hi &lt;b&gt;</span><span class="learned">Hello!</span>' in page
    assert "1 – 1" not in page, "empty bins before the first document are left out"


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    assert "There is no peek.json" in peek(read_run(tmp_path))
    assert "could not be looked at: text: no such file" in shown(tmp_path, {"error": "text: no such file"})
    assert "is not here: put" in shown(
        tmp_path, LOOK | {"gpt2": "GPT-2's tokenizer is not here: put it there"}
    ).replace("&#x27;", "'")


@pytest.mark.parametrize("length", [10, 5000])
def test_long_rows_are_cut(tmp_path: Path, length: int) -> None:
    look = {"mixtures": {"sft": {"rows": [[["learned", "x" * length], ["read", "y" * length]]]}}}
    page = shown(tmp_path, look)
    assert ("x" * length in page) == (length == 10)
    assert len(page) < 3500
