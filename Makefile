# make run    install into .venv and answer one prompt with the embedded model
# make test   run the tests
# make check  everything CI checks: format, lint, types, tests
# make check-arm  compile the CPU backend for AArch64 and test it under QEMU (Debian)
# make check-asan test the CPU backend with AddressSanitizer and UBSan (Linux, GCC)
# make bench  measure this machine: prefill and decode of the embedded model, beside its limits

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CPP := $(shell find src/zinc/backends/cpu/native -name '*.cpp' -o -name '*.h' -o -name '*.inc' 2>/dev/null)

.PHONY: run test check check-arm check-asan format bench dev clean

$(VENV)/installed: pyproject.toml CMakeLists.txt $(CPP)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check scikit-build-core nanobind ninja cmake
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[dev]'
	# The Slang compiler. It names torch as a dependency and needs none of it; some systems have no
	# wheel of it, and run no test of Vulkan kernels then.
	-$(BIN)/pip install --quiet --disable-pip-version-check --no-deps slangtorch==1.3.22
	touch $@

run: $(VENV)/installed
	$(BIN)/zinc run --stats "Tell me a short story about a fox."

test: $(VENV)/installed-dev
	# A process that crashes fails its test and is not replaced: pytest-xdist would wait for ever.
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal --max-worker-restart 0

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/mypy
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
