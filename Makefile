# make eval: the task's ten cases.  make test: the tests.  make thorough: more cases of each.  make setup: only the environment, .venv.
# make image: a container image of an x86-64 Linux with all of that, by docker or podman.
PYTHON ?= python3
# `make setup TORCH=system` keeps the torch that $(PYTHON) already has, with the CUDA it was built for. That is the
# default where that torch sees a GPU; elsewhere torch is installed as constraints.txt pins it.
TORCH ?= $(shell $(PYTHON) -c "import torch; assert torch.cuda.is_available()" 2>/dev/null && echo system || echo pinned)
VENV_FLAGS = $(if $(filter system,$(TORCH)),--system-site-packages)

.PHONY: setup eval test thorough lint wheel clean image

setup: .venv/installed

eval: setup
	.venv/bin/python eval.py test

# Three processes for two cores: some tests wait, for what hangs to be killed. They start hundreds of processes, which
# import the same modules: compiled once, even where the environment asks for no bytecode files. Asserts stay as they are,
# with values of local variables instead: to rewrite them takes each of the three four seconds in a fresh clone.
PYTEST = PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -n 3 --dist worksteal --assert=plain --showlocals

test: setup .venv-newest/installed
	$(PYTEST)

# Every case of every test.
thorough: setup .venv-newest/installed
	$(PYTEST) --thorough

lint: setup
	.venv/bin/python -m ruff check .
	.venv/bin/python -m tests.findings_of_types

# With torch's device built for the torch of .venv, so that who installs the wheel beside it needs no g++.
wheel: setup
	.venv/bin/python -m emulated_gpu.serve.torch_device.library
	.venv/bin/python -m pip wheel --no-deps --wheel-dir dist .

# PIP_EXTRA_INDEX_URL: where pip finds the torch that is built for CPUs.
CONTAINERS ?= $(shell command -v docker || command -v podman)
image:
	@test -n "$(CONTAINERS)" || { echo "make image needs docker or podman; neither is on the PATH"; exit 1; }
	$(CONTAINERS) build --platform linux/amd64 --file Containerfile --tag emulated-gpu \
		--build-arg PIP_EXTRA_INDEX_URL="$(PIP_EXTRA_INDEX_URL)" .

clean:
	rm -rf .venv .venv-newest

# A new environment, not a mended one: what an earlier version installed would go on registering its pytest plugin.
.venv/installed: pyproject.toml constraints.txt
	rm -rf *.egg-info
	$(PYTHON) -m venv --clear $(VENV_FLAGS) .venv
	grep -v '$(if $(filter system,$(TORCH)),^torch==,^$$)' constraints.txt > .venv/constraints.txt
	@echo "pip downloads 0.9 GB, once (torch and triton 0.2 each, CuTe DSL 0.1), and makes 3.2 GB of it: one to three minutes"
	@began=$$(date +%s); (while sleep 15; do set -- $$(du -sm .venv); \
		echo "make setup: $$1 of some 3200 MB are in .venv, $$(($$(date +%s) - began)) s so far"; done) & beat=$$!; \
	trap 'kill $$beat' EXIT; .venv/bin/python -m pip install --constraint .venv/constraints.txt --editable '.[dev]'
	touch $@

# The newest CuTe DSL in an environment of its own; everything else (torch!) it takes from .venv, which comes later on
# its module path. The name of the .pth file sorts after the DSL's, which puts the DSL first.
.venv-newest/installed: constraints-newest.txt .venv/installed
	.venv/bin/python -m venv --without-pip $(VENV_FLAGS) .venv-newest
	.venv/bin/python -m pip install --no-deps --ignore-installed --prefix .venv-newest --requirement constraints-newest.txt
	.venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$(.venv-newest/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/zz_shared.pth"
	touch $@
