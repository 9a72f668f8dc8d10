"""Checkpoints: bit for bit, whole or passed over, and never the last one lost."""

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from config.errors import UserError
from tests.small_job import ALONE, same, small_job, weights
from training import checkpoint
from training.checkpoint import Checkpoints, Position
from training.loop import Job


def stir(job: Job, seed: int) -> None:
    """Random weights, optimizer state and counters, all different with `seed`."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*job.model.parameters(), *job.optimizer.state().values()):
            tensor.normal_(generator=generator)
    job.optimizer.steps = seed


def saved(tmp_path: Path, *steps: int, keep: int = 5) -> Job:
    job = small_job(tmp_path, keep=keep)
    for step in steps:
        stir(job, step)
        job.checkpoints.save(job.model, job.optimizer, Position(step, step / 8))
    return job


def folder_of(job: Job, step: int) -> Path:
    return job.checkpoints.folder / f"step-{step:08d}"


def loaded(tmp_path: Path, step: int) -> bool:
    """Whether a fresh job restores exactly what `stir(step)` made."""
    fresh, expected = small_job(tmp_path, seed=9), small_job(tmp_path)
    stir(expected, step)
    position = fresh.checkpoints.load_newest(fresh.model, fresh.optimizer)
    return (
        position == Position(step, step / 8)
        and same(weights(fresh), weights(expected))
        and fresh.optimizer.steps == step
    )


def test_round_trip_bit_for_bit(tmp_path: Path) -> None:
    saved(tmp_path, 7)
    assert loaded(tmp_path, 7)


def test_the_generators_resume(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    torch.manual_seed(3)
    random.seed(3)
    torch.rand(5), random.gauss(0, 1)
    job.checkpoints.save(job.model, job.optimizer, Position(1))
    expected = torch.rand(3).tolist(), random.random(), random.gauss(0, 1)
    torch.manual_seed(4)
    random.seed(4)
    job.checkpoints.load_newest(job.model, job.optimizer)
    assert (torch.rand(3).tolist(), random.random(), random.gauss(0, 1)) == expected


def test_nothing_saved_is_nothing_loaded(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    before = weights(job)
    assert job.checkpoints.load_newest(job.model, job.optimizer) is None
    assert same(weights(job), before) and not job.checkpoints.folder.exists()


def test_the_newest_is_loaded_and_the_oldest_are_pruned(tmp_path: Path) -> None:
    job = saved(tmp_path, 3, 6, 9, 12, keep=2)
    assert job.checkpoints.steps() == [9, 12]
    assert sorted(path.name for path in job.checkpoints.folder.iterdir()) == [
        "checkpoints.json",
        "step-00000009",
        "step-00000012",
    ]
    assert loaded(tmp_path, 12)


def test_strangers_in_the_folder_do_not_matter(tmp_path: Path) -> None:
    job = saved(tmp_path, 3, 6, keep=2)
    folder = job.checkpoints.folder
    for name in ("model_000200_backup", "step-99999999", "step-abc", "step-00000009 (copy)"):
        shutil.copytree(folder_of(job, 3), folder / name)
    (folder / "step-00000500").write_text("a file")
    assert loaded(tmp_path, 6)
    stir(job, 9)
    job.checkpoints.save(job.model, job.optimizer, Position(9, 9 / 8))
    assert loaded(tmp_path, 9)
    assert (folder / "model_000200_backup").exists() and not folder_of(job, 3).exists()


def damage(folder: Path, how: str) -> None:
    data = next(folder.glob("*.distcp"))
    if how == "flipped bit":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    elif how == "truncated":
        os.truncate(data, data.stat().st_size - 100)
    elif how == "file missing":
        data.unlink()
    elif how == "manifest missing":
        (folder / "manifest.json").unlink()
    elif how == "manifest truncated":
        os.truncate(folder / "manifest.json", 40)
    else:
        shutil.rmtree(folder)


KINDS = ["flipped bit", "truncated", "file missing", "manifest missing", "manifest truncated"]


@pytest.mark.parametrize("how", [*KINDS, "folder missing"])
def test_a_damaged_newest_is_named_and_the_one_before_loaded(tmp_path: Path, capsys, how: str) -> None:
    job = saved(tmp_path, 3, 6)
    damage(folder_of(job, 6), how)
    assert loaded(tmp_path, 3)
    said = capsys.readouterr().out
    assert "checkpoint passed over" in said and "step-00000006" in said and said.count("\n") == 1


def test_with_none_left_whole_the_error_says_how_to_start_anew(tmp_path: Path) -> None:
    job = saved(tmp_path, 3, 6)
    damage(folder_of(job, 3), "truncated")
    damage(folder_of(job, 6), "file missing")
    with pytest.raises(UserError, match="no whole checkpoint is left") as caught:
        job.checkpoints.load_newest(job.model, job.optimizer)
    assert "\n" not in str(caught.value) and str(job.checkpoints.folder) in str(caught.value)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_later_one_never_pushes_out_a_whole_one(tmp_path: Path, keep: int) -> None:
    job = saved(tmp_path, 3, 6)
    damage(folder_of(job, 6), "flipped bit")
    again = small_job(tmp_path, keep=keep)
    again.checkpoints.load_newest(again.model, again.optimizer)
    stir(again, 5)
    again.checkpoints.save(again.model, again.optimizer, Position(5, 5 / 8))
    assert again.checkpoints.steps() == [3, 5][-keep:]
    assert not folder_of(job, 6).exists()
    assert loaded(tmp_path, 5)


@pytest.mark.parametrize(("fingerprint", "made"), [("other", 1), ("print", 2)])
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, monkeypatch, fingerprint: str, made: int) -> None:
    job = saved(tmp_path, 3)
    monkeypatch.setattr(checkpoint, "FORMAT", made)
    other = Checkpoints(job.checkpoints.folder, fingerprint, 2, ALONE)
    with pytest.raises(UserError, match="was made by another run") as caught:
        other.load_newest(job.model, job.optimizer)
    assert "\n" not in str(caught.value) and "delete" in str(caught.value)


# Interruptions: killed at any moment of a save, the last checkpoint is whole and the next save works.


@pytest.mark.parametrize("moment", ["dcp.save", "sha256_of", "rename", "write_json 1", "write_json 2"])
def test_killed_in_a_save(tmp_path: Path, monkeypatch, moment: str) -> None:
    job = saved(tmp_path, 3)
    calls = 0

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def die_at_ours(path: Path, target: Path) -> Path:
        return die() if path.name == ".step-00000006.tmp" else rename(path, target)

    def die_at_nth(path: Path, value: object) -> None:
        nonlocal calls
        calls += 1
        if calls == int(moment[-1]):
            die()
        write_json(path, value)

    write_json, rename = checkpoint.write_json, Path.rename
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process cleans nothing up
        if moment == "dcp.save":
            patch.setattr(dcp, "save", die)
        elif moment == "sha256_of":
            patch.setattr(checkpoint, "sha256_of", die)
        elif moment == "rename":
            patch.setattr(Path, "rename", die_at_ours)
        else:
            patch.setattr(checkpoint, "write_json", die_at_nth)
        stir(job, 6)
        with pytest.raises(KeyboardInterrupt):
            job.checkpoints.save(job.model, job.optimizer, Position(6, 6 / 8))
    assert loaded(tmp_path, 3)
    job.checkpoints.save(job.model, job.optimizer, Position(6, 6 / 8))
    assert loaded(tmp_path, 6)
    assert job.checkpoints.steps() == [3, 6]


@pytest.mark.parametrize("where", ["fsync", "mkdir"])
def test_a_full_disk_is_one_line_and_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch, where: str) -> None:
    job = saved(tmp_path, 3)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync", full) if where == "fsync" else (Path, "mkdir", full)))
        stir(job, 6)
        with pytest.raises(UserError, match="is full") as caught:
            job.checkpoints.save(job.model, job.optimizer, Position(6))
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in job.checkpoints.folder.iterdir()) == ["checkpoints.json", "step-00000003"]
    assert loaded(tmp_path, 3)


def test_another_failure_is_not_called_a_full_disk(tmp_path: Path, monkeypatch) -> None:
    job = saved(tmp_path, 3)

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checkpoint, "sha256_of", broken)
    with pytest.raises(OSError, match="Input/output error"):
        job.checkpoints.save(job.model, job.optimizer, Position(6))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small tmpfs takes root and the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_really_is_full(small_disk: Path) -> None:
    """Fill the disk so far that another checkpoint doesn't fit, at several places where it may end."""
    job = saved(small_disk, 3)
    size = sum(path.stat().st_size for path in folder_of(job, 3).iterdir())
    for part in (0.05, 0.5, 0.95, 1.0):
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(free - int(part * size)))
        stir(job, 6)
        with pytest.raises(UserError, match="is full") as caught:
            job.checkpoints.save(job.model, job.optimizer, Position(6, 6 / 8))
        assert "\n" not in str(caught.value)
        assert loaded(small_disk, 3)
        ballast.unlink()
    job.checkpoints.save(job.model, job.optimizer, Position(6, 6 / 8))
    assert loaded(small_disk, 6)
