# make demo: the main job on real data, and its report. make test: all that must hold. make bench: speed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test bench clean
.DELETE_ON_ERROR:

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "roundlog needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/python pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(PIP) --editable '.[test]'
	@touch $@

demo: $(VENV)/installed
	@log=$$($(BIN)/runner start) && echo && $(BIN)/analyze report "$$log"

test: $(VENV)/installed-test
	@sh tests/system-packages.sh
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --numprocesses 2 --dist worksteal
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

bench: $(VENV)/installed-test
	$(BIN)/python tests/bench/append.py
	$(BIN)/python tests/bench/load.py
	$(BIN)/python tests/bench/queries.py
	$(BIN)/python tests/bench/rounds.py
	$(BIN)/python tests/bench/sim.py
	$(BIN)/python tests/bench/aggregate.py
	$(BIN)/python tests/bench/resident.py
	$(BIN)/python tests/bench/ssh.py
	$(BIN)/python tests/bench/network.py

clean:
	rm -rf $(VENV) .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache build *.egg-info
