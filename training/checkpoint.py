"""Checkpoints that are whole or absent, and that another number of ranks can read.

A checkpoint is a folder, `step-<n>`, written under a temporary name by torch's distributed checkpointing, closed by a
`manifest.json` with every file's size and hash, and renamed. `checkpoints.json` lists those that exist, newest last:
no file is ever found by guessing names.
"""

import random
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from config.errors import UserError
from config.files import raise_if_disk_full, read_json, sha256_of, write_json
from model.linear import format_state, refresh
from training.distributed import Ranks
from training.optim.optimizer import Optimizer

FORMAT = 1  # of what a checkpoint holds; part of a run's fingerprint


@dataclass(frozen=True)
class Position:
    """Where a run stands: updates done, and the loss of the last logged one."""

    step: int
    loss: float | None = None


class Checkpoints:
    """The checkpoints of one run, in `folder`; `fingerprint` ties them to what they were trained from."""

    def __init__(self, folder: Path, fingerprint: str, keep: int, ranks: Ranks) -> None:
        self.folder, self.fingerprint, self.keep, self.ranks = folder, fingerprint, keep, ranks
        self.index = folder / "checkpoints.json"
        self._mesh = init_device_mesh(ranks.device.type, (ranks.world,)) if ranks.world > 1 else None

    def steps(self) -> list[int]:
        """Updates after which a checkpoint exists, oldest first."""
        return read_json(self.index, "the list of checkpoints")["steps"] if self.index.exists() else []

    def save(self, model: nn.Module, optimizer: Optimizer, position: Position) -> None:
        """Write the state after `position.step` updates; all ranks together. UserError when the disk is full."""
        name = f"step-{position.step:08d}"
        temporary = self.folder / f".{name}.tmp"
        try:
            if self.ranks.first:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
            self.ranks.barrier()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # DCP warns that one process is no group: that is intended
                dcp.save(self._state(model, optimizer), checkpoint_id=temporary, no_dist=self.ranks.world == 1)
            if self.ranks.first:
                self._commit(temporary, name, position, optimizer)
        except BaseException as error:  # DCP's own CheckpointException is no Exception
            shutil.rmtree(temporary, ignore_errors=True)
            raise_if_cause_is_full_disk(error, self.folder, model, optimizer)
            raise
        self.ranks.barrier()

    def _commit(self, temporary: Path, name: str, position: Position, optimizer: Optimizer) -> None:
        files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in temporary.iterdir()}
        manifest = {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "step": position.step,
            "loss": position.loss,
            "optimizer_steps": optimizer.steps,
            "random": _random_state(),
            "files": files,
        }
        write_json(temporary / "manifest.json", manifest)
        final = self.folder / name
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        # Later ones were damaged and passed over, or this run would have started from them.
        before = self.steps()
        kept = [*(step for step in before if step < position.step), position.step][-self.keep :]
        write_json(self.index, {"steps": kept})
        for step in set(before) - set(kept):
            shutil.rmtree(self.folder / f"step-{step:08d}", ignore_errors=True)

    def load_newest(self, model: nn.Module, optimizer: Optimizer) -> Position | None:
        """Restore the newest whole checkpoint; None when there is none. A damaged one is named and passed over.

        Raises UserError when a checkpoint belongs to another run, or when all are damaged.
        """
        damaged: list[str] = []
        for step in reversed(self.steps()):
            folder = self.folder / f"step-{step:08d}"
            problem = self._problem(folder)
            if problem is None:
                return self._load(folder, model, optimizer)
            damaged.append(problem)
            if self.ranks.first:
                print(f"checkpoint passed over: {problem}", flush=True)
        if damaged:
            raise UserError(f"no whole checkpoint is left: {damaged[0]}; delete {self.folder} to start this stage anew")
        return None

    def _problem(self, folder: Path) -> str | None:
        """What is wrong with a checkpoint's files, or None; UserError when it is another run's."""
        try:
            manifest = read_json(folder / "manifest.json", "a checkpoint")
        except UserError as error:
            return str(error)
        if manifest["fingerprint"] != self.fingerprint or manifest["format"] != FORMAT:
            raise UserError(
                f"{folder} was made by another run (fingerprint {manifest['fingerprint']}, format "
                f"{manifest['format']}; expected {self.fingerprint}, {FORMAT}): its parameters or data differ; "
                f"delete {self.folder}"
            )
        for name, facts in manifest["files"].items():
            path = folder / name
            if not path.exists():
                return f"{path} is missing"
            if path.stat().st_size != facts["bytes"]:
                return f"{path} has {path.stat().st_size:,} bytes, expected {facts['bytes']:,}"
            if sha256_of(path) != facts["sha256"]:
                return f"{path} is damaged: its hash differs from the manifest's"
        return None

    def _load(self, folder: Path, model: nn.Module, optimizer: Optimizer) -> Position:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(self._state(model, optimizer), checkpoint_id=folder, no_dist=self.ranks.world == 1)
        manifest = read_json(folder / "manifest.json", "a checkpoint")
        refresh(model)
        optimizer.steps = manifest["optimizer_steps"]
        _restore_random_state(manifest["random"])
        return Position(manifest["step"], manifest["loss"])

    def _state(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Tensors by name; optimizer state as global tensors of which each rank holds its share, which is what lets
        another number of ranks read it."""
        lengths = optimizer.lengths()
        state = {f"optimizer.{name}": self._whole(tensor, lengths[name]) for name, tensor in optimizer.state().items()}
        state |= {f"precision.{name}": tensor for name, tensor in format_state(model).items()}
        return state | {f"model.{name}": tensor for name, tensor in model.state_dict().items()}

    def _whole(self, share: Tensor, length: int) -> Tensor:
        if self._mesh is None:
            return share
        shape = torch.Size((length, *share.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(share, self._mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


def raise_if_cause_is_full_disk(error: BaseException, folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Turn a full disk, however deep in the chain of causes, into a UserError that names the folder."""
    wanted = sum(tensor.nbytes for tensor in (*model.state_dict().values(), *optimizer.state().values()))
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            raise_if_disk_full(seen, folder, wanted)
        seen = seen.__cause__ or seen.__context__
    if "No space left" in str(error) or "file write failed" in str(error) or "unexpected pos" in str(error):
        raise UserError(
            f"the disk of {folder} is full: a checkpoint takes {wanted / 1e6:,.1f} MB; "
            "free some room and run `dvc repro`: it goes on from the last checkpoint"
        ) from None


def _random_state() -> dict[str, Any]:
    """The generators of this process. Training draws from none of them today; what starts to will resume exactly."""
    version, internal, gauss = random.getstate()
    return {"python": [version, list(internal), gauss], "torch": torch.get_rng_state().numpy().tobytes().hex()}


def _restore_random_state(state: dict[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(torch.from_numpy(numpy.frombuffer(bytes.fromhex(state["torch"]), dtype=numpy.uint8).copy()))
