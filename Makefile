# The interface of this repository. `make` alone lists what there is.

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
CHAOS_ARGS ?=
MUTANTS_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
UV := $(or $(shell uv --version > /dev/null 2>&1 && command -v uv),$(BIN)/uv)
# Two for each core: many tests wait for a server most of their time.
PYTEST = $(BIN)/python -m pytest --numprocesses=$$(( 2 * $$($(BIN)/python -c 'import os; print(os.cpu_count())') )) --dist=loadgroup
# Without a server a laptop skips tests and CI fails. Not inside pytest: installing can take longer than a test may.
START = $(BIN)/python -m tools.services start
OR_SKIP = || [ "$$CI" != true ]
AGAIN = $(BIN)/python -m tools.again
# Moments at which code that depends on the time of day, of month or of year breaks.
CLOCKS = 2026-11-18T23:59:50Z 2026-12-31T23:59:50Z 2028-02-29T23:59:50Z 2027-03-28T00:59:50Z 2026-10-25T00:59:50Z 2027-03-14T06:59:50Z
CODE := $(wildcard src tests tools bench examples)
INSTALL = $(UV) pip install --quiet --compile-bytecode --python $(BIN)/python
COMPILE := pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header

# Tests start hundreds of processes: compiling every module again in each takes longer than what they do.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all all-servers test-clocks soak-simulation fuzz check format openapi reference manifests dist docs screenshots quickstart bench soak chaos mutants coverage peers peers-bench services services-stop lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## make .venv with all that developing needs

run: $(VENV)/.run ## install what running needs, and run the demo on an embedded store
	@echo 'Starting the demo: $(BIN)/mainspring up mainspring.demo:app'
	@$(BIN)/mainspring up mainspring.demo:app

test: setup ## the tests that need PostgreSQL at most, in minutes (PYTEST_ARGS: other tests or options)
	@$(START) postgres $(OR_SKIP)
	TEST_SERVERS=postgres $(PYTEST) $(or $(PYTEST_ARGS),-m "not slow")
	@echo 'Skipped tests need other servers, whole processes or a browser: make test-all installs and runs those, too.'

test-all: setup ## everything that must hold before a change lands, on every server
	@# Servers are downloaded and started while the code is checked.
	@$(MAKE) --no-print-directory -j 2 check all-servers
	@# Without what builds the site and the SBOM a laptop skips their tests and CI does not.
	@[ "$$CI" != true ] || $(MAKE) --no-print-directory $(VENV)/.docs $(VENV)/.dist
	@# The dashboard apart: its tests have whole Mainsprings in their processes, which would go on beside all others.
	($(PYTEST) --ignore=tests/ui || $(AGAIN)) && ($(PYTEST) tests/ui || $(AGAIN))

all-servers: setup
	@$(START) $(OR_SKIP)

test-clocks: setup ## the tests without servers, at six moments around midnight, month ends and clock changes
	for clock in $(CLOCKS); do \
		echo "== $$clock"; \
		TZ=Europe/Berlin TEST_SERVERS= $(PYTEST) -m "not slow and not postgres" --wall-clock $$clock $(PYTEST_ARGS) || exit 1; \
	done

soak-simulation: setup ## simulate many fresh seeds on all cores (SEEDS=1000, FIRST=first seed)
	$(BIN)/python -m tools.soak_simulation --count $(or $(SEEDS),1000) $(if $(FIRST),--first $(FIRST))

fuzz: setup ## search for inputs that are not handled as documented (SECONDS=60 per target, TARGETS="cron jobs")
	$(BIN)/python -m tools.fuzz --seconds $(or $(SECONDS),60) $(TARGETS)

check: setup ## format, lint, types, layers, tests that depend on speed, words, spelling
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports
	$(BIN)/python -m tools.timing_lint
	$(BIN)/python -m tools.words
	$(BIN)/codespell $(filter-out tests,$(CODE)) docs deploy $(wildcard *.md)

format: setup ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix-only --quiet $(CODE)
	$(BIN)/ruff format $(CODE)

openapi: setup ## write docs/reference/openapi.json anew
	$(BIN)/python -m mainspring.config.openapi > docs/reference/openapi.json

reference: setup ## write cli.md, sdk.md, metrics.md and problems.md in docs/reference again, and the dashboards in deploy/grafana
	$(BIN)/python -m mainspring.cli.reference > docs/reference/cli.md
	$(BIN)/python -m tools.sdk_reference > docs/reference/sdk.md
	$(BIN)/python -m tools.metrics_reference > docs/reference/metrics.md
	$(BIN)/python -m tools.problems_reference > docs/reference/problems.md
	$(BIN)/python -m tools.dashboards

