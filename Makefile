# `make` alone explains itself. Everything is installed into .venv from requirements.lock.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
STAGE := scripts/stage
# Tests and package with pytest's assertions are compiled once, and not in each run, in any environment.
PYTEST := env --unset=PYTHONDONTWRITEBYTECODE $(BIN)/pytest
UNIT := tests/unit tests/protocol -n auto
SERVERS := tests --ignore=tests/unit --ignore=tests/protocol
# What make test runs is the same for every commit; what make test-all runs, before a release, is everything.
SUITE := everything
SCHEDULES := 20000

.PHONY: help
help:  ## explain the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup demo-servers  ## two services on Kafka, Spark and Redis, killed again and again, end exactly right
	$(BIN)/python -m services.demo $(ARGS)

.PHONY: demo-ingest
demo-ingest: setup demo-servers  ## the same into tables of both kinds: each row once, by DuckDB and Spark, through kills of both services
	@$(BIN)/python -m sqe_chain.ext.dev fetch cassandra
	$(BIN)/python -m services.demo_ingest $(ARGS)

.PHONY: chaos-compose
chaos-compose: setup servers docker  ## docker-compose.yml under load: 31 faults, each with evidence, then the audit
	$(BIN)/python -m services.compose_chaos $(ARGS)

.PHONY: test
test: SUITE := commit
test: SCHEDULES := 3000
test: stages  ## before each commit: lint, types, tests on real servers; of cases that differ little, some

.PHONY: test-all
test-all: chromium prometheus helm mysql stages  ## before a release: all cases, faults in docker compose, more schedules, all mutants
	@$(STAGE) "mutants" $(BIN)/python -m tests.lab.mutants --again

.PHONY: chromium
chromium:
	@scripts/system-packages chromium

# Without Prometheus, the tests that need it are skipped.
.PHONY: prometheus
prometheus:
	@scripts/system-packages prometheus || echo "No Prometheus, so its rules are not tried."

