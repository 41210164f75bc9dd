# Everything works on a fresh clone: each target makes the virtual environment it needs.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := setup.py pyproject.toml constraints.txt $(wildcard proto/reclock/*/v1/*.proto) $(wildcard _fastpath/*.pyx _fastpath/*.pxd _fastpath/*.pxi _fastpath/*.h)
MEMBERS ?= 2
AGGREGATORS ?= 1
ENGINE ?=
DETACH ?=
PYTEST_ARGS ?=
MINUTES ?= 5
SEED ?= 0
WRITES ?= 120
OUT ?=
MODULE ?=

.DEFAULT_GOAL := help
.PHONY: help venv stubs api demo demo-stop test test-fast kube lint bench torture clean

help:
	@echo "make demo        a fleet of clusters (real after `make kube`, else simulated), and kubectl against all of it (MEMBERS=2 AGGREGATORS=1 ENGINE=kube|sim DETACH=1)"
	@echo "make demo-stop   end a demo that was started with DETACH=1"
	@echo "make test        every test that this machine can run (builds the Kubernetes binaries where Go is found)"
	@echo "make test-fast   tests that need no server"
	@echo "make kube        build kube-apiserver, etcd, KWOK, … into the cache"
	@echo "make lint        ruff, mypy, import rules, contracts"
	@echo "make stubs       gRPC stubs for your language (LANG=go|java|python|ts OUT=DIR)"
	@echo "make bench       the figures of README.md, as ratios in one run"
	@echo "make torture     everything is killed, cut off and slowed down under load, then every client's history is checked (MINUTES=5 SEED=n WRITES=120)"
	@echo "make clean       remove what was built in this checkout"

venv: $(STAMP)

$(STAMP): $(SOURCES)
	@$(PYTHON) -m deploy.venv $(VENV) test,lint,etcd
	@touch $@

kube:
	@$(PYTHON) -m deploy.local.build

demo: venv
	@MEMBERS="$(MEMBERS)" AGGREGATORS="$(AGGREGATORS)" ENGINE="$(ENGINE)" DETACH="$(DETACH)" $(BIN)/python -m deploy.local.demo

demo-stop: venv
	@$(BIN)/python -m deploy.local.demo --stop

test: venv
	@if command -v go >/dev/null; then $(PYTHON) -m deploy.local.build; else echo "no Go: tests that need Kubernetes are skipped"; fi
	@$(BIN)/python -m pytest tests/unit tests/integration tests/kube tests/languages -q $(PYTEST_ARGS)

test-fast: venv
	@$(BIN)/python -m pytest tests/unit -q

lint: venv
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/buf lint proto
	@$(BIN)/buf breaking proto --against proto/baseline.binpb

# LANG of the environment is the locale: only one that was given to make counts.
stubs: venv
	@$(BIN)/python -m deploy.stubs --lang "$(if $(filter command,$(firstword $(origin LANG))),$(LANG))" $(if $(OUT),--out "$(OUT)") $(if $(MODULE),--module "$(MODULE)")

api: venv
	@$(BIN)/python -m deploy.apidoc

bench: venv
	@$(PYTHON) -m deploy.local.build
	@$(BIN)/python -m benchmarks

torture: venv
	@$(PYTHON) -m deploy.local.build
	@$(BIN)/python -m tests.torture --minutes $(MINUTES) --seed $(SEED) --writes $(WRITES)

clean:
	@rm -rf build dist .tox .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info $(VENV)
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@find _fastpath reclock \( -name '*.so' -o -name '*_pb2.py*' -o -name '*_pb2_grpc.py*' -o -name '*.c' \) -delete
