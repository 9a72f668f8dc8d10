"""Stage pretrain on two processes through the launcher, killed and started again."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from tests import little_repository
from training.telemetry import read_events

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """The small repository, with two processes and more to do."""
    root = little_repository.make(tmp_path_factory.mktemp("repository"))
    path = root / "runs" / "little" / "profile.yaml"
    text = re.sub(r"(?ms)^pretrain:.*?tokens: 1024", lambda found: found[0].replace("1024", "15360"), path.read_text())
    text = text.replace("checkpoint_updates: 3", "checkpoint_updates: 20")
    path.write_text(text.replace("\nrun:\n", "\nrun:\n  processes: 2\n"))
    return root


def start(root: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "stages.launch", "pretrain", "little"],
        cwd=root,
        env=os.environ | {"OMP_NUM_THREADS": "1", "DVC_ROOT": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def running_in(root: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == root and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def wait_for(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def logged(root: Path) -> list[int]:
    files = list((root / ".work" / "little").glob("pretrain-*/events.jsonl"))
    return [event["step"] for file in files for event in read_events(file) if event["event"] == "log"]


def test_killed_with_9_it_leaves_nothing_behind_and_ends_as_if_undisturbed(repository: Path) -> None:
    first = start(repository)
    wait_for(lambda: max(logged(repository), default=0) >= 30, 60)
    first.kill()
    first.communicate()
    wait_for(lambda: not running_in(repository), 10)
    second = start(repository)
    said, _ = second.communicate(timeout=100)
    assert second.returncode == 0, said
    assert "goes on from update" in said
    events = read_events(repository / "runs" / "little" / "events" / "pretrain.jsonl")
    assert [event["step"] for event in events if event["event"] == "log"] == list(range(2, 121, 2))
    assert events[0]["event"] == "start" and events[0]["ranks"] == 2
    weights = load_file(repository / "runs" / "little" / "pretrain" / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_sigterm_saves_and_stops_all(repository: Path) -> None:
    path = repository / "runs" / "little" / "profile.yaml"
    path.write_text(path.read_text().replace("\npretrain:\n", "\npretrain:\n  seed: 1\n"))
    before = set((repository / ".work" / "little").glob("pretrain-*"))
    process = start(repository)
    work = repository / ".work" / "little"

    def fresh() -> list[Path]:
        return [folder for folder in work.glob("pretrain-*") if folder not in before]

    def far_enough() -> bool:
        files = [folder / "events.jsonl" for folder in fresh()]
        return any(event["event"] == "log" for file in files if file.exists() for event in read_events(file))

    wait_for(far_enough, 60)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0 and "SIGTERM received: saved at update" in said
    wait_for(lambda: not running_in(repository), 10)
    assert list(fresh()[0].glob("checkpoints/step-*/manifest.json"))


def test_a_mistake_is_one_line_however_many_processes(repository: Path) -> None:
    (repository / "runs" / "little" / "shards" / "pretrain.json").rename(repository / "kept.json")
    process = start(repository)
    said, _ = process.communicate(timeout=60)
    (repository / "kept.json").rename(repository / "runs" / "little" / "shards" / "pretrain.json")
    assert process.returncode == 1
    assert said == "error: runs/little/shards/pretrain.json is missing; run `dvc repro`\n"


def test_a_killed_rank_is_named_and_ends_the_run(repository: Path) -> None:
    path = repository / "runs" / "little" / "profile.yaml"
    path.write_text(path.read_text().replace("\nmodel:\n", "\nmodel:\n  softcap: 14.0\n"))
    process = start(repository)
    wait_for(lambda: sum(name_of(pid) == "pretrain" for pid in running_in(repository)) == 2, 60)
    os.kill(max(pid for pid in running_in(repository) if name_of(pid) == "pretrain"), signal.SIGKILL)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"error: rank \d of pretrain was killed \(SIGKILL\)", said) and "Traceback" not in said
    wait_for(lambda: not running_in(repository), 10)


def name_of(pid: int) -> str:
    """`launch` or `pretrain`: which stage module a process runs."""
    try:
        return "pretrain" if "stages.pretrain" in psutil.Process(pid).cmdline() else "launch"
    except psutil.Error:
        return ""
