.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Absolute, so that the fallback below also works from a recipe that changes directory.
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: help setup lock copies format check test generated-calls simulation fuzz chaos mutants demo bench bench-lateness bench-mix bench-drain bench-enqueue \
	bench-smoke bench-heartbeats bench-fairness bench-overload bench-takeover bench-idle bench-backlog bench-shards bench-move bench-deploy bench-soak \
	bench-scale up down clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: requirements.lock pyproject.toml connectors/client/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e . -e connectors/client
	touch $@

setup: $(VENV)/.installed  ## make .venv with the locked dependencies and both distributions

LOCK := uv pip compile --quiet --universal --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links \
	  --no-header

lock:  ## resolve the dependencies anew into requirements.lock, and of these the server's own (needs uv)
	$(LOCK) --extra stack --extra dev pyproject.toml connectors/client/pyproject.toml -o requirements.lock
	$(LOCK) --constraints requirements.lock pyproject.toml -o requirements-server.lock

copies: setup  ## copy what the published client shares with the server out of schemas/
	python connectors/client/generate_copies.py

format: setup  ## format and fix what the linter can
	ruff format .
	ruff check --fix .

check: setup  ## formatter, linter, types, import directions
	ruff format --check .
	ruff check .
	mypy
	lint-imports

test: setup  ## the whole suite on real Kafka and Postgres, which it starts and stops itself, in two processes
	pytest -n 2 --dist loadgroup --no-loadscope-reorder --durations=25 --ignore tests/bench

bench-smoke: setup  ## every benchmark once, as small as can be: that it works, not what it measures
	pytest tests/bench --durations=10

# `make simulation SEEDS=500` is a first look.
SEEDS ?= 10000

simulation: setup  ## SEEDS simulations of the protocol under a virtual clock, hurt and healed, in two processes
	python -m tests.simulation --seeds $(SEEDS)

# Of `make fuzz`: for each target; SEED=7 draws again what that seed drew; ONLY=cron feeds nothing else.
SECONDS ?= 60

fuzz: setup  ## feed the parsers with what tenants could send, a minute each: none may crash, hang or grow (SECONDS SEED ONLY)
	python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only '$(ONLY)')

generated-calls: setup  ## calls generated from /openapi.json, right and wrong ones, for as long as they take (FENCEPOST_GENERATED_S)
	FENCEPOST_GENERATED_S=$${FENCEPOST_GENERATED_S:-120} pytest tests/api/test_generated_calls.py

# Of `make chaos`: how long it is hurt; SEED=7 breaks again what that seed broke; ONLY=link breaks nothing but links;
# REPORT=docs/chaos/….md keeps the report.
MINUTES ?= 5

chaos: setup  ## break a whole installation everywhere, heal it, judge what became of every job (MINUTES SEED ONLY REPORT)
	python -m tests.chaos.run --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only '$(ONLY)') \
	  $(if $(REPORT),--report $(REPORT))

mutants: setup  ## break the product on purpose, in each way that a promise can be: the checker must find every mutant
	python -m tests.chaos.mutants.run

demo: setup  ## one run's whole life: the stack, the real schedules, 1,000 one-off jobs, two workers, the proof
	python -m examples.demo

# Of all the benchmarks; BENCH="--peers none --scale 0.05" is a first look.
BENCH ?=

bench: setup  ## every benchmark beside its floor and the peers, which it installs: one table, and JSON in bench/results/
	python -m bench.all $(BENCH)

bench-lateness: setup  ## due to handler start: 200 one-offs over 20 s, then 5,000 in one second
	python -m bench.lateness $(BENCH)

bench-mix: setup  ## the real schedules' busiest second, scaled to fill the machine: due to handler start
	python -m bench.mix $(BENCH)

bench-drain: setup  ## 20,000 due runs through HTTP with one worker process: runs/s, WAL, CPU, history lag
	python -m bench.drain $(BENCH)

bench-enqueue: setup  ## jobs created a second, by Kafka packed and one a record, and by HTTP
	python -m bench.enqueue $(BENCH)

bench-heartbeats: setup  ## heartbeats a second, and the CPU time of one
	python -m bench.heartbeats $(BENCH)

bench-fairness: setup  ## a tenant's flood of 1,000,000 due runs beside another's runs on time: lateness, how the flood drains, CPU
	python -m bench.fairness $(BENCH)

bench-overload: setup  ## more calls than an API takes on, of each class in turn: what is shed, how late runs start
	python -m bench.overload $(BENCH)

bench-takeover: setup  ## owning 200,000 timers, from the ledger and from local state, and their memory
	python -m bench.takeover $(BENCH)

bench-idle: setup  ## CPU with 100,000 idle schedules, and with 5,000 queues that are waited on
	python -m bench.idle $(BENCH)

bench-backlog: setup  ## lateness and a drain beside 5,000,000 due runs of 1,000 tenants in 5,000 queues
	python -m bench.backlog $(BENCH)

bench-scale: setup  ## 20,000,000 recurring schedules: loading, owning, next fires, the cost of a run beside them
	python -m bench.scale $(BENCH)

bench-shards: setup  ## CPU time of a run with 1, 2 and 4 shards, owners and APIs
	python -m bench.shards $(BENCH)

bench-move: setup  ## partitions move to a new shard at 1,000 runs/s: lateness, calls that fail, how long they stand still
	python -m bench.move $(BENCH)

bench-deploy: setup  ## every role is restarted in turn at 200 runs/s: lateness, calls that fail, leases that last
	python -m bench.deploy $(BENCH)

bench-soak: setup  ## an hour at 70 % of this machine's CPU time: does anything grow?
	python -m bench.soak $(BENCH)

up: setup  ## start everything on this machine, with its data under state/
	fencepostd up

down: setup  ## stop it
	fencepostd down

clean:  ## remove the virtual environment and every cache (not state/)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist bench/.peers
