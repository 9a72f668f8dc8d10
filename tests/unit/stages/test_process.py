"""A stage among other processes: one at a time, gone with its parent, and its work kept apart by fingerprint."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.errors import UserError
from config.files import read_json
from config.paths import ROOT, RunPaths
from stages import process
from stages.process import WorkFolder, fingerprint

VALUES = st.dictionaries(st.text(max_size=3), st.integers() | st.floats(allow_nan=False) | st.text(max_size=3))


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths("small", tmp_path)


def folders(paths: RunPaths) -> list[str]:
    return sorted(path.name for path in paths.work.iterdir() if path.is_dir())


@given(VALUES)
def test_a_fingerprint_does_not_depend_on_order(values: dict) -> None:
    turned = dict(reversed(values.items()))
    assert fingerprint({"a": 1, "b": values}) == fingerprint({"b": turned, "a": 1})


def test_a_fingerprint_is_stable_and_sees_every_change() -> None:
    parts = {"format": 1, "parameters": {"sft": {"learning_rate": 0.01}}}
    assert fingerprint(parts) == "876a77cc2f1d3d69", "another value would orphan every run in progress"
    assert len(fingerprint(parts)) == 16
    changed = [{"format": 2}, {"format": "1"}, {"parameters": {"sft": {"learning_rate": 0.02}}}, {"more": None}]
    assert len({fingerprint({**parts, **change}) for change in [{}, *changed]}) == 5


def test_a_fingerprint_is_the_same_in_another_process() -> None:
    code = "from stages.process import fingerprint; print(fingerprint({'b': [1, 0.1], 'a': 'é'}))"
    environment = os.environ | {"PYTHON876a77cc2f1d3d69SEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == fingerprint({"a": "é", "b": [1, 0.1]})


# The work folder


def test_a_fresh_folder_is_current_and_unfinished(paths: RunPaths) -> None:
    state = WorkFolder(paths, "sft", "aaaa").open("code 1")
    assert state == {"code": "code 1", "code_changed": False, "finished": False}
    assert read_json(paths.work / "current.json", "") == {"stage": "sft", "folder": "sft-aaaa"}


def test_an_unfinished_run_goes_on_and_says_when_the_code_changed(paths: RunPaths) -> None:
    work = WorkFolder(paths, "sft", "aaaa")
    work.open("code 1")
    (work.path / "progress").write_text("half")
    assert not work.open("code 1")["code_changed"]
    assert work.open("code 2")["code_changed"] and (work.path / "progress").read_text() == "half"
    assert work.open("code 1")["code_changed"], "once changed, the weights were made by two versions"


def test_a_finished_run_is_kept_while_its_code_is(paths: RunPaths, capsys) -> None:
    work = WorkFolder(paths, "sft", "aaaa")
    work.open("code 1")
    (work.path / "progress").write_text("all")
    work.finish()
    assert work.open("code 1")["finished"] and (work.path / "progress").exists()
    state = work.open("code 2")
    assert not state["finished"] and not state["code_changed"] and not (work.path / "progress").exists()
    assert "the code has changed since this run finished; it starts anew" in capsys.readouterr().out
    assert folders(paths) == ["sft-aaaa"]


def test_a_kill_while_a_finished_run_is_cleared_leaves_nothing_that_looks_unfinished(
    paths: RunPaths, monkeypatch
) -> None:
    work = WorkFolder(paths, "sft", "aaaa")
    work.open("code 1")
    (work.path / "checkpoints").mkdir()
    work.finish()

    def half(path: Path, **_: object) -> None:
        (Path(path) / "state.json").unlink(missing_ok=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(process.shutil, "rmtree", lambda path, **options: None if options else half(path))
        with pytest.raises(KeyboardInterrupt):
            work.open("code 2")
    state = work.open("code 2")
    assert not state["finished"] and not (work.path / "checkpoints").exists()


def test_the_newest_two_fingerprints_of_a_stage_are_kept(paths: RunPaths, capsys) -> None:
    WorkFolder(paths, "midtrain", "other").open("code")
    for number, mark in enumerate(("aaaa", "bbbb", "aaaa", "cccc")):
        work = WorkFolder(paths, "sft", mark)
        work.open("code")
        (work.path / "weights").write_bytes(bytes(3_000_000))
        os.utime(work.path, (number, number))
    WorkFolder(paths, "sft", "cccc").open("code")
    assert folders(paths) == ["midtrain-other", "sft-aaaa", "sft-cccc"]
    assert "removed work of older parameters, sft-bbbb, 3 MB" in capsys.readouterr().out


def test_a_second_process_is_refused_with_one_line_that_names_the_first(paths: RunPaths, monkeypatch) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from config.paths import RunPaths; from stages.process import WorkFolder\n"
        f"with WorkFolder(RunPaths('small', Path({str(paths.root)!r})), 'sft', 'aaaa').locked():\n"
        "    print('locked', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "locked\n"
        monkeypatch.setattr(process, "LOCK_WAIT_S", 0.3)
        other = WorkFolder(paths, "sft", "bbbb")  # whatever the fingerprint
        with pytest.raises(UserError) as caught, other.locked():
            pass
        assert str(caught.value) == f"process {holder.pid} already runs sft of small; wait for it or stop it"
        with WorkFolder(paths, "midtrain", "aaaa").locked(), WorkFolder(RunPaths("b", paths.root), "sft", "a").locked():
            pass  # another stage, another profile
        monkeypatch.setattr(process, "LOCK_WAIT_S", 20)
        os.kill(holder.pid, signal.SIGKILL)
        started = time.monotonic()
        with other.locked():
            assert time.monotonic() - started < 5, "the lock goes with its holder, and the wait ends"
    finally:
        holder.kill()
        holder.communicate()


def test_the_lock_is_free_again_after_an_error(paths: RunPaths) -> None:
    work = WorkFolder(paths, "sft", "aaaa")
    with pytest.raises(RuntimeError), work.locked():
        raise RuntimeError
    with work.locked():
        pass


# Parent and child

CHILD = "import os, sys, time; from stages.process import die_with_parent; die_with_parent(); {then}"
SLEEP = "print(os.getpid(), flush=True); time.sleep(60)"
VARIABLES = ("DVC_STAGE", "DVC_ROOT", "LOCAL_RANK", "TANDEM_PARENT")
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill_the_parent(then: str, environment: dict[str, str]) -> int:
    """Start a parent with a child that does `then`, kill -9 the parent, and return the child's pid."""
    child = CHILD.format(then=then)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(child=child)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={key: value for key, value in os.environ.items() if key not in VARIABLES} | environment,
    )
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    return pid


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PDEATHSIG is Linux's")


