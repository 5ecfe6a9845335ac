"""Peer access: CUDA GPUs that can write each other's memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from zinc.backends.cuda.driver import checked, driver
from zinc.backends.cuda.host import CudaHost

ALREADY = "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"


def connect(hosts: Sequence[CudaHost]) -> bool:
    """Enable peer access between all GPUs of `hosts`. Return False if a pair does not support it.

    Raises DeviceError.
    """
    cuda = driver()
    pairs = list(permutations(hosts, 2))
    if len({host.candidate.index for host in hosts}) < len(hosts):
        return False
    for host, other in pairs:
        able = cuda.cuDeviceCanAccessPeer(host.candidate.handle, other.candidate.handle)
        if not checked(able, "cuDeviceCanAccessPeer"):
            return False
    for host, other in pairs:
        host.enter()
        (status,) = cuda.cuCtxEnablePeerAccess(other.context, 0)
        if getattr(status, "name", "") != ALREADY:
            checked((status,), "cuCtxEnablePeerAccess")
    return True
