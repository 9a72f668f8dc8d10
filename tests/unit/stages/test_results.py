"""What follows training: evaluate, report and chat read a finished run and write their files."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from config.errors import UserError
from config.paths import TRAINING_STAGES, RunPaths
from stages import chat, evaluate, report
from stages.training import run_stage
from tests.little_repository import current

PATHS = RunPaths("little")


@pytest.fixture(scope="module")
def trained(made: Path, tmp_path_factory) -> Path:
    """A repository with all three stages done."""
    root = tmp_path_factory.mktemp("trained") / "repository"
    shutil.copytree(made, root, symlinks=True)
    with current(root):
        for stage in TRAINING_STAGES:
            run_stage(stage)
    return root


@pytest.fixture
def here(trained: Path, monkeypatch) -> Path:
    monkeypatch.chdir(trained)
    monkeypatch.setattr(sys, "argv", ["", "little"])
    return trained


def ask_for(**values: object) -> None:
    profile = yaml.safe_load(PATHS.resolved.read_text())
    profile["evaluate"] = values
    PATHS.resolved.write_text(yaml.safe_dump(profile))


def test_evaluate_writes_shares_floors_and_bits_per_byte(here: Path) -> None:
    ask_for(tasks={"greetings": 0.5, "add_2digit": 0.9}, prompts=6, max_tokens=4)
    evaluate.main()
    results = json.loads(PATHS.metrics("evaluate").read_text())
    assert {name: figures["floor"] for name, figures in results["tasks"].items()} == {
        "greetings": 0.5,
        "add_2digit": 0.9,
    }
    for figures in results["tasks"].values():
        assert figures["n"] >= 6 and 0 <= figures["share"] <= 1 and figures["samples"]
    for stage in ("pretrain", "sft"):
        figures = results["bits_per_byte"][stage]
        assert 1 < figures["bits_per_byte"] < 12 and figures["bytes"] > 0 and figures["xz_bits_per_byte"] > 0


def test_evaluate_gives_the_same_figures_again(here: Path) -> None:
    ask_for(tasks={"greetings": 0.5}, prompts=6, max_tokens=4)
    evaluate.main()
    first = PATHS.metrics("evaluate").read_bytes()
    evaluate.main()
    assert PATHS.metrics("evaluate").read_bytes() == first


def test_an_unknown_task_is_one_line(here: Path) -> None:
    ask_for(tasks={"add_2digits": 0.5})
    with pytest.raises(UserError, match=r"evaluate\.tasks names `add_2digits`; there are: .*add_2digit") as caught:
        evaluate.main()
    assert "\n" not in str(caught.value)


def test_chat_answers_and_report_is_a_page(here: Path, capsys) -> None:
    ask_for(tasks={"greetings": 0.5}, prompts=4, max_tokens=4, chat_prompts=["What is 3 + 4?"])
    evaluate.main()
    report.main()
    page = (PATHS.run / "report.html").read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    chat.main()
    (said,) = json.loads((PATHS.run / "chat.json").read_text())["chats"]
    assert said["prompt"] == "What is 3 + 4?" and isinstance(said["reply"], str)
    assert "python -m app.chat --run runs/little/sft" in capsys.readouterr().out
