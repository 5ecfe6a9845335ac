"""Options and settings of all tests."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterable, Iterator
from typing import Any

# Tests may run in parallel, and numpy's threads would take each other's cores. The variable is read
# when numpy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import effort
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("zinc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("zinc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every",
        action="store_true",
        help="also run long cases that repeat the code of others, and many more examples",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep tests and modules out of garbage collections, each of which would walk all of them.

    None of them becomes garbage. With them, a full collection takes half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # else nanobind reports frozen objects as leaks at exit


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than there are cores, as tests also wait for timers and servers."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    effort.EVERY = config.getoption("--every")
    config.addinivalue_line(
        "markers", "every: repeats the code of other cases; runs with --every only"
    )
    config.addinivalue_line(
        "markers", "alike(n): cases of one test that run the same code; n of them run by default"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Leave out cases with the mark `every` before they are made: making one takes 0.3 ms."""
    if not effort.EVERY:
        parametrize = metafunc.parametrize

        def of_default(names: Any, values: Iterable[Any], *args: Any, **options: Any) -> None:
            parametrize(names, effort.by_default(values), *args, **options)

        metafunc.parametrize = of_default  # type: ignore[method-assign]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if effort.EVERY:
        return
    kept = [item for item in items if not item.get_closest_marker("every")]
    chosen = set(effort.chosen(kept))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in kept if item in chosen]


@pytest.fixture(scope="session", autouse=True)
def _hidden_gpus() -> Iterator[None]:
    """Have backend="auto" choose the CPU, so that no test depends on the GPU of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zinc.engine.load.auto._may_have_gpu", lambda: False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _sleeping_waits() -> Iterator[None]:
    """Sleep while a GPU runs a step: Vulkan's device is this CPU, from which polls take time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zinc.gpu.program.POLL_S", float("-inf"))
        patch.setattr("zinc.backends.vulkan.device.POLL_S", 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_measurements(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests measure, some of them on small buffers, out of the user's cache folder."""
    path = tmp_path_factory.mktemp("measured") / "bandwidth.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zinc.engine.load.bandwidth.file_path", lambda: path)
        yield
