# Two commands: `make chat` trains a model and opens its page, `make test` runs the whole CPU suite.
PYTHON ?= python3
PORT ?= 7860
VENV := .venv
BIN := $(VENV)/bin

.PHONY: chat test lint clean

chat: repository $(VENV)/.ready
	@test ! -e dvc.lock || test -s dvc.lock || rm dvc.lock  # emptied by a kill in the middle of DVC's write
	$(BIN)/dvc repro
	$(BIN)/python -m app.chat --port $(PORT)

# DVC keeps its cache beside a git repository and refuses to start without one.
.PHONY: repository
repository:
	@git rev-parse --git-dir >/dev/null 2>&1 || { \
	  echo "error: this folder is no git repository, which DVC needs: run \`git init\` here, then make chat again"; exit 1; }

test: $(VENV)/.ready-test chromium
	$(BIN)/python -m pytest

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The environment; rebuilt when the dependencies change.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet .
	touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet '.[test]'
	touch $@

# Debian's browser for the tests of the chat page; without it they are skipped, except under CI=true.
.PHONY: chromium
chromium:
	@command -v chromium >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
	  echo "chromium is not installed and can't be: the browser tests will be skipped"

clean:
	rm -rf runs .work
