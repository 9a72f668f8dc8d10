"""Several processes that train one model: the group they form, and the few collectives that the optimizer needs."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from config.errors import UserError

TIMEOUT = timedelta(minutes=10)
GRACE_SECONDS = 5  # several times what the launcher takes to see that a process has ended
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name from torch 2.13 on


@contextmanager
def _together() -> Iterator[None]:
    """Around a collective: a UserError where another process is lost.

    That one says why, or the launcher does for it, and then ends this one: which gets the time for that before it
    blames the link.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # no state to save: this update can't be finished
        time.sleep(GRACE_SECONDS)
        cause = str(error).strip().splitlines()[0]
        raise UserError(
            f"rank {os.environ.get('RANK', '?')} lost the others while they exchanged data ({cause}); look at the "
            "link and at what they said, then run `dvc repro`: it goes on from the last checkpoint"
        ) from None


class Ranks:
    """This process's place among those of a run. With one process every collective is a no-op."""

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self.rank, self.world, self.device = rank, world, device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, length: int) -> tuple[int, int]:
        """`start, stop` of this rank's chunk of a dimension: chunks of ceil(length / world), as torch.chunk cuts."""
        chunk = -(-length // self.world)
        return min(length, self.rank * chunk), min(length, (self.rank + 1) * chunk)

    def sum_(self, tensors: list[Tensor]) -> None:
        """Add up float32 tensors over the ranks, in place, as one message."""
        if self.world == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with _together():
            dist.all_reduce(flat)
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view(tensor.shape))

    def gather(self, whole: Tensor) -> None:
        """Fill `whole` in place, each rank having written its own `share` along the first dimension."""
        if self.world == 1:
            return
        length = len(whole)
        chunk = -(-length // self.world)
        start, stop = self.share(length)
        mine = whole.new_zeros((chunk, *whole.shape[1:]))
        mine[: stop - start] = whole[start:stop]
        everyone = whole.new_empty((chunk * self.world, *whole.shape[1:]))
        with _together():
            _all_gather(everyone, mine)
        whole.copy_(everyone[:length])

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank; all ranks must call it together."""
        if self.world == 1:
            return flag
        value = torch.tensor(float(flag), device=self.device)
        with _together():
            dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return bool(value.item())

    def agree(self, value: Any) -> Any:
        """The first rank's value, on all; all ranks must call it together."""
        if self.world == 1:
            return value
        box = [value]
        with _together():
            dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def barrier(self) -> None:
        if self.world > 1:
            with _together():
                dist.barrier()


def join() -> Ranks:
    """Form the process group that the launcher's environment announces; one process alone forms none.

    gloo on CPUs, NCCL on GPUs. Raises UserError when there are more processes than GPUs.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available():
        if local >= torch.cuda.device_count():
            raise UserError(f"rank {rank} has no GPU: found {torch.cuda.device_count()}, expected one a process")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if world > 1:
        with _together():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
        if dist.get_world_size() != world:
            raise UserError(f"{dist.get_world_size()} processes joined, {world} were launched")
    return Ranks(rank, world, device)


def leave(ranks: Ranks) -> None:
    """Take the process group down."""
    if ranks.world > 1 and dist.is_initialized():
        dist.destroy_process_group()
