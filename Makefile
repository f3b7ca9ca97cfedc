# `make demo` shows the library at work; `make test` proves it. CONTRIBUTING.md explains the rest.
#
# Every target makes the virtual environment that it needs: .venv for development, .venv-demo and .venv-demo-torch for the
# demos, .venv-peers for the real Megatron-Energon and the other loaders that we measure against.
#   make test PYTEST_ARGS="-k blend -x"      pass options to pytest
#   make test TEST_PROCESSES=0               run one test file after the other; the default is two at a time
#   make check VENV=/path/to/venv            use another development environment

PYTHON ?= python3
VENV ?= .venv
DEMO_VENV ?= .venv-demo
DEMO_TORCH_VENV ?= .venv-demo-torch
PEERS_VENV ?= .venv-peers
DIST ?= dist
PYTEST_ARGS ?=
TEST_PROCESSES ?= 2
BENCH_ARGS ?=
# Not compiled: Python compiles what it imports, and of what is installed that is little.
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check --no-compile

# Tests and benchmarks that need Megatron-Energon ask this variable for an interpreter that has it.
ifneq ($(wildcard $(PEERS_VENV)/.ready),)
export ENERGON_PEER_PYTHON ?= $(abspath $(PEERS_VENV)/bin/python)
endif

.PHONY: help demo demo-torch setup environments test test-all golden check format docs package bench peers clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       real digits from tars to a trained and resumed classifier, in its own environment"
	@echo "make demo-torch the same digits in PyTorch, on 1, 2 and 4 ranks, in an environment without JAX and Grain"
	@echo "make test       the tests, with every warning an error; of the slowest modules a quarter, which the commit chooses"
	@echo "make test-all   all of them, and longer searches by hypothesis"
	@echo "make golden     record today's streams, files and answers anew in tests/golden, after a change that is meant"
	@echo "make check      ruff, pyright, import-linter, and the bounds of tests/shape.json"
	@echo "make format     let ruff format and fix what it can"
	@echo "make docs       build the documentation into site/, with every warning an error"
	@echo "make package    sdist and wheel into dist/, checked, and tried in an environment of their own"
	@echo "make bench      the benchmarks, against the peers that 'make peers' installs"
	@echo "make setup      only the development environment ($(VENV))"
	@echo "make environments  that one, and those of both demos"
	@echo "make peers      only the peers' environment ($(PEERS_VENV))"
	@echo "make clean      remove what the targets above have made"

demo: $(DEMO_VENV)/.ready
	$(DEMO_VENV)/bin/python examples/digits/demo.py

demo-torch: $(DEMO_TORCH_VENV)/.ready
	$(DEMO_TORCH_VENV)/bin/python examples/digits/demo_torch.py

setup: $(VENV)/.ready

environments: $(VENV)/.ready $(DEMO_VENV)/.ready $(DEMO_TORCH_VENV)/.ready

# Files go to processes in the order that `tests/conftest.py` gives them: the longest first.
PYTEST = $(VENV)/bin/python -m pytest -W error -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.ready
	$(PYTEST) --slice=commit $(PYTEST_ARGS)

test-all: $(VENV)/.ready
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-night} $(PYTEST) --slice=all $(PYTEST_ARGS)

golden: $(VENV)/.ready
	cd tests && $(abspath $(VENV))/bin/python -m golden.record

check: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python tests/shape.py
	$(VENV)/bin/python tests/words.py

format: $(VENV)/.ready
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --quiet

# What would be published: the sdist, and the wheel that is built of it, checked; and the README's program, run by the wheel alone.
package: $(VENV)/.ready
	rm -rf $(DIST)
	$(VENV)/bin/python -m build --no-isolation --outdir $(DIST) .
	$(VENV)/bin/python -m twine check --strict $(DIST)/*
	$(PYTHON) -m venv $(DIST)/trial
	$(DIST)/trial/bin/python $(PIP_INSTALL) $(DIST)/*.whl
	sed -n '/^```python/,/^```/p' README.md | sed '/^```/d' > $(DIST)/trial/readme.py
	test -s $(DIST)/trial/readme.py
	cd $(DIST)/trial && bin/python -I bin/energon-grain --version && bin/python -I readme.py
	rm -rf $(DIST)/trial

bench: $(VENV)/.ready $(PEERS_VENV)/.ready
	ENERGON_PEER_PYTHON=$(abspath $(PEERS_VENV)/bin/python) $(VENV)/bin/python -m benchmarks.run $(BENCH_ARGS)

peers: $(PEERS_VENV)/.ready

clean:
	rm -rf .venv .venv-demo .venv-demo-torch .venv-peers .demo .demo-torch .bench site dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# pip learnt to install dependency groups in version 25.1.
# On a machine without a GPU, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu saves two gigabytes of PyTorch's.
define new_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; $$($(PYTHON) --version) is $(PYTHON). Try: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Installing into $(1) ..."
	$(PYTHON) -m venv $(1)
	$(1)/bin/python $(PIP_INSTALL) --upgrade 'pip>=25.1'
endef

$(VENV)/.ready: pyproject.toml
	$(call new_venv,$(VENV))
	$(VENV)/bin/python $(PIP_INSTALL) -e '.[jax,codecs]' --group dev --group docs
	@touch $@

$(DEMO_VENV)/.ready: pyproject.toml
	$(call new_venv,$(DEMO_VENV))
	$(DEMO_VENV)/bin/python $(PIP_INSTALL) -e '.[jax]' --group demo
	@touch $@

$(DEMO_TORCH_VENV)/.ready: pyproject.toml
	$(call new_venv,$(DEMO_TORCH_VENV))
	$(DEMO_TORCH_VENV)/bin/python $(PIP_INSTALL) -e '.[torch]' --group demo-torch
	@touch $@

# Megatron-Energon asks for torchvision and more through its dependencies; it runs without them.
$(PEERS_VENV)/.ready: pyproject.toml
	$(call new_venv,$(PEERS_VENV))
	$(PEERS_VENV)/bin/python $(PIP_INSTALL) --group peers
	$(PEERS_VENV)/bin/python $(PIP_INSTALL) --no-deps 'megatron-energon==7.4.1' 'litdata==0.2.76'
	$(PEERS_VENV)/bin/python $(PIP_INSTALL) -e '.[array-record,arrays]'
	@touch $@
