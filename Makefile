# codeneedle: what a newcomer needs, each in one word.
#
#   make sweep    the main job, on a small language model, from nothing
#   make test     every test, the ones on the real llama-server included

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SNAKEMAKE := $(VENV)/snakemake/bin/snakemake
EVALUATIONS := $(VENV)/evaluations/.ready

.DEFAULT_GOAL := help
.PHONY: help setup llama sweep test quick coverage map docs faults fuzz mutants truth bench cluster evaluations humaneval vulkan check fix

help: ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "codeneedle needs Python 3.11 or later; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 3; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock \
	  --editable '.[dev]'
	@touch $@

# In an environment of its own: 50 packages that only the test of scripts/Snakefile needs.
$(SNAKEMAKE): | $(READY)
	$(BIN)/python -m venv $(VENV)/snakemake
	$(VENV)/snakemake/bin/python -m pip install --quiet --disable-pip-version-check 'snakemake>=8'

# Of their own, too: two large evaluation tools.
$(EVALUATIONS): | $(READY)
	$(BIN)/python -m venv $(VENV)/evaluations
	$(VENV)/evaluations/bin/python -m pip install --quiet --disable-pip-version-check inspect_ai openai 'lm_eval[api]'
	@touch $@

setup: $(READY) ## Make the virtual environment and install the package

llama: setup ## Build llama.cpp into the cache folder, unless there is one
	@$(BIN)/codeneedle llama

# An answer and a picture come first, of the reference and what people set; the other
# cells follow, and may be interrupted at any time.
FIRST := --pairs bf16/bf16,q8_0/q8_0,q8_0/q4_0,q4_0/q4_0 --no-more

sweep: llama ## Sweep the 6x6 grid on a small language model: a first answer, then all
	@if $(BIN)/codeneedle fetch smollm2 >/dev/null; then \
	  asked=gradient; run=random-bodies-short/smollm2; \
	else \
	  echo "make sweep: without that model, the built-in one is swept" >&2; \
	  asked='--corpus random-bodies-mini'; run=random-bodies-mini/needle-nano; \
	fi; \
	for first in '$(FIRST)' ''; do \
	  $(BIN)/codeneedle sweep $$asked $$first || test $$? -eq 1 || exit; \
	  $(BIN)/codeneedle grid $$run && $(BIN)/codeneedle heatmap $$run || exit; \
	  test -z "$$first" || echo "make sweep: the other cells follow; Ctrl-C ends them, make sweep goes on" >&2; \
	done

# A file of tests stays in one process, and with it what its tests share. Files keep
# their order: long ones first.
test: llama $(SNAKEMAKE) ## Run every test, the ones on the real llama-server included
	@$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
	  $(PYTEST_ARGS)

# Apart: what runs in one process takes twice the time.
coverage: ## Run every test, and tell which lines and branches none runs
	@$(MAKE) test PYTEST_ARGS='--cov --cov-report=term $(PYTEST_ARGS)'

# Compiled tests are kept: without them every process spends 20 s on that first.
test quick: export PYTHONDONTWRITEBYTECODE :=

quick: setup ## Run the tests that need no server, fault, picture or other program: minutes
	@$(BIN)/pytest -m 'not real and not slow' --ignore tests/faults \
	  -n logical --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)

map: ## List every module with what it holds, a line each
	@$(PYTHON) scripts/module_map.py

docs: setup ## Build the documentation into docs/_build, warnings as errors
	@$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build
	@echo docs/_build/index.html

faults: llama ## Inject every kind of fault many times, and print what it cost
	@$(BIN)/pytest tests/faults --all-injections $(PYTEST_ARGS)

fuzz: setup ## Feed a million inputs to every reader of bytes from outside
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@$(BIN)/python scripts/fuzz.py

mutants: setup ## Change an operator at a time in pure modules; do tests notice?
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[mutants]'
	@$(BIN)/python scripts/mutants.py $(MUTANTS_ARGS)

truth: setup ## Measure false alarms and power of the verdict on grids of known truth
	@$(BIN)/python scripts/truth.py $(TRUTH_ARGS)

bench: llama ## Measure cells beside the published protocol, start-up, reports, workers
	@$(BIN)/python scripts/bench.py $(BENCH_ARGS)

cluster: llama ## Sweep on a SLURM of one node; needs slurm-wlm and munge
	@$(BIN)/python scripts/cluster.py

evaluations: llama $(EVALUATIONS) ## Evaluate a small language model by inspect_ai and lm-eval
	@$(BIN)/python scripts/evaluations.py $(VENV)/evaluations/bin

humaneval: llama ## Ask MODEL=FILE HumanEval with six pairs, beside their losses: hours
	@test -n '$(MODEL)' || { echo 'make humaneval: name the weights: MODEL=FILE' >&2; exit 2; }
	@$(BIN)/python scripts/humaneval.py sweep '$(MODEL)' sweeps/humaneval
	@$(BIN)/python scripts/humaneval.py table sweeps/humaneval

vulkan: setup ## Survey and sweep on a Vulkan build without a GPU, by imposed rules too
	@$(BIN)/python scripts/vulkan.py $(VULKAN_ARGS)

check: setup ## Lint, format and types, nothing changed
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/mypy --platform darwin --no-warn-unreachable --cache-dir .mypy_cache/darwin codeneedle

fix: setup ## Mend what can be mended mechanically
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format
