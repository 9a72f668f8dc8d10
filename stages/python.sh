#!/bin/sh
# Runs a stage with the environment that is active, else with the one that `make` builds, else with PATH's python3.
# `exec` all the way: the trainer is the direct child of dvc, so that it can notice when dvc dies.
# TANDEM_PARENT is that dvc: one that died before the trainer looks is noticed too.
export TANDEM_PARENT="$PPID"
# OpenMP threads that spin while they wait make everything crawl as soon as another process wants the cores: they sleep.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}"
# Memory that grows where it is: without it a GPU's memory falls into pieces that no tensor fits.
export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF:-expandable_segments:True}"
# FlashAttention 4 compiles its kernels in every process unless it is told to keep them.
export FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED="${FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED:-1}"
if [ -z "$VIRTUAL_ENV$CONDA_PREFIX" ] && [ -x .venv/bin/python ]; then
    exec .venv/bin/python -m "$@"
fi
exec python3 -m "$@"
