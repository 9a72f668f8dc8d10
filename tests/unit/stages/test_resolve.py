"""Stage resolve, as DVC runs it: quick, and quiet about everything but mistakes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from config.paths import ROOT
from tests.unit.stages.test_profile import GOOD


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "p.yaml").write_text(GOOD)
    (tmp_path / "profiles" / "child.yaml").write_text("extends: p\nsft: {learning_rate: 1e-3}\n")
    (tmp_path / "params.yaml").write_text("profile: child\n")
    return tmp_path


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stages.resolve", *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
    )


def resolved(root: Path, name: str = "child") -> dict:
    return yaml.safe_load((root / "runs" / name / "profile.yaml").read_text())


def test_writes_the_profile_with_all_sections_and_the_sources(root: Path) -> None:
    started = time.monotonic()
    assert run(root).returncode == 0
    assert time.monotonic() - started < 3, "resolve runs at every `dvc repro`; half a second on an idle machine"
    values = resolved(root)
    assert values["sft"] == {"tokens": 640, "batch_tokens": 128, "micro_batch": 2, "learning_rate": 0.001}
    assert values["evaluate"] == values["run"] == {}, "DVC fails on a tracked section that is absent"
    assert list(values) == sorted(values) and "extends" not in values
    assert set(json.loads((root / "runs" / "child" / "sources.json").read_text())) == {"pretrain", "midtrain", "sft"}


def test_an_edit_of_the_parent_is_seen_and_a_moved_key_is_not(root: Path) -> None:
    run(root)
    before = (root / "runs" / "child" / "profile.yaml").read_bytes()
    lines = GOOD.splitlines(keepends=True)
    (root / "profiles" / "p.yaml").write_text("".join([*lines[5:], *lines[:5]]))
    run(root)
    assert (root / "runs" / "child" / "profile.yaml").read_bytes() == before
    (root / "profiles" / "p.yaml").write_text(GOOD.replace("vocab_size: 300", "vocab_size: 400"))
    run(root)
    assert resolved(root)["tokenizer"] == {"vocab_size": 400}


def test_overrides_apply_to_the_profile_that_params_name_alone(root: Path) -> None:
    (root / "params.yaml").write_text("profile: child\noverrides:\n  sft: {learning_rate: 0.5}\n")
    assert run(root, "child").returncode == 0 and resolved(root)["sft"]["learning_rate"] == 0.5
    assert run(root, "p").returncode == 0 and "learning_rate" not in resolved(root, "p")["sft"]


@pytest.mark.parametrize(
    ("params", "arguments", "expected"),
    [
        ("profile: chld\n", (), "error: no profile `chld`; did you mean `child`? There are: child, p\n"),
        ("profile: child\noverrides:\n  sft:\n    learning_rat: 1\n", (), "error: params.yaml:4: unknown key"),
        ("profile: child\noverrides:\n  sft:\n    batch_tokens: 100\n", (), "error: params.yaml:4: `sft`: batch"),
        ("profile: child\n", ("a", "b"), "error: usage: python -m stages.resolve [profile]\n"),
    ],
)
def test_a_mistake_is_one_line_and_status_1(root: Path, params: str, arguments: tuple, expected: str) -> None:
    (root / "params.yaml").write_text(params)
    done = run(root, *arguments)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(expected) and done.stderr.count("\n") == 1
    assert not (root / "runs").exists()