@needs_linux
@pytest.mark.parametrize("variable", ["DVC_STAGE", "DVC_ROOT", "LOCAL_RANK"])
def test_a_child_of_dvc_or_torchrun_dies_with_it(variable: str) -> None:
    assert gone_within(kill_the_parent(SLEEP, {variable: "0"}), 10)


@needs_linux
def test_the_bond_survives_exec() -> None:
    """stages.launch becomes torchrun or the stage by exec."""
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    then = f"os.execv(sys.executable, [sys.executable, '-c', {code!r}])"
    assert gone_within(kill_the_parent(then, {"DVC_ROOT": "x"}), 10)


@needs_linux
def test_a_child_whose_parent_is_gone_already_ends(tmp_path: Path) -> None:
    """Adopted by init before it could ask the kernel for anything; python.sh noted who the parent was."""
    child = CHILD.format(then=f"open({str(tmp_path / 'went on')!r}, 'w')")
    waits = f"import time, os; time.sleep(0.5); print(os.getppid(), flush=True); {child}"
    note = "os.environ['TANDEM_PARENT'] = str(os.getpid())"
    script = f"import os, subprocess, sys; {note}; subprocess.Popen([sys.executable, '-c', {waits!r}])"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=os.environ | {"DVC_ROOT": "x"}, stdout=subprocess.PIPE, text=True
    )
    assert not (tmp_path / "went on").exists(), f"adopted by process {done.stdout}"


@needs_linux
def test_a_trainer_started_from_a_shell_may_outlive_it() -> None:
    pid = kill_the_parent(SLEEP, {})
    try:
        assert not gone_within(pid, 0.5)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_start_wants_one_profile(monkeypatch) -> None:
    monkeypatch.setattr(process, "die_with_parent", lambda: None)
    monkeypatch.setattr(sys, "argv", ["stages.shard", "tiny"])
    assert process.start("shard") == RunPaths("tiny")
    monkeypatch.setattr(sys, "argv", ["stages.shard"])
    with pytest.raises(UserError, match=r"usage: python -m stages\.shard <profile>"):
        process.start("shard")
