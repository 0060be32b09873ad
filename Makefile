# The workbook's commands. Each sets up what is missing first; a second call is fast.
#
#   make run          trains the built-in recipe in full, then runs the course -> runs/.../index.html
#                     FAST=1 leaves the training out
#   make test         linters, all but the long tests  make quick   linters, unit tests
#   make acceptance   the large tests; T=name for one
#   make lab          JupyterLab at the course; BIND=0.0.0.0 PORT=8888 to reach it from elsewhere
#   make setup        the environment and the images   make horovod builds Horovod again if it failed
#   make clean        removes .venv and caches; data/ and runs/ stay
#
# PYTHON=python3.12   which Python               DALI=cuda120   which DALI wheel (or none)
# PROFILE=cpu         make run without a GPU: measure speeds (default there: ci, too short for that)
# CUDA=12             packages for CUDA 12 or 13, or none (by driver; on hosts without one, as the last time)
# WITH=torch          in a container: a framework to add to those it has

PYTHON ?= python3
PROFILE ?= $(shell $(VENV)/python -c "from rn50lib import hardware; print('gpu' if hardware.gpus() else 'ci')")
BIND ?= localhost
export CUDA DALI WITH
# macOS: without this, a DataLoader worker that a notebook forks may be aborted
export OBJC_DISABLE_INITIALIZE_FORK_SAFETY := YES

# An active conda environment named rn50 is used instead of .venv; an image names its own in RN50_VENV.
PLACE := $(or $(RN50_VENV),$(if $(filter rn50,$(CONDA_DEFAULT_ENV)),$(CONDA_PREFIX),.venv))
VENV := $(PLACE)/bin

.PHONY: help run test quick acceptance lab setup horovod clean

help:
	@sed -n '3,15s/^# \{0,1\}//p' Makefile

setup:
	@$(PYTHON) scripts/setup.py --venv $(PLACE)

run: setup
	@$(VENV)/rn50 workshop run --all --profile $(PROFILE) $(if $(FAST),,--train)

# All linters and the tests run, however the earlier ones end. mypy runs next to the tests, which leave a core idle now
# and then. Two tests at a time: much of a test's time is the start of a framework, on one core. A file's tests share
# their fixtures, so one process runs them all; the longest files are first (tests/conftest.py). A test compares the
# notebooks with their masters, as `rn50 workshop build --check` does.
LINT := "ruff check --quiet" "ruff format --check --quiet"
TESTS_test := -n2 --dist=loadfile --no-loadscope-reorder -m "not acceptance" --durations=10
TESTS_quick := -q -n2 --dist=loadfile --no-loadscope-reorder -m "not slow and not acceptance"

test quick: setup
	@failed=; types=$$(mktemp); $(VENV)/python -m mypy --no-error-summary >$$types 2>&1 & mypy=$$!; \
	for command in $(LINT); do echo "$$command"; $(VENV)/python -m $$command || failed="$$failed, $$command"; done; \
	$(VENV)/python -m pytest $(TESTS_$@) || failed="$$failed, pytest"; \
	echo mypy; wait $$mypy || failed="$$failed, mypy"; cat $$types; rm $$types; \
	test -z "$$failed" || { echo "make $@ FAILED$$failed" | sed 's/,/:/'; exit 1; }

acceptance: setup
	@$(VENV)/python -m pytest -v --durations=10 $(if $(T),-k "$(T)")

# scripts/jupyter switches off JupyterLab's question about news, which covers the first page; PATH has `rn50` for
# JupyterLab's terminals; rn50/allocator.py says why threads spin less. The port that is printed is the one that is used:
# without PORT, the first free one from 8888 on; JupyterLab may not take another. Slurm's nodes are behind a login host.
FREE_PORT := import socket; print(next(p for p in range(8888, 9888) if socket.socket().connect_ex(('localhost', p))))
lab: setup
	@port=$(or $(PORT),$$($(VENV)/python -c "$(FREE_PORT)")); \
	  jump=$(if $(SLURM_JOB_ID),"-J $$(id -un)@LOGIN_HOST "); \
	  echo "From another machine: ssh $$jump-L $$port:localhost:$$port $$(id -un)@$$(hostname)"; \
	  echo "In a container: docs/containers.md, with -p 127.0.0.1:$$port:$$port and make lab BIND=0.0.0.0 PORT=$$port"; \
	  [ -n "$$GOMP_SPINCOUNT$$OMP_WAIT_POLICY" ] || export GOMP_SPINCOUNT=5000; \
	  PATH="$(abspath $(VENV)):$$PATH" JUPYTER_CONFIG_PATH="$(CURDIR)/scripts/jupyter:$$JUPYTER_CONFIG_PATH" \
	  exec $(VENV)/python -m jupyterlab \
	  --allow-root --ip=$(BIND) --port=$$port --ServerApp.port_retries=0 --ServerApp.root_dir="$(CURDIR)" \
	  --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb \
	  $(if $(DISPLAY)$(filter Darwin,$(shell uname)),,--no-browser)

horovod:
	@$(PYTHON) scripts/setup.py --venv $(PLACE) --retry

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
