"""Starts a training stage with as many processes as the profile asks for: this one, or several under torchrun.

python -m stages.launch <pretrain|midtrain|sft> <profile>
"""

import os
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
    command = [sys.executable, "-m"]
    if processes > 1:
        command += ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m"]
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun warns without; stages.training sets the real number
    sys.stdout.flush()
    os.execv(sys.executable, [*command, f"stages.{stage}", name])


if __name__ == "__main__":
    run_main(main)