# Without helm, the chart is compared with what helm made of it when the chart was changed.
CACHE := $(or $(SQE_CHAIN_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sqe-chain)
HELM := $(CACHE)/bin
.PHONY: helm
helm:
	@command -v helm >/dev/null || test -x $(HELM)/helm || GOBIN=$(HELM) go install helm.sh/helm/v3/cmd/helm@v3.22.0 \
		|| echo "No helm and no Go, so the chart is not rendered again."

# Without MySQL, Debezium runs on PostgreSQL alone.
.PHONY: mysql
mysql:
	@scripts/debian-root sid $(CACHE)/mysql mysql-server-core mysql-client-core || echo "No MySQL, so its changes are not summed up."

.PHONY: stages
stages: setup
	@$(MAKE) --no-print-directory --jobs=3 SUITE=$(SUITE) SCHEDULES=$(SCHEDULES) programs stages-without-servers
	@$(MAKE) --no-print-directory --jobs=3 SUITE=$(SUITE) $(if $(filter everything,$(SUITE)),images) test-servers
	@$(if $(filter everything,$(SUITE)),$(STAGE) "tests that run alone" $(PYTEST) $(SERVERS) --suite $(SUITE) -m alone)

# Downloads mostly wait for the network: meanwhile, tests run that need nothing of them, and come first.
.PHONY: programs
programs:
	@nice -n 10 $(MAKE) --no-print-directory servers $(if $(filter everything,$(SUITE)),docker)

.PHONY: stages-without-servers
stages-without-servers:
	@$(STAGE) "simulator" $(BIN)/python -m tests.lab.simulator --schedules $(SCHEDULES) --seed 0 --jobs 0
	@$(MAKE) --no-print-directory lint
	@$(STAGE) "unit and protocol tests" $(PYTEST) $(UNIT) --suite $(SUITE) --durations 0 --durations-min 2
	@$(STAGE) "mutants, explorer, fuzzing" $(MAKE) --no-print-directory --jobs=2 --output-sync=target $(FINDERS)

# Each of them takes one core.
FINDERS := find-mutants find-paths find-bytes
.PHONY: $(FINDERS)
find-mutants:
	$(BIN)/python -m tests.lab.mutants --quick
find-paths:
	$(BIN)/python -m tests.lab.explorer small move
find-bytes:
	$(BIN)/python -m tests.lab.fuzzing --executions 100000000 --seconds 8

# What the tests in docker compose need later; they report themselves what is wrong with it.
.PHONY: images
images:
	@nice -n 10 $(BIN)/python -m services.compose_chaos --images || true

# They wait in between, so three run at once on two cores, each with its own servers.
.PHONY: test-servers
test-servers:
	@$(STAGE) "tests on servers" $(PYTEST) $(SERVERS) --suite $(SUITE) -m "not alone" -n 3 --dist loadfile --no-loadscope-reorder --durations 40

.PHONY: test-fast
test-fast: python  ## ruff, mypy, fast tests: no JVM, no network, less than a minute
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint-ruff lint-mypy
	@$(STAGE) "fast tests" $(PYTEST) $(UNIT) --suite fast $(ARGS)

# All of them, unless PYTHON is given.
PYTHONS = $(if $(filter file,$(origin PYTHON)),3.11 3.12 3.13 3.14,$(PYTHON))

.PHONY: test-python
test-python: system  ## unit and protocol tests, engines, README and demo with each Python: PYTHON=3.13 for one
	@for python in $(PYTHONS); do $(STAGE) "Python $$python" nice -n 10 scripts/test-python "$$python" $(ARGS); done

.PHONY: test-lowest
test-lowest: system  ## the same, and the stores' contract, with the lowest packages of pyproject.toml
	nice -n 10 scripts/test-python "$(PYTHON)" --lowest $(ARGS)

.PHONY: test-newest
test-newest: system  ## the same with the newest packages that there are
	nice -n 10 scripts/test-python "$(PYTHON)" --newest $(ARGS)

.PHONY: test-matrix
test-matrix: system  ## contracts, and a demo with kills, on other versions of Kafka and the stores: ARGS='"Valkey 9"' for one
	nice -n 10 $(BIN)/python -m tests.matrix $(ARGS)

.PHONY: durations
durations: setup servers  ## measure all tests again: tests/durations.json lists the slow ones
	$(PYTEST) tests -n 1 --suite commit -p tests.support.durations

.PHONY: explore
explore: python  ## property tests with new random examples; repeat as often as you like
	HYPOTHESIS_PROFILE=explore $(PYTEST) $(UNIT) $(ARGS)

.PHONY: simulate
simulate: python  ## 10,000 chains of services under random faults: ARGS="--schedules N --seed S" for others
	$(BIN)/python -m tests.lab.simulator $(ARGS)

.PHONY: explore-states
explore-states: python  ## all interleavings of a few runs, crashes and lost replies, breadth first: ARGS="NAME --directory DIR"
	$(BIN)/python -m tests.lab.explorer $(ARGS)

.PHONY: mutants
mutants: setup servers  ## deliberate bugs: fails unless tests, and the simulator, kill each of them: ARGS="--only TEXT"
	$(BIN)/python -m tests.lab.mutants $(ARGS)

.PHONY: fuzz
fuzz: python  ## envelopes, headers, keys, frames, JSON: all ways of reading give one answer: ARGS="--executions N --directory DIR"
	$(BIN)/python -m tests.lab.fuzzing $(ARGS)

.PHONY: reliability-report
reliability-report: python  ## write the tables of docs/reliability.md from what was recorded
	$(BIN)/python -m tests.reliability report

# A make that runs beside others shares their number of jobs.
TWO_JOBS = $(if $(findstring --jobserver,$(MAKEFLAGS)),,--jobs=2)
# mypy takes longest and begins first; the output of a tool is shown when it is done.
LINTERS := lint-mypy lint-ruff lint-docs lint-pyright lint-imports

.PHONY: lint
lint: python  ## ruff, formatting, mypy, pyright, import rules, links of the docs
	@$(STAGE) "lint and types" $(MAKE) --no-print-directory $(TWO_JOBS) --output-sync=target $(LINTERS)

.PHONY: $(LINTERS)
lint-mypy:
	$(BIN)/mypy
lint-ruff:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
lint-pyright:
	$(BIN)/basedpyright
lint-imports:
	$(BIN)/lint-imports --no-logo
lint-docs:
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

.PHONY: docs
docs: python  ## the documentation as a site in build/site; fails at warnings and broken links
	@$(MAKE) --no-print-directory lint-docs
	@echo "Open $(CURDIR)/build/site/index.html"

.PHONY: format
format: python  ## let ruff format and fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: setup servers  ## figures and ratios against a plain loop, in the same minute; BASE=COMMIT: against that version, in turn
	$(BIN)/python -m benchmarks $(if $(BASE),--base $(BASE)) $(ARGS)

.PHONY: bench-scale
bench-scale: python  ## the driver's work for each batch by the number of partitions, and a model of a cluster: ARGS="--chart FILE --json FILE"
	$(BIN)/python -m benchmarks.scale $(ARGS)

.PHONY: bench-peers
bench-peers: demo-servers jdk  ## the same next to Kafka Streams, Flink, Quix Streams and a plain loop: ARGS="--rounds 1 --workloads w4-windows --json FILE"
	$(BIN)/python -m benchmarks.peers $(ARGS)

.PHONY: storm
storm: demo-servers jdk  ## crashes of the service upstream and of everything else, over sqe-chain and nine other systems: ARGS="--seeds 7 --systems plain,sqe-chain"
	$(BIN)/python -m benchmarks.storm $(ARGS)

.PHONY: proto
proto: python  ## generate the protobuf code from proto/ again
	$(BIN)/python scripts/generate_proto.py

.PHONY: lock
lock: python  ## write requirements.lock again (ARGS=--upgrade takes the newest versions)
	scripts/lock $(ARGS)

.PHONY: release
release: system docker  ## archives, images and a bill of materials, made twice, compared, and tried in empty environments
	@scripts/system-packages python
	$(PYTHON) -m scripts.release $(ARGS)

.PHONY: clean
clean:  ## remove what was made here (downloads stay in the cache)
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# --- prerequisites of the targets ----------------------------------------------------------------

.PHONY: setup
setup: system python  ## Java, redis-server and .venv (done by the other targets when needed)

.PHONY: system
system:
	@scripts/system-packages java redis

# Without it, Kafka Streams is skipped.
.PHONY: jdk
jdk:
	@scripts/system-packages jdk || echo "No Java compiler, so no Kafka Streams."

# Without Docker, the tests in docker compose report that and are skipped.
.PHONY: docker
docker:
	@scripts/system-packages docker || echo "No Docker, so no chaos in docker compose."

# Hundreds of processes of the tests import this tree. With bytecode they start in half the time, and it is not written by
# the way where PYTHONDONTWRITEBYTECODE is set.
.PHONY: python
python: .venv/.installed
	@$(BIN)/python -m compileall -q sqe_chain services tests

# The stamp is written last, so an interrupted installation is repeated.
.venv/.installed: requirements.lock pyproject.toml
	@scripts/system-packages python
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

.PHONY: servers
servers: setup
	@$(BIN)/python -m sqe_chain.ext.dev fetch
	@$(BIN)/python -m sqe_chain.ext.dev warm

# Cassandra is downloaded only on request.
.PHONY: demo-servers
demo-servers: setup
	@$(BIN)/python -m sqe_chain.ext.dev fetch kafka redis
