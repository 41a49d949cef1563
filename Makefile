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
TORCH := .venvs/torch
RELEASE := .venvs/release
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Images often set it; then each server that a test starts compiles all of headrace again, for 0.3 s.
unexport PYTHONDONTWRITEBYTECODE
# What a release may install: all extras but those for working on headrace.
define list_extras
import tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print(",".join(sorted(extras.keys() - {"dev", "demo", "fuzz"})))
endef
export list_extras
print_series := -c 'import sys; print("%d.%d" % sys.version_info[:2])'
SERIES := $(shell $(PYTHON) $(print_series))
# Tested versions of all packages. A Python series without these files gets the newest versions.
CONSTRAINTS := $(wildcard constraints-$(SERIES).txt)
CLIENTS_CONSTRAINTS := $(wildcard constraints-clients-$(SERIES).txt)
pinned_by = $(if $(1),-c $(1))
EXTRAS := all,demo,dev
STEP = $(PYTHON) tools/step.py

.PHONY: help install clients packages kernels demo demo-archive serve services services-stop \
	test test-rest test-timing test-all test-python torch test-torch burn upgrade check format clean fuzz release audit

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 15

install: $(VENV)/.installed ## install the project and its tools into .venv, as pinned in constraints-3.x.txt
ifneq ($(origin PYTHON),file) # PYTHON was given explicitly, so .venv must match it.
	@test "$$($(PYTHON) $(print_series))" = "$$($(BIN)/python $(print_series))" || \
		{ echo "$(VENV) has $$($(BIN)/python -V), which is not $(PYTHON): remove it, or make test-python PYTHON=$(PYTHON)" >&2; exit 1; }
endif

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headrace needs Python 3.11 or newer; make PYTHON=python3.x …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "cannot make $(VENV): install python3-venv" >&2; exit 1; }
	$(if $(CONSTRAINTS),,@echo "no constraints-$(SERIES).txt: installing the newest versions")
	$(BIN)/python -m pip install -q $(call pinned_by,$(CONSTRAINTS)) -e '.[$(EXTRAS)]'
	@touch $@

clients: $(CLIENTS)/.installed ## install third-party clients (tritonclient, TensorFlow Serving's stubs) into .venvs/clients

$(CLIENTS)/.installed: tests/clients/requirements.txt tests/clients/no-dependencies.txt $(CLIENTS_CONSTRAINTS)
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	$(if $(CLIENTS_CONSTRAINTS),,@echo "no constraints-clients-$(SERIES).txt: installing the newest versions")
	$(CLIENTS)/bin/python -m pip install -q $(call pinned_by,$(CLIENTS_CONSTRAINTS)) -r tests/clients/requirements.txt
	$(CLIENTS)/bin/python -m pip install -q $(call pinned_by,$(CLIENTS_CONSTRAINTS)) --no-deps -r tests/clients/no-dependencies.txt
	@touch $@

torch: $(TORCH)/.installed ## install PyTorch and fastai (6 GB) into .venvs/torch, which sees the packages of .venv, too

$(TORCH)/.installed: install tests/torch/requirements.txt
	@test -x $(TORCH)/bin/python || $(PYTHON) -m venv $(TORCH)
	@$(BIN)/python -c 'import os, sysconfig; print(os.path.realpath("src"), sysconfig.get_path("purelib"), sep="\n")' \
	  > $$($(TORCH)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/headrace.pth
	$(TORCH)/bin/python -m pip install -q -r tests/torch/requirements.txt
	@touch $@

test-torch: torch ## run the tests of the PyTorch runtime
	$(TORCH)/bin/python -m pytest tests/conformance/test_runtimes.py tests/unit/runtimes/test_torch.py -k torch

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

packages: ## install system packages for the tests; fetch Redis, Cassandra and Kafka
	@tools/system_packages.sh curl haproxy nginx prometheus promtool faketime
	@$(PYTHON) -m tools.services fetch

kernels: install ## compile the numba kernels that tests use
	@$(BIN)/python -m tests.kernels

test: install clients packages kernels ## run `make check` and all tests that take up to 3 seconds
	@$(STEP) check $(MAKE) --no-print-directory check
	@$(STEP) test $(BIN)/python -m tools.gate test

test-rest: install clients packages kernels ## run the tests marked `rest`, which take longer
	@$(STEP) rest $(BIN)/python -m tools.gate rest

test-timing: install clients packages kernels ## run the tests marked `timing`; use a quiet machine
	$(BIN)/python -m pytest --lane timing

test-all: ## run test, test-rest and test-timing, one after the other
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest
	@$(MAKE) --no-print-directory test-timing

test-python: ## `make test` with another Python, in .venvs/3.x: `make test-python PYTHON=python3.13`
	@series=$$($(PYTHON) $(print_series)) && $(MAKE) test VENV=".venvs/$$series"

burn: install clients packages kernels ## run tests ten times beside two busy loops: `make burn T=tests/faults/test_reloads.py`
	@test -n "$(T)" || { echo "name the tests: make burn T=tests/faults/test_reloads.py" >&2; exit 2; }
	@$(BIN)/python -m tools.burn $(T)

upgrade: ## resolve all versions anew, write the constraints files, and run all tests with them
	$(call resolved,constraints-$(SERIES).txt,-e '.[$(EXTRAS)]')
	$(call resolved,constraints-clients-$(SERIES).txt,-r tests/clients/requirements.txt,--no-deps -r tests/clients/no-dependencies.txt)
	rm -rf .venvs/upgrade $(CLIENTS) $(VENV)
	$(MAKE) test-all

# Write a constraints file from a new environment, in which each further argument was given to pip install.
# Python 3.11 puts an old setuptools into a new environment; the file names one only if a package needs it.
define resolved
rm -rf .venvs/upgrade && $(PYTHON) -m venv .venvs/upgrade
	.venvs/upgrade/bin/python -m pip uninstall -q -y setuptools
	.venvs/upgrade/bin/python -m pip install -q $(2)
	$(if $(3),.venvs/upgrade/bin/python -m pip install -q $(3))
	$(PYTHON) tools/pins.py .venvs/upgrade/bin/python >.venvs/upgrade/pins && mv .venvs/upgrade/pins $(1)
endef

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

check: install ## style, types, import contract, size budget, rules for tests, spelling, English, deploy/, generated files
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/size_budget.py
	$(BIN)/python -m tools.test_rules
	$(BIN)/codespell
	$(BIN)/python -m tools.prose
	$(if $(wildcard tools/deployment.py),$(BIN)/python tools/deployment.py)
	$(if $(wildcard tools/protos.py),$(BIN)/python tools/protos.py --check)

format: install ## let ruff lay out the code
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

-include benchmarks/bench.mk

clean: services-stop ## remove what was built, downloaded and cached (the environments stay)
	rm -rf .data .bench build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests tools demo benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
