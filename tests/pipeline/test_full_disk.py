"""A disk that is full: one line that says so, and what was there before is still there. On small tmpfs mounts."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.pipeline.clone import MINI, Clone
from tests.pipeline.test_bad_input import files, refused

pytestmark = pytest.mark.pipeline


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    """A file system of so many kB at `folder`; skips the test where mounting is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def enlarge(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)


@pytest.fixture
def clone(trained: Clone, tmp_path: Path) -> Clone:
    return trained.copy(tmp_path / "clone")


def test_the_folder_of_shards(clone: Clone) -> None:
    small = clone.path / "small"
    clone.profile("full", MINI | {"data": MINI["data"] | {"shard_folder": "small"}})
    assert clone.python("stages.resolve", "full").status == 0
    assert clone.python("stages.tokenize", "full").status == 0
    before = files(clone)
    with small_disk(small, 40):
        refused(clone.python("stages.shard", "full"), str(small), "disk full", "data.shard_folder")
        assert not list(small.glob(".writing-*")), "nothing half-written"
        assert before.items() <= files(clone).items()


def test_the_work_folder_while_training(trained: Clone, clone: Clone) -> None:
    """One checkpoint fits and the next doesn't: with room made, training goes on from the one."""
    work = clone.paths("mini").work
    before = files(clone)
    with small_disk(work, 1100):
        refused(clone.python("stages.launch", "pretrain", "mini"), "checkpoints is full", "free some room")
        assert files(clone) == before
        enlarge(work)
        done = clone.python("stages.launch", "pretrain", "mini")
        assert done.status == 0 and "goes on from update 5\n" in done.out, done.text
    assert clone.weights("mini") == trained.weights("mini")


def test_a_work_folder_without_any_room(clone: Clone) -> None:
    work = clone.paths("mini").work
    with small_disk(work, 4):
        refused(clone.python("stages.launch", "pretrain", "mini"), str(work.relative_to(clone.path)), "is full")


def test_the_folder_of_runs_when_the_weights_are_published(trained: Clone, clone: Clone) -> None:
    """What was trained stays in the work folder: with room made, it has only to be published."""
    run = clone.paths("mini").run
    with small_disk(run, 150):
        for name in ("profile.yaml", "tokenizer/tokenizer.json", "shards/pretrain.json"):
            (run / name).parent.mkdir(exist_ok=True)
            (run / name).write_bytes((trained.paths("mini").run / name).read_bytes())
        refused(clone.python("stages.launch", "pretrain", "mini"), "runs/mini/pretrain", "No space left")
        assert not list((run / "pretrain").iterdir())
        enlarge(run)
        done = clone.python("stages.launch", "pretrain", "mini")
        assert done.status == 0 and "pretrain 40/40" not in done.out, done.text
        weights = [each.paths("mini").model("pretrain") / "model.safetensors" for each in (clone, trained)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
