"""One small pipeline, trained once, for all tests here to start from; and smoke, which runs beside them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.clone import MINI, Clone, Done


@pytest.fixture(scope="session")
def smoke_started(tmp_path_factory) -> Iterator[tuple[Clone, subprocess.Popen, list[Path]]]:
    """`dvc repro` of the smoke profile, under way, and the files that it writes to."""
    clone = Clone.make(tmp_path_factory.mktemp("smoke") / "clone")
    clone.params("smoke")
    clone.commit()
    logs = [clone.path.with_name(name) for name in ("out", "err")]
    with logs[0].open("w") as out, logs[1].open("w") as err:
        process = clone.start(sys.executable, "-m", "dvc", "repro", stdout=out, stderr=err)
    yield clone, process, logs
    process.kill()
    process.wait()


@pytest.fixture(scope="session", autouse=True)
def _smoke_early(request) -> None:
    """Smoke trains on one core: it is started before the other tests, if its own are to come."""
    if any("smoke" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("smoke_started")


@pytest.fixture(scope="session")
def smoke(smoke_started: tuple[Clone, subprocess.Popen, list[Path]]) -> tuple[Clone, Done]:
    """A clone in which `dvc repro` has run the smoke profile, and what it said."""
    clone, process, logs = smoke_started
    done = Done(process.wait(timeout=500), *(log.read_text(encoding="utf-8") for log in logs))
    assert done.status == 0, done.text
    return clone, done


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
