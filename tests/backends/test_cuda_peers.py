"""Which CUDA cards may write each other's memory, with a stand-in for the driver."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zinc.backends.cuda import peers
from zinc.core.errors import DeviceError


class Driver:
    """Cards that reach each other unless `apart`; enabling access returns `status`."""

    def __init__(self, apart: tuple[int, int] | None, status: object = 0) -> None:
        self.apart, self.status = apart, status
        self.enabled: list[tuple[int, int]] = []
        self.current = -1

    def cuDeviceCanAccessPeer(self, card: int, other: int) -> tuple[int, int]:  # noqa: N802
        return 0, int((card, other) != self.apart)

    def cuCtxEnablePeerAccess(self, context: int, flags: int) -> tuple[object]:  # noqa: N802
        self.enabled.append((self.current, context))
        return (self.status,)


def hosts(driver: Driver, *indices: int) -> list[SimpleNamespace]:
    def host(index: int) -> SimpleNamespace:
        return SimpleNamespace(
            candidate=SimpleNamespace(index=index, handle=index),
            context=index,
            enter=lambda: setattr(driver, "current", index),
        )

    return [host(index) for index in indices]


def test_each_card_gets_access_to_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(apart=None)
    monkeypatch.setattr(peers, "driver", lambda: driver)
    assert peers.connect(hosts(driver, 0, 1, 2))
    assert driver.enabled == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


@pytest.mark.parametrize(("apart", "cards"), [((1, 0), (0, 1)), (None, (0, 0))])
def test_cards_that_do_not_reach_each_other_are_not_connected(
    monkeypatch: pytest.MonkeyPatch, apart: tuple[int, int] | None, cards: tuple[int, ...]
) -> None:
    driver = Driver(apart)
    monkeypatch.setattr(peers, "driver", lambda: driver)
    assert not peers.connect(hosts(driver, *cards))
    assert driver.enabled == []


def test_access_that_another_model_has_enabled_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(None, SimpleNamespace(name=peers.ALREADY))
    monkeypatch.setattr(peers, "driver", lambda: driver)
    assert peers.connect(hosts(driver, 0, 1))


def test_another_failure_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(None, SimpleNamespace(name="CUDA_ERROR_TOO_MANY_PEERS"))
    monkeypatch.setattr(peers, "driver", lambda: driver)
    with pytest.raises(DeviceError, match="CUDA_ERROR_TOO_MANY_PEERS"):
        peers.connect(hosts(driver, 0, 1))
