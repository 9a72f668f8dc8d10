"""Stage pretrain: learn the language from documents, starting from random weights."""

from config.errors import run_main
from stages.training import run_stage

if __name__ == "__main__":
    run_main(lambda: run_stage("pretrain"))
