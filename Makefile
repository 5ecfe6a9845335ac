# make run    install into .venv and answer one prompt with the embedded model
# make test   run the tests
# make check  what CI runs: format, lint, types, docstrings, tests
# make check-arm  compile the CPU backend for AArch64 and test it under QEMU (Debian)
# make check-asan test the CPU backend with AddressSanitizer and UBSan (Linux, GCC)
# make bench  measure prefill and decode of the embedded model beside the limits of this machine

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CPP := $(shell find src/zinc/backends/cpu/native -name '*.cpp' -o -name '*.h' 2>/dev/null)

.PHONY: run test check check-arm check-asan format bench dev clean

$(VENV)/installed: pyproject.toml CMakeLists.txt $(CPP)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check scikit-build-core nanobind ninja cmake
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[dev]'
	# The Slang compiler, without its unused dependency on torch. Systems without a wheel of it skip
	# the tests of Vulkan kernels.
	-$(BIN)/pip install --quiet --disable-pip-version-check --no-deps slangtorch==1.3.22
	touch $@

run: $(VENV)/installed
	$(BIN)/zinc run --stats "Tell me a short story about a fox."

test: $(VENV)/installed-dev
	# Crashed workers are not restarted: pytest-xdist could wait for them forever.
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal --max-worker-restart 0

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	# mypy takes one core. Beside it, pytest compiles the tests for the processes of `make test`.
	$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 & $(BIN)/mypy; status=$$?; \
	wait; exit $$status
	$(BIN)/python dev/check-docstrings
	$(MAKE) test

check-arm: $(VENV)/installed-dev
	PATH="$(abspath $(BIN)):$$PATH" dev/check-arm

check-asan: $(VENV)/installed-dev
	PATH="$(abspath $(BIN)):$$PATH" PYTHON=python dev/check-asan

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CPP)

bench: $(VENV)/installed
	$(BIN)/zinc bench

clean:
	rm -rf $(VENV) build
