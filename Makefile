# Everything runs in .venv; `make setup` is safe to repeat and does nothing when nothing changed.
PYTHON ?= python3
PYTHONS ?=
BIN := .venv/bin
SOURCES := pyproject.toml $(wildcard storage/*.p[yx][xd] cluster/remoting/*.pxd cluster/client/*.pyx cluster/broker/*.pxd cluster/broker/sending/*.pyx cluster/broker/reading/*.pyx replication/audit/*.pyx tandemmq/spark/*.pyx)

.PHONY: help setup check test compat metrics-test compose-test console-test demo wheels bench gate kills failover sim whole clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# What TandemMQ needs to run: enough for the demo.
.venv/.ready: $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed (PYTHON=python3.12 make ...); this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing TandemMQ into .venv (the first time takes about a minute)"
	@$(BIN)/python -m pip install -qq -U pip
	@$(BIN)/python -m pip install -qq -e '.[server]'
	@touch $@

# And what its tests, its linters and the Spark audit need.
.venv/.ready-dev: .venv/.ready
	@echo "installing the tools and Spark into .venv (about 600 MB the first time)"
	@$(BIN)/python -m pip install -qq -e '.[dev,audit]'
	@touch $@

setup: .venv/.ready-dev  ## everything into .venv; after it .venv/bin/tandem is the command

check: setup  ## style, types, import contracts and the fast tests: about a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -m 'not system and not compat and not fuzz and not simulation and not spark and not deploy and not metrics and not console' tests

test: setup  ## style, types, contracts and every test, stock Java and Go clients included where they are installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/lanes.py

compat: setup  ## only the stock clients and tools against us
	$(BIN)/python -m pytest -q -m compat tests/compat

metrics-test: setup  ## Debian's Prometheus watches a local cluster: every query answered, each alert fired by its cause (apt-get install prometheus)
	$(BIN)/python -m pytest -q -m metrics tests/metrics

compose-test: setup  ## the container image and deploy/compose.yaml with a docker daemon, started for it where none runs
	$(BIN)/python tests/deploy/run.py

console-test: setup  ## headless Chromium clicks through the console of a live cluster while a master dies
	$(BIN)/python -m pytest -q -m console tests/console

demo: .venv/.ready  ## a replicated cluster under traffic: kill a master, hand over, count every message, compare the replicas
	$(BIN)/python -m tandemmq.demo

wheels: setup  ## into dist/, for CPython 3.11 to 3.14 (PYTHONS="..." names others), each tried in an empty environment
	PYTHONS="$(PYTHONS)" $(BIN)/python -m release.wheels --into dist

bench: setup  ## load generator: ours, an echo server and Apache RocketMQ side by side
	$(BIN)/python -m bench
	$(BIN)/python -m bench.client

gate: setup  ## instructions per message of the main loads, by stage, against the recorded figures (valgrind)
	$(BIN)/python -m bench.gate

kills: setup  ## kill -9 one broker 100 times under load and look for anything lost
	$(BIN)/python -m tandemmq.chaos.kills --rounds 100

failover: setup  ## kill -9 the master of a replicated group 100 times under load; docs/howto/break-a-group.md has more
	$(BIN)/python -m tandemmq.chaos.failover --rounds 100 --fault kill --mode sync

sim: setup  ## replay one simulated cluster: make sim SEED=4711
	$(BIN)/python -m tandemmq.chaos.sim --seed $(or $(SEED),1)

whole: setup  ## replay one cluster of real servers and clients in simulated time: make whole SEED=44
	$(BIN)/python -m tandemmq.chaos.whole --seed $(or $(SEED),1)

clean:  ## remove everything that was built; data directories stay
	rm -rf .venv .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name '*.so' -not -path './.venv/*' -delete
