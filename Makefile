# Start with `make demo` and `make test`. CONTRIBUTING.md explains the rest.
#
# Every target creates the virtual environment that it needs: .venv for development, .venv-demo and .venv-demo-torch for
# the demos, .venv-peers for Megatron-Energon and the other loaders in the benchmarks (.venv-peers-mosaic for Mosaic), and
# .venv-truth and .venv-truth-NAME for LoaderTruth and each loader in it.
#   make test PYTEST_ARGS="-k blend -x"      pass options to pytest
#   make test TEST_PROCESSES=0               run the tests in one process; the default is 2 processes
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
TRUTH_LOADERS ?= energon_grain_torch
TRUTH_ARGS ?=
TRUTH_REQUIREMENTS = benchmarks/truth/loaders/requirements
# --no-compile: Python compiles modules on import, and most installed modules are never imported.
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check --no-compile

# Tests and benchmarks that need Megatron-Energon run the interpreter in this variable.
ifneq ($(wildcard $(PEERS_VENV)/.ready),)
export ENERGON_PEER_PYTHON ?= $(abspath $(PEERS_VENV)/bin/python)
endif

.PHONY: help demo demo-torch setup environments test test-all golden check format docs package bench truth peers clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       train a classifier on real digits, kill it and resume it, in its own environment"
	@echo "make demo-torch the same digits in PyTorch, on 1, 2 and 4 ranks, in an environment without JAX and Grain"
	@echo "make test       the tests, with warnings as errors; a quarter of the slowest modules, selected by the commit"
	@echo "make test-all   all tests, with longer hypothesis searches"
	@echo "make golden     record streams, files and outputs again in tests/golden, after an intended change"
	@echo "make check      ruff, pyright, import-linter, the limits of tests/shape.json, and the word list"
	@echo "make format     format the code and apply the automatic fixes of ruff"
	@echo "make docs       build the documentation in site/, with warnings as errors"
	@echo "make package    build sdist and wheel in dist/, check them, and test the wheel in a new environment"
	@echo "make bench      run the benchmarks against the loaders that 'make peers' installs"
	@echo "make truth      run LoaderTruth for TRUTH_LOADERS ($(TRUTH_LOADERS)), each in its own environment"
	@echo "make setup      create only the development environment ($(VENV))"
	@echo "make environments  create the environments of development and of both demos"
	@echo "make peers      create only the peers' environments ($(PEERS_VENV), $(PEERS_VENV)-mosaic)"
	@echo "make clean      remove everything that the other targets created"

demo: $(DEMO_VENV)/.ready
	$(DEMO_VENV)/bin/python examples/digits/demo.py

demo-torch: $(DEMO_TORCH_VENV)/.ready
	$(DEMO_TORCH_VENV)/bin/python examples/digits/demo_torch.py

setup: $(VENV)/.ready

environments: $(VENV)/.ready $(DEMO_VENV)/.ready $(DEMO_TORCH_VENV)/.ready

# Test files start in the order set by `tests/conftest.py`, the slowest first.
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

# Build the sdist and a wheel from it, check both, and run the README's program with only the wheel installed.
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

# The harness needs only numpy. Each loader has its own environment, with the packages of its list.
truth: .venv-truth/.ready $(TRUTH_LOADERS:%=.venv-truth-%/.ready)
	.venv-truth/bin/python -m benchmarks.truth $(TRUTH_LOADERS:%=--loader %) --results .bench/truth $(TRUTH_ARGS)

peers: $(PEERS_VENV)/.ready $(PEERS_VENV)-mosaic/.ready

clean:
	rm -rf .venv-truth .venv-truth-* .venv .venv-demo .venv-demo-torch .venv-peers .venv-peers-mosaic .demo .demo-torch .bench site dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# Dependency groups need pip 25.1 or newer.
# On a machine without a GPU, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu avoids a download of 2 GB for PyTorch.
define new_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "expected Python 3.11 or newer, got $$($(PYTHON) --version) ($(PYTHON)). Try: make PYTHON=python3.12 ..." >&2; exit 1; }
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

# Megatron-Energon runs without some of its dependencies, such as torchvision, so it is installed without them.
# SPDL needs shared libraries of FFmpeg, which its wheel lacks, and gets those of PyAV.
$(PEERS_VENV)/.ready: pyproject.toml
	$(call new_venv,$(PEERS_VENV))
	$(PEERS_VENV)/bin/python $(PIP_INSTALL) --group peers
	$(PEERS_VENV)/bin/python $(PIP_INSTALL) --no-deps 'megatron-energon==7.4.1' 'litdata==0.2.76' 'spdl==0.8.0' 'spdl-core==0.8.0' 'spdl-io==0.8.0'
	$(PEERS_VENV)/bin/python -m benchmarks.peers.spdl '{"call": "link_ffmpeg"}'
	$(PEERS_VENV)/bin/python $(PIP_INSTALL) -e '.[array-record,arrays]'
	@touch $@

# Mosaic needs an older NumPy. Its benchmarks need no more packages than LoaderTruth.
$(PEERS_VENV)-mosaic/.ready: $(TRUTH_REQUIREMENTS)/mosaic.txt
	$(call new_venv,$(PEERS_VENV)-mosaic)
	$(PEERS_VENV)-mosaic/bin/python $(PIP_INSTALL) -r $<
	$(PEERS_VENV)-mosaic/bin/python $(PIP_INSTALL) --no-deps -r $(TRUTH_REQUIREMENTS)/mosaic.no-deps.txt
	@touch $@

.venv-truth/.ready:
	$(call new_venv,.venv-truth)
	.venv-truth/bin/python $(PIP_INSTALL) numpy
	@touch $@

# NAME.no-deps.txt lists packages whose dependencies are not needed for loading.
.venv-truth-%/.ready: $(TRUTH_REQUIREMENTS)/%.txt
	$(call new_venv,.venv-truth-$*)
	.venv-truth-$*/bin/python $(PIP_INSTALL) -r $<
	test ! -f $(TRUTH_REQUIREMENTS)/$*.no-deps.txt || .venv-truth-$*/bin/python $(PIP_INSTALL) --no-deps -r $(TRUTH_REQUIREMENTS)/$*.no-deps.txt
	@touch $@
