# Every target makes what it needs; `make help` lists them.

PYTHON ?= python3
# On Linux pip takes the CUDA build of torch unless it is pointed at a CPU build, for example with PIP_INDEX_URL.
TORCH ?= torch==2.13.0
ARGS ?=
VARIANT ?= rloo

SHELL := /bin/bash
MAKEFLAGS += --jobs=2
TRL := .venvs/trl
VERL := .venvs/verl
LOGS := build/tests
# Without --no-compile pip compiles thousands of modules that are never imported: half of the time.
PIP := bin/python -m pip install -qq --no-compile --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help quickstart quickstart-verl test test-slow parity bench bench-full lint environments clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: $(TRL)/.installed ## Train a small model with LoRA, no GPU needed; options in ARGS="--variant rloo --seed 1"
	$(TRL)/bin/python examples/quickstart.py $(ARGS)

quickstart-verl: $(VERL)/.installed-test ## Two steps of verl's own trainer with LoRA and a variant, no GPU needed (VARIANT=dapo)
	PYTHON=$(VERL)/bin/python examples/verl_lora.sh --cpu-smoke $(VARIANT)

test: environments lint ## Everything: format, lint, types, all tests in both environments
	@$(call both,)

test-slow: environments ## Only the tests that train a model or start processes
	@$(call both,-m slow)

# The suites use one core each, so they run side by side: TRL's on the screen; verl's, and the core's in its environment,
# shown when they have ended. The last lines are pytest's own, one for each suite.
define both
mkdir -p $(LOGS); \
{ $(VERL)/bin/python -m pytest tests/verl $(1) > $(LOGS)/verl.log 2>&1; other=$$?; \
$(VERL)/bin/python -m pytest tests/core $(1) > $(LOGS)/core.log 2>&1 || other=$$?; exit $$other; } & \
other=$$!; trap "kill $$other" INT TERM; \
$(TRL)/bin/python -m pytest tests/trl $(1) 2>&1 | tee $(LOGS)/trl.log; status=$${PIPESTATUS[0]}; \
wait $$other || status=$$?; \
cat $(LOGS)/verl.log $(LOGS)/core.log; tail -qn 1 $(LOGS)/trl.log $(LOGS)/verl.log $(LOGS)/core.log; \
exit $$status
endef

parity: environments ## Compare with both trainers' built-ins, and write docs/parity.md from what the tests find
	$(VERL)/bin/python -m pytest tests/verl --write-parity
	$(TRL)/bin/python -m pytest tests/trl --write-parity
	$(TRL)/bin/python -m tools.docs.pages

bench: environments ## Quick benchmarks against both trainers, judged by benchmarks/bars.toml (three minutes)
	@mkdir -p build; rm -f build/benchmarks.json
	$(VERL)/bin/python -m benchmarks --quick --into build/benchmarks.json $(ARGS)
	$(TRL)/bin/python -m benchmarks --quick --into build/benchmarks.json $(ARGS)

bench-full: environments ## Every benchmark at every size, into docs/performance.md (an hour, on a machine that does nothing else)
	-$(VERL)/bin/python -m benchmarks --full --into docs/performance.json
	$(TRL)/bin/python -m benchmarks --full --into docs/performance.json --page docs/performance.md --plot docs/performance.png

lint: $(TRL)/.installed-test ## Format, lint and type checks
	$(TRL)/bin/ruff format --check .
	$(TRL)/bin/ruff check .
	$(TRL)/bin/mypy

# TRL and verl do not work in one environment, so each has its own.
environments: $(TRL)/.installed-test $(VERL)/.installed-test

$(TRL)/.installed: pyproject.toml
	@echo "Making $(TRL): torch, then TRL (one or two minutes)"
	$(PYTHON) -m venv $(TRL)
	$(TRL)/$(PIP) "$(TORCH)"
	$(TRL)/$(PIP) "$(TORCH)" --editable ".[trl,report]" "gguf>=0.10"
	@touch $@

$(TRL)/.installed-test: $(TRL)/.installed
	$(TRL)/$(PIP) "$(TORCH)" --editable ".[trl,test]"
	@touch $@

$(VERL)/.installed-test: pyproject.toml
	@echo "Making $(VERL): torch, then verl (one or two minutes)"
	$(PYTHON) -m venv $(VERL)
	$(VERL)/$(PIP) "$(TORCH)"
	$(VERL)/$(PIP) "$(TORCH)" --editable ".[verl,test]" TransferQueue
	@touch $@

clean: ## Remove environments, caches and outputs of runs
	rm -rf .venvs .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist runs
