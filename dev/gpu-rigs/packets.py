"""The packets that RADV submits to an AMD GPU for one decode step.

RADV_DEBUG=dumpibs makes RADV print every command stream as it is submitted: a line a dword, which
starts with its eight hexadecimal digits, and lines that name its fields. This module reads the
dwords. They are packets of PM4, as in the register headers of Mesa and Linux (src/amd/registers,
nvd.h): a header, whose bits 16 to 29 hold the number of dwords that follow less one, and bits 8 to
15 the operation.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN = Path(__file__).parent / "run"
OPERATIONS = {
    0x10: "NOP",
    0x15: "DISPATCH_DIRECT",
    0x37: "WRITE_DATA",
    0x42: "PFP_SYNC_ME",
    0x46: "EVENT_WRITE",
    0x49: "RELEASE_MEM",
    0x50: "DMA_DATA",
    0x58: "ACQUIRE_MEM",
    0x68: "SET_CONFIG_REG",
    0x76: "SET_SH_REG",
    0x79: "SET_UCONFIG_REG",
    0xBA: "SET_SH_REG_PAIRS",
}
FILLER = 0xFFFF1000  # a NOP of one dword
CS_PARTIAL_FLUSH = 7  # event that waits for all dispatches
# Cache actions of an ACQUIRE_MEM (GCR_CNTL): bit, and name. GL0 and GL1 are the vector caches of a
# compute unit and of a shader array, GLK is the scalar cache, GLI the instruction cache, GLM holds
# metadata, and GL2 is the L2.
ACTIONS = {
    0: "GLI_INV",
    4: "GLM_WB",
    5: "GLM_INV",
    6: "GLK_WB",
    7: "GLK_INV",
    8: "GLV_INV",
    9: "GL1_INV",
    14: "GL2_INV",
    15: "GL2_WB",
}
L2_ACTIONS = 1 << 14 | 1 << 15

_STREAM = re.compile(r"-+ Main IB begin.*?-+\n(.*?)-+ Main IB end", re.DOTALL)
_DWORD = re.compile(r"^([0-9a-f]{8}) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet: the number of its operation, and the dwords after the header."""

    operation: int
    body: tuple[int, ...]

    @property
    def name(self) -> str:
        return OPERATIONS.get(self.operation, f"{self.operation:#04x}")

    @property
    def is_dispatch(self) -> bool:
        return self.name == "DISPATCH_DIRECT"

    @property
    def waits(self) -> bool:
        """Whether this event waits for earlier dispatches."""
        return self.name == "EVENT_WRITE" and self.body[0] & 0x3F == CS_PARTIAL_FLUSH

    @property
    def cache_actions(self) -> int:
        """The bits of GCR_CNTL, 0 if this packet acts on no cache."""
        return self.body[6] if self.name == "ACQUIRE_MEM" else 0


def streams(dump: str) -> list[list[Packet]]:
    """Return the packets of each command stream in the output of RADV_DEBUG=dumpibs."""
    return [
        list(_packets([int(word, 16) for word in _DWORD.findall(text)]))
        for text in _STREAM.findall(dump)
    ]


def _packets(words: Sequence[int]) -> Iterator[Packet]:
    at = 0
    while at < len(words):
        header = words[at]
        n = 0 if header == FILLER else (header >> 16 & 0x3FFF) + 1
        yield Packet(header >> 8 & 0xFF, tuple(words[at + 1 : at + 1 + n]))
        at += 1 + n


def decode_step(dump: str) -> dict[str, Any]:
    """Return facts about the last command stream of a dump, which is a decode step.

    waits: barriers between the first and the last dispatch. cache_actions: the number of barriers
    for each GCR_CNTL value, in hexadecimal. l2_flushes: the number of barriers that write back or
    invalidate the L2 cache.
    """
    packets = streams(dump)[-1]
    dispatches = [i for i, packet in enumerate(packets) if packet.is_dispatch]
    inside = packets[dispatches[0] : dispatches[-1]]
    actions = [packet.cache_actions for packet in inside if packet.cache_actions]
    return {
        "dwords": sum(1 + len(packet.body) for packet in packets),
        "packets": dict(Counter(packet.name for packet in packets).most_common()),
        "dispatches": len(dispatches),
        "waits": sum(packet.waits for packet in inside),
        "l2_flushes": sum(bool(bits & L2_ACTIONS) for bits in actions),
        "cache_actions": {f"{bits:#06x}": n for bits, n in Counter(actions).most_common()},
    }


def decode_steps(gpu: str) -> dict[str, Any]:
    """Return facts about a decode step of the embedded model, with coherent kernels and without.

    Raises CalledProcessError.
    """
    command = [RUN, gpu, "-m", "zinc", "run", "--backend", "vulkan", "--max-tokens", "3", "Hi"]
    found = {}
    for kernels, switch in (("usual", "off"), ("coherent", "on")):
        environment = {
            **os.environ,
            "PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(sys.path[1:]),
            "RADV_DEBUG": "dumpibs",
            "ZINC_VULKAN_COHERENT": switch,
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found[kernels] = decode_step(done.stderr)
    return found


def named(bits: int) -> str:
    """Return the names of the cache actions in `bits`."""
    return ", ".join(name for bit, name in ACTIONS.items() if bits >> bit & 1)
