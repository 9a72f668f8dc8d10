"""Stage sft: learn to answer, with loss on the assistant's words only, starting from midtrain's weights."""

from config.errors import run_main
from stages.training import run_stage

if __name__ == "__main__":
    run_main(lambda: run_stage("sft"))
