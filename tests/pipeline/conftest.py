"""One small pipeline, trained once, for all tests here to start from."""

from pathlib import Path

import pytest

from tests.pipeline.clone import MINI, Clone


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Clone:
    """A clone in which `dvc repro` has run the mini profile to its end. Not to be changed: `copy` it."""
    clone = Clone.make(tmp_path_factory.mktemp("trained") / "clone")
    clone.profile("mini", MINI)
    clone.params("mini")
    clone.commit()
    assert clone.repro().stages[-1] == "chat"
    return clone


@pytest.fixture
def fresh(tmp_path: Path) -> Clone:
    """A clone with the mini profile, in which nothing has run."""
    clone = Clone.make(tmp_path / "clone")
    clone.profile("mini", MINI)
    clone.params("mini")
    return clone
