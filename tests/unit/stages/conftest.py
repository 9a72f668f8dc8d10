"""A small repository to run stages in."""

import shutil
import sys
from pathlib import Path

import pytest

from tests import little_repository


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """As after `dvc repro shard`; not to be changed."""
    return little_repository.make(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def repository(made: Path, tmp_path: Path, monkeypatch) -> Path:
    """A copy to train in, and the current folder."""
    root = tmp_path / "repository"
    shutil.copytree(made, root, symlinks=True)
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "argv", ["", "little"])
    return root
