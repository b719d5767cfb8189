# `make help` lists the targets; each does its own set-up.
# Variables: PYTHON=python3.12 (the Python for .venv), ARGS="..." (passed to the program that a target runs), HOURS=1 (make soak).

SHELL := /bin/sh
BIN := .venv/bin
ARGS ?=
HOURS ?= 1
WORKERS ?= 2

FAST := $(addprefix tests/,client consumer server store $(addprefix internals/,client consumer core events server store wire))
PYTEST := $(BIN)/python -m pytest
PARALLEL := --numprocesses $(WORKERS) --dist loadgroup

export PYTHON
# If it is set, each process compiles its imports: a third of a server's start, two thirds of a test collection.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-run setup-demo setup-bench setup-clients setup-java setup-browser setup-cluster setup-bucket setup-image setup-charts setup-test-all setup-mutations setup-tests run demo cluster docs setup-release \
	test test-all test-fast check format bench screenshots \
	prove-crash prove-flat prove-quota prove-spark prove-bucket prove-tune prove-incremental prove-interleaving prove-leases prove-models prove-stopped prove-failover prove-image prove-nodes prove-overload mutations build clean release-check soak
# Targets run one after another, so that the last line of `make test` is pytest's.
.NOTPARALLEL:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## make .venv with everything that development needs
	@scripts/setup.sh all,dev

setup-run:
	@scripts/setup.sh server,console

setup-demo: setup-java
	@scripts/setup.sh all

setup-bench:
	@scripts/setup.sh all,bench
	@scripts/install-wrk.sh

setup-clients: setup
	@scripts/install-clients.sh

setup-java:
	@scripts/install-java.sh

setup-browser: setup
	@scripts/install-browser.sh

setup-cluster: setup
	@scripts/install-haproxy.sh

# The packages of the system are installed in parallel with those of Python and of the clients.
setup-tests:
	@scripts/install-system.sh & system=$$!; scripts/setup.sh all,dev && scripts/install-clients.sh; status=$$?; wait $$system; exit $$status

setup-bucket: setup setup-java
	@scripts/install-bucket.sh

setup-image: setup
	@scripts/install-image.sh

setup-charts: setup
	@scripts/install-charts.sh

setup-test-all: setup
	@scripts/install-clients.sh all
	@PIP_CONSTRAINT=tests/test-all.txt scripts/setup.sh test-all .venv-test-all

setup-mutations: setup
	@scripts/setup.sh mutations .venv-mutations

setup-release:
	@scripts/setup.sh release .venv-release

run: setup-run ## start the server on 127.0.0.1:9324, its data under ./veilmq-data
	@exec $(BIN)/veilmq serve $(ARGS)

demo: setup-demo ## run all parts once: server, workers, archive, tuning, routing, a report (about two minutes)
	@exec $(BIN)/veilmq demo $(ARGS)

docs: ## build the site of docs/ into build/docs; a warning or a dead link fails
	@scripts/setup.sh docs .venv-docs
	@.venv-docs/bin/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo "veilmq: the site is in build/docs/index.html"

screenshots: setup-browser ## pictures of every page of the console, into docs/console
	@mkdir -p docs/console
	@PICTURES=$(CURDIR)/docs/console $(PYTEST) -n0 -q tests/internals/console/test_browser.py -k accessible_and_fits $(ARGS)
	@PYTHONPATH=. $(BIN)/python -m tests.console.pictures

cluster: setup-cluster ## a cluster on this machine: PostgreSQL with a standby, three nodes, HAProxy on port 9324
	@exec $(BIN)/python examples/cluster/cluster.py $(ARGS)

test: setup-tests check docs ## check, then all tests that a commit must pass
	@$(PYTEST) $(PARALLEL) -m "not everything" $(ARGS)

test-all: setup-tests setup-bucket setup-image setup-charts setup-test-all check docs ## every test in every form: every place of Spark, every kill, archives on S3, Airflow, the image, the chart
	@$(PYTEST) $(PARALLEL) $(ARGS)

test-fast: setup ## after each edit: the fast tests, without services
	@PROVE=few $(PYTEST) $(PARALLEL) -m "not slow and not service and not proof and not everything" $(FAST) $(ARGS)

check: setup ## lint, format, types and import contracts; changes nothing
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: setup ## sort imports, apply the safe fixes, format
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: setup-bench ## compare veilmq with the ceiling and with other servers in one table
	@$(BIN)/python -m benchmarks $(ARGS)

