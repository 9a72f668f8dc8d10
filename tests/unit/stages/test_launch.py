"""The launcher: one process becomes the stage itself, several go through torchrun."""

import os
import sys
from pathlib import Path

import pytest
import yaml

from config.errors import UserError
from stages import launch


@pytest.fixture
def command(repository: Path, monkeypatch):
    """What is executed, or handed to torchrun, for a number of processes."""

    def run(processes: int) -> list[str]:
        profile = yaml.safe_load(Path("runs/little/profile.yaml").read_text())
        profile["run"]["processes"] = processes
        Path("runs/little/profile.yaml").write_text(yaml.safe_dump(profile))
        executed: list[list[str]] = []
        monkeypatch.setattr(sys, "argv", ["", "sft", "little"])
        monkeypatch.setattr(os, "execv", lambda _, arguments: executed.append(arguments[1:]))
        monkeypatch.setattr("torch.distributed.run.main", executed.append)
        for name in ("TANDEM_PARENT", "OMP_NUM_THREADS"):  # put back when the test ends
            monkeypatch.setenv(name, os.environ.get(name, "1"))
        launch.main()
        return executed[0]

    return run


def test_one_process_is_the_stage(command) -> None:
    assert command(1) == ["-m", "stages.sft", "little"]


def test_several_go_through_torchrun(command, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert command(4) == ["--standalone", "--nproc_per_node=4", "-m", "stages.sft", "little"]
    assert os.environ["OMP_NUM_THREADS"] == "3", "the user's own setting stays"


@pytest.mark.parametrize(("gpus", "processes"), [(0, 1), (1, 1), (8, 8)])
def test_zero_is_one_a_gpu(command, monkeypatch, gpus: int, processes: int) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert (f"--nproc_per_node={processes}" in command(0)) == (processes > 1)


@pytest.mark.parametrize("arguments", [[], ["sft"], ["chat", "little"], ["sft", "little", "more"]])
def test_usage(monkeypatch, arguments: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["", *arguments])
    with pytest.raises(UserError, match=r"usage: python -m stages\.launch"):
        launch.main()
