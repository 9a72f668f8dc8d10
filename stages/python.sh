#!/bin/sh
# Runs a stage with the environment that is active, else with the one that `make` builds, else with PATH's python3.
# `exec` all the way: the trainer is the direct child of dvc, so that it can notice when dvc dies.
# TANDEM_PARENT is that dvc: one that died before the trainer looks is noticed too.
export TANDEM_PARENT="$PPID"
# OpenMP threads that spin while they wait make everything crawl as soon as another process wants the cores: they sleep.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}"
if [ -z "$VIRTUAL_ENV$CONDA_PREFIX" ] && [ -x .venv/bin/python ]; then
    exec .venv/bin/python -m "$@"
fi
exec python3 -m "$@"