prove-crash: setup ## the crash proof at full size: sixty kills of the server under load, and sixty of PostgreSQL
	@PROVE=whole $(PYTEST) tests/proofs/test_crash.py -k "not node" --timeout 3600 $(ARGS)

prove-flat: setup-bench ## memory, cost and restart with three million messages
	@$(BIN)/python -m benchmarks --whole --no-peers --only backlog --only idle $(ARGS)

prove-quota: setup ## in-flight limits at full size, beside two million messages
	@PROVE=whole $(PYTEST) tests/store/test_quotas.py -k full_size $(ARGS)

prove-spark: setup setup-java ## Spark under kills at full size: the source, from queue to queue, and the jobs, also on a cluster
	@PROVE=whole $(PYTEST) tests/proofs/test_spark.py tests/internals/proofs/test_pipeline_crash.py -k "not bucket" $(ARGS)

prove-bucket: setup-bucket ## the archive on a bucket: five kills of the driver and two of the S3 server
	@PROVE=whole $(PYTEST) tests/internals/proofs/test_pipeline_crash.py -k bucket -s --timeout 3600 $(ARGS)

prove-tune: setup ## recommended timeouts at full size, against known optima: shapes by TUNE_SEED, ten million receipts
	@PROVE=whole $(PYTEST) tests/internals/proofs/test_tune_shapes.py tests/internals/proofs/test_tune_counting.py -s --timeout 3600 $(ARGS)

prove-incremental: setup-bucket ## a run of tune with 100, 1,000 and 10,000 old files and 10 new ones: time, bytes, requests to S3
	@PROVE=whole $(PYTEST) tests/internals/proofs/test_tune_incremental.py -s --timeout 3600 $(ARGS)

prove-models: setup ## the stores against their naive models, with twenty times the examples (half an hour)
	@PROVE=whole $(PYTEST) tests/store tests/internals/store -k with_the_model --timeout 7200 $(ARGS)

prove-interleaving: setup ## PostgreSQL: pairs of cold commands interleaved at their statements, with up to two switches, against serial runs
	@PROVE=whole $(PYTEST) tests/internals/store/test_interleaving.py --timeout 3600 $(ARGS)

prove-leases: setup ## a day of a consumer with 1,000 messages in work, in virtual time: the cost and losses of each renewal policy
	@PROVE=whole $(PYTEST) tests/proofs/test_leases.py -k "not stopped" -s --timeout 3600 $(ARGS)

prove-stopped: setup ## a worker process that is stopped for forty seconds, with leases of thirty
	@PROVE=whole $(PYTEST) tests/proofs/test_leases.py -k stopped $(ARGS)

prove-failover: setup ## PostgreSQL's primary loses its power under load, three times; a synchronous standby takes over
	@PROVE=whole $(PYTEST) tests/proofs/test_failover.py -s --timeout 3600 $(ARGS)

prove-overload: setup ## a flood of unsigned and wrongly signed bodies and unread replies: memory, and the latency of other clients
	@PROVE=whole $(PYTEST) tests/proofs/test_overload.py -s --timeout 600 $(ARGS)

prove-image: setup-image ## the image, built without a registry and run as a container and unpacked: a message, its size, its permissions
	@$(PYTEST) -n0 tests/deploy/test_image.py -s -rA $(ARGS)

prove-nodes: setup ## three nodes on one PostgreSQL, killed sixty times while clients use any of them; and how fast one wakes another's long polls
	@PROVE=whole $(PYTEST) tests/proofs/test_crash.py -k node -s --timeout 3600 $(ARGS)

soak: setup ## a server under mixed load with restarts for HOURS=1: no drift of memory, descriptors and latency, no lost message
	@PROVE=whole $(BIN)/python -m tests.proofs.soak --hours $(HOURS) $(ARGS)

mutations: setup-mutations ## small mutations of the product, and how many the tests detect; the first run records the coverage of each line
	@.venv-mutations/bin/python -m tests.mutations $(ARGS)

release-check: setup-release ## all checks before a version is published; leaves its files in dist/ (some minutes)
	@.venv-release/bin/python -m tests.release

build: setup ## the wheels and the source archives, in dist/
	@for folder in . packages/pytest-veilmq; do $(BIN)/python -m build --outdir dist $(ARGS) $$folder || exit; done

clean: ## remove everything that make created, also .venv; never ./veilmq-data
	@rm -rf .venv .venv-docs .venv-mutations .venv-release .venv-test-all .clients tests/clients/javascript/node_modules tests/console/axe/node_modules \
		build dist htmlcov .coverage .coverage.* \
		.pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src packages tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