manifests: setup ## write deploy/kubernetes anew, from the chart (needs Helm, which Go builds)
	$(BIN)/python -m tools.manifests

docs: $(VENV)/.docs ## the documentation as a site, in build/docs
	$(BIN)/python -m tools.site.build

dist: $(VENV)/.dist ## wheel, source distribution, SBOM and checksums, in dist/
	$(BIN)/python -m tools.dist

screenshots: setup ## the dashboard's pages as pictures, in .screenshots/ (needs chromium)
	$(BIN)/python -m tools.screenshots

quickstart: setup ## play the quickstart of the README from a wheel in an empty folder, and write its output into the pages
	$(BIN)/python -m tools.pages --record README.md docs/get-started/first-ten-minutes.md

bench: setup ## measure (BENCH_ARGS)
	$(BIN)/mainspring bench $(BENCH_ARGS)

soak: setup ## half an hour of full load on PostgreSQL: does it get slower? (BENCH_ARGS)
	$(BIN)/mainspring bench --store postgres --soak 30m $(BENCH_ARGS)

chaos: setup ## break a running cluster in every way there is, and judge what came of it (CHAOS_ARGS)
	$(BIN)/python -m tools.chaos $(CHAOS_ARGS)

mutants: setup ## change the code in one place at a time and report changes that no test notices (MUTANTS_ARGS)
	@$(START) postgres $(OR_SKIP)
	$(BIN)/python -m tools.mutants $(MUTANTS_ARGS)

coverage: setup ## line and branch coverage of the model, the services and the workers
	$(BIN)/coverage erase
	$(subst -m pytest,-m coverage run -m pytest,$(PYTEST)) -m "not slow and not postgres" tests/unit tests/services tests/worker
	$(BIN)/coverage combine --quiet
	@$(BIN)/coverage json --quiet -o build/coverage/report.json
	@$(BIN)/python -m tools.coverage_table build/coverage/report.json

peers: setup ## install the queues that the benchmark compares with, into the cache (npm, Go)
	$(BIN)/python -m bench.peers --install

peers-bench: setup ## measure beside them, in turns, on one server, in 20 minutes (npm, Go, Redis; BENCH_ARGS)
	$(BIN)/python -m bench.peers $(BENCH_ARGS)

services: setup ## start the local servers that the tests use
	$(BIN)/python -m tools.services start

services-stop: setup ## stop them
	$(BIN)/python -m tools.services stop

lock: setup ## pin the newest allowed versions in requirements/
	$(UV) $(COMPILE) --upgrade --all-extras --group dev pyproject.toml --output-file requirements/dev.txt
	$(UV) $(COMPILE) --upgrade --constraint requirements/dev.txt pyproject.toml --output-file requirements/run.txt
	$(UV) $(COMPILE) --upgrade --group peers --output-file requirements/peers.txt
	$(UV) $(COMPILE) --upgrade --group docs --constraint requirements/dev.txt --output-file requirements/docs.txt
	$(UV) $(COMPILE) --upgrade --group dist --constraint requirements/dev.txt --output-file requirements/dist.txt

clean: ## remove .venv, the local servers with their data, and caches
	-$(PYTHON) -m tools.services remove
	rm -rf $(VENV) .services .chaos .screenshots .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find $(CODE) -type d -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Mainspring needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(BIN)/uv: | $(BIN)/python
	@echo 'Installing uv, which installs the rest'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

# The developer set has all of this, too. Without it the installer is not kept: it is a quarter of the whole.
$(VENV)/.run: pyproject.toml requirements/run.txt | $(BIN)/python
	@[ -x $(UV) ] || $(MAKE) --no-print-directory $(UV)
	@echo 'Installing what running needs into $(VENV): requirements/run.txt, about 140 MB'
	@$(INSTALL) --requirement requirements/run.txt --editable .
	@[ $(UV) != $(BIN)/uv ] || [ -e $(VENV)/.installed ] || $(BIN)/python -m pip uninstall --quiet --yes uv
	@touch $@

$(VENV)/.installed: pyproject.toml requirements/dev.txt | $(BIN)/python $(UV)
	@echo 'Installing what developing needs into $(VENV): requirements/dev.txt, about 1 GB'
	@$(INSTALL) --requirement requirements/dev.txt --editable .
	@touch $@ $(VENV)/.run

$(VENV)/.dist: requirements/dist.txt $(VENV)/.installed
	$(UV) pip install --quiet --python $(BIN)/python --requirement requirements/dist.txt
	@touch $@

$(VENV)/.docs: requirements/docs.txt $(VENV)/.installed
	$(UV) pip install --quiet --python $(BIN)/python --requirement requirements/docs.txt
	@touch $@
