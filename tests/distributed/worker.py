"""One rank of the tests in test_ranks.py, started by torchrun: does what its arguments say, in this order.

    train:FOLDER:UPDATES   train in FOLDER, from its newest checkpoint on
    load:FOLDER            load the newest checkpoint of FOLDER
    stop:FOLDER            train, with a SIGTERM to the last rank alone

After each, the whole state (optimizer shares put together), this rank's weights and the rows that it was given go to
FOLDER/<what>-<world>-<rank>.pt.
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from data.loader import Loader
from tests.small_job import CONFIG, CONTEXT, MemoryRows, run_job, small_job
from training.distributed import Ranks, join, leave
from training.loop import Hook, Job, StoppedError

VOCAB = 301  # a prime: no number of ranks divides it
ROWS = 8  # an update, which three ranks share as 3, 3 and 2, with a row of padding
# At higher rates training itself is chaotic: it makes of the last digit a difference in the third within 50 updates.
JOB = {
    "config": replace(CONFIG, batch_tokens=ROWS * CONTEXT, micro_batch=4, learning_rate=0.005, warmup_updates=5),
    "vocab": VOCAB,
    "checkpoint_updates": 25,
    "keep": 2,
}


def whole_state(job: Job) -> dict[str, torch.Tensor]:
    """Weights and complete optimizer state, whatever the number of ranks."""
    lengths, state = job.optimizer.lengths(), {}
    for name, share in job.optimizer.state().items():
        whole = torch.zeros(lengths[name], *share.shape[1:])
        start, stop = job.ranks.share(lengths[name])
        whole[start:stop] = share
        job.ranks.gather(whole)
        state[name] = whole
    return state | {name: tensor.detach().clone() for name, tensor in job.model.state_dict().items()}


def do(task: str, ranks: Ranks) -> None:
    what, name, *rest = task.split(":")
    folder, rows, seen = Path(name), MemoryRows(vocab=VOCAB), []
    following = Loader.__next__

    def noted(loader: Loader):
        update = following(loader)
        seen.append((update.index, update.row_ids, len(update.micro_batches)))
        return update

    Loader.__next__ = noted
    if what == "train":
        job = small_job(folder, int(rest[0]), ranks, **JOB)
        run_job(job, rows)
    elif what == "load":
        job = small_job(folder, 1, ranks, seed=9, **JOB)
        position = job.checkpoints.load_newest(job.model, job.optimizer)
        seen.append(position.step)
    else:
        last = ranks.rank == ranks.world - 1
        send = Hook(frozenset({3} if last else ()), lambda _: os.kill(os.getpid(), signal.SIGTERM))
        job = small_job(folder, 50, ranks, hooks=[send], log_updates=2, **JOB)
        try:
            run_job(job, rows)
        except StoppedError as stopped:
            seen.append(str(stopped))
    Loader.__next__ = following
    result = {"state": whole_state(job), "steps": job.optimizer.steps, "seen": seen}
    torch.save(result, folder / f"{what}-{ranks.world}-{ranks.rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    here = join()
    assert here.world == 1 or dist.get_world_size() == here.world
    for argument in sys.argv[1:]:
        do(argument, here)
    leave(here)
