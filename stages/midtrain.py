"""Stage midtrain: learn the chat format, with loss on every token, starting from pretrain's weights."""

from config.errors import run_main
from stages.training import run_stage

if __name__ == "__main__":
    run_main(lambda: run_stage("midtrain"))
