"""Starts a training stage with as many processes as the profile asks for: this one, or several under torchrun.

python -m stages.launch <pretrain|midtrain|sft> <profile>
"""

import logging
import os
import signal
import sys

from config.errors import UserError, run_main
from config.paths import TRAINING_STAGES, RunPaths
from config.profile import read_section
from config.run import RunConfig
from stages.process import die_with_parent


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in TRAINING_STAGES:
        raise UserError(f"usage: python -m stages.launch <{'|'.join(TRAINING_STAGES)}> <profile>")
    _, stage, name = sys.argv
    die_with_parent()  # kept across exec
    processes = read_section(RunPaths(name), "run", RunConfig).processes
    if processes == 0:
        import torch

        processes = max(1, torch.cuda.device_count())
    if processes == 1:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", f"stages.{stage}", name])
    return run_ranks(processes, stage, name)


def run_ranks(processes: int, stage: str, name: str) -> int:
    """Run the stage under torchrun and return its status, without torchrun's own pages of tracebacks: a rank says
    itself what went wrong, unless it was killed."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ["TANDEM_PARENT"] = str(os.getpid())  # this process is torchrun, above the ranks
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun warns without; stages.training sets the real number
    try:
        torchrun(["--standalone", f"--nproc_per_node={processes}", "-m", f"stages.{stage}", name])
    except ChildFailedError as error:
        rank, failure = min(error.failures.items(), key=lambda item: (_blame(item[1].exitcode), item[1].timestamp))
        if failure.exitcode < 0:
            raise UserError(
                f"rank {rank} of {stage} was killed ({signal.Signals(-failure.exitcode).name}), perhaps for want of "
                "memory; run `dvc repro`: it goes on from the last checkpoint"
            ) from None
        return failure.exitcode
    except SignalException as error:
        return 128 + error.sigval
    return 0


def _blame(exitcode: int) -> int:
    """The order in which ranks that ended together are held to be the cause: killed from outside, ended with an error
    (perhaps because another was killed), ended by torchrun because of the others."""
    if exitcode == -signal.SIGTERM:
        return 2
    return 0 if exitcode < 0 else 1


if __name__ == "__main__":
    run_main(main)
