"""GPUs: nodes in /dev, drivers, features, the PCIe link, and a self-test of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zinc.backends.api import Backend
from zinc.backends.capabilities import DeviceInfo, DeviceKind
from zinc.cli.checks.finding import Finding, Section, fail, ok, read, skip, warn
from zinc.cli.checks.self_test import device
from zinc.core.errors import ZincError

AMD = "0x1002"
_LOADER = "sudo apt install libvulkan1 (Debian, Ubuntu), or your system's Vulkan loader"
_DRIVER = "sudo apt install mesa-vulkan-drivers for AMD and Intel, or NVIDIA's driver"


@dataclass(frozen=True, slots=True)
class Drivers:
    """The GPUs that backends list. open: opens one by backend and device.

    errors: by backend, why its devices cannot be listed.
    """

    gpus: Sequence[tuple[str, DeviceInfo]]
    open: Callable[[str, DeviceInfo], Backend]
    errors: dict[str, ZincError] = field(default_factory=dict)


def this_machine(threads: int | None) -> Drivers:
    """Return the GPUs of this machine."""
    from zinc.backends import api

    gpus: list[tuple[str, DeviceInfo]] = []
    errors: dict[str, ZincError] = {}
    for name in api.discover():
        try:
            gpus += [(name, gpu) for gpu in api.devices(name)]
        except ZincError as error:
            errors[name] = error

    def open_gpu(name: str, gpu: DeviceInfo) -> Backend:
        return api.create(name, threads, {"device": gpu.selector})

    return Drivers(gpus, open_gpu, errors)


def section(drivers: Drivers, measure: bool, root: Path = Path("/")) -> Section:
    """Check the GPUs. measure: also measure read bandwidth and int8 arithmetic of each."""
    nodes = sorted((root / "dev/dri").glob("renderD*")) if (root / "dev/dri").is_dir() else []
    nodes += sorted((root / "dev").glob("nvidia[0-9]*")) if (root / "dev").is_dir() else []
    real = [gpu for _, gpu in drivers.gpus if gpu.kind is not DeviceKind.SOFTWARE]
    findings: list[Finding] = []
    if not nodes and not real:
        findings.append(skip("this machine shows no GPU; models run on the CPU"))
    findings += _nodes(nodes)
    if nodes and not real:
        findings += _no_driver(drivers)
    for name, gpu in drivers.gpus:
        findings += _gpu(name, gpu, drivers, measure)
    findings += _links(root)
    rows = [
        {
            "backend": name,
            "device": gpu.selector,
            "name": gpu.name,
            "kind": str(gpu.kind),
            "driver": gpu.driver,
            "missing": list(gpu.missing),
        }
        for name, gpu in drivers.gpus
    ]
    return Section("GPUs", tuple(findings), {"devices": rows})


def _nodes(nodes: Sequence[Path]) -> Iterator[Finding]:
    for node in nodes:
        if not os.access(node, os.R_OK | os.W_OK):
            yield fail(
                f"{node} cannot be opened by this user",
                "sudo usermod -aG render,video $USER, then log in again",
            )


def _no_driver(drivers: Drivers) -> Iterator[Finding]:
    for name, error in drivers.errors.items():
        yield fail(f"{name}: {error.what}: {error.why}", error.hint or _LOADER)
    if not drivers.errors:
        yield fail("there is a GPU, and no Vulkan driver for it", _DRIVER)


def _gpu(name: str, gpu: DeviceInfo, drivers: Drivers, measure: bool) -> Iterator[Finding]:
    title = f"{gpu.selector}, {gpu.name} ({gpu.kind}, {gpu.driver})"
    if gpu.kind is DeviceKind.SOFTWARE:
        yield skip(f"{title}: emulates a GPU on the CPU; `--backend auto` never picks it")
        return
    if gpu.missing:
        lacks = ", ".join(gpu.missing)
        yield warn(f"{title} cannot be used: it lacks {lacks}", "update its driver")
        return
    yield ok(title)
    yield from device(lambda: drivers.open(name, gpu), gpu.selector, measure)


def _links(root: Path) -> Iterator[Finding]:
    """Compare the PCIe links of GPUs with what they can do, and look at power saving."""
    for card in sorted((root / "sys/class/drm").glob("card[0-9]")):
        folder = card / "device"
        width, most = read(folder / "current_link_width"), read(folder / "max_link_width")
        if width.isdecimal() and most.isdecimal() and 0 < int(width) < int(most):
            yield warn(
                f"{card.name} runs at PCIe x{width} of x{most}, so models load more slowly",
                "put the card into another slot, or set the slot's width in the firmware",
            )
        policy = read(root / "sys/module/pcie_aspm/parameters/policy")
        if read(folder / "vendor") == AMD and any(
            f"[{x}" in policy for x in ("powersave", "powersuper")
        ):
            yield warn(
                f"PCIe power saving slows decoding on {card.name} (10.8% was measured on one card)",
                "echo performance | sudo tee /sys/module/pcie_aspm/parameters/policy",
            )
