# `make help` lists the targets. Environments: .venv for the project, .venvs/3.x for the project with another Python,
# .venvs/clients for foreign clients that pin protobuf < 7.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLIENTS := .venvs/clients
RELEASE := .venvs/release
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# What a release may install: all extras but those for working on headrace.
define list_extras
import tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print(",".join(sorted(extras.keys() - {"dev", "demo", "fuzz"})))
endef
export list_extras
print_series := -c 'import sys; print("%d.%d" % sys.version_info[:2])'

.PHONY: help install clients packages demo demo-archive serve services services-stop test test-night test-python check format clean fuzz release audit

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: $(VENV)/.installed ## the project and its tools into .venv, when pyproject.toml has changed
ifneq ($(origin PYTHON),file) # Whoever names a Python means to use it.
	@test "$$($(PYTHON) $(print_series))" = "$$($(BIN)/python $(print_series))" || \
		{ echo "$(VENV) has $$($(BIN)/python -V), which is not $(PYTHON): remove it, or make test-python PYTHON=$(PYTHON)" >&2; exit 1; }
endif

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headrace needs Python 3.11 or newer; make PYTHON=python3.x …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "cannot make $(VENV): install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install -q -e '.[sklearn,grpcio,uvicorn,tls,train,plot,tensorflow,text,image,similarity,archive,redis,cassandra,kafka,signing,tracing,jwt,demo,dev]'
	@touch $@

clients: $(CLIENTS)/.installed ## foreign clients (tritonclient, TensorFlow Serving's stubs) into an environment of their own

$(CLIENTS)/.installed: tests/clients/requirements.txt tests/clients/no-dependencies.txt
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install -q -r tests/clients/requirements.txt
	$(CLIENTS)/bin/python -m pip install -q --no-deps -r tests/clients/no-dependencies.txt
	@touch $@

demo: install ## real ratings stream in, a click model learns, versions appear, a server answers from the newest
	$(BIN)/python -m demo.run

demo-archive: install ## film titles are asked for, embedded in the background, found; ENGINES=1: on Cassandra and Kafka
	$(BIN)/python -m demo.archive

serve: install ## serve a small example model on ports 8501 (HTTP) and 8500 (gRPC)
	@test -d .data/example || $(BIN)/headrace example .data/example
	$(BIN)/headrace serve .data/example

services: ## Redis, Cassandra and Kafka on this machine: fetch, start, wait until ready (docs/services.md)
	@$(PYTHON) -m tools.services start

services-stop: ## stop them; their data stays in .data/services
	@$(PYTHON) -m tools.services stop

packages: ## what tests need of the system, and Redis, Cassandra and Kafka
	@tools/system_packages.sh curl haproxy nginx prometheus promtool faketime
	@$(PYTHON) -m tools.services fetch

test: install clients packages ## checks, with all that they can ask then, and all tests
	@$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest -n 4 -m "not night"

test-night: install clients packages ## the tests that take minutes each, and properties with all of their examples
	$(BIN)/python -m pytest -n 2 -m night
	EXAMPLES=all $(BIN)/python -m pytest -n 2 tests/properties

test-python: ## the same with another Python, in .venvs/3.x: `make test-python PYTHON=python3.13`
	@series=$$($(PYTHON) $(print_series)) && $(MAKE) test VENV=".venvs/$$series"

fuzz: install ## ten minutes of bytes that nobody has thought of, for every reader of bytes; FUZZ_SECONDS=N for longer
	$(BIN)/python -m pip install -q -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz --seconds $${FUZZ_SECONDS:-600}

release: install ## the wheel, the source and the SBOM (CycloneDX) of a release, into dist
	rm -rf dist $(RELEASE)
	$(BIN)/python -m pip install -q 'build>=1.2' 'cyclonedx-bom>=7'
	$(BIN)/python -m build -q --outdir dist
	$(PYTHON) -m venv $(RELEASE)
	@wheel=$$(echo dist/*.whl) && extras=$$($(BIN)/python -c "$$list_extras") && \
		$(RELEASE)/bin/python -m pip install -q "$$wheel[$$extras]" && \
		$(BIN)/cyclonedx-py environment $(RELEASE)/bin/python --pyproject pyproject.toml --output-reproducible \
			-o "$${wheel%%-py3*}.cdx.json"
	@ls -l dist

audit: install ## known weaknesses of what is installed, and of the tests' and benchmarks' pins; needs PyPI's database
	$(BIN)/python -m pip install -q 'pip-audit>=2.7'
	@failed=0; for what in "--skip-editable" "-r tests/clients/requirements.txt" "-r benchmarks/peers/requirements.txt"; do \
		echo "pip-audit --strict $$what"; $(BIN)/pip-audit --strict $$what || failed=1; \
	done; exit $$failed

check: install ## style, types, import contract, size budget, spelling, files of deploy/, generated files
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/size_budget.py
	$(BIN)/codespell
	$(if $(wildcard tools/deployment.py),$(BIN)/python tools/deployment.py)
	$(if $(wildcard tools/protos.py),$(BIN)/python tools/protos.py --check)

format: install ## let ruff lay out the code
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

-include benchmarks/bench.mk

clean: services-stop ## remove what was built, downloaded and cached (the environments stay)
	rm -rf .data .bench build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests tools demo benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
