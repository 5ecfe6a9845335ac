"""The choice between layers and tensors, for a model on several devices."""

from __future__ import annotations

from collections.abc import Sequence

from zinc.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SplitCost:
    """The estimated seconds per token if devices divide a model by layers or by tensors."""

    layer_s: float
    tensor_s: float

    @property
    def tensor_is_faster(self) -> bool:
        return self.tensor_s < self.layer_s


def split_cost(
    layer_bytes: Sequence[int],
    tensor_bytes: Sequence[int],
    bytes_per_s: Sequence[float],
    n_all_reduces: int,
    all_reduce_s: float,
) -> SplitCost:
    """Return the seconds per token on n devices, as memory bandwidth and transfers limit them.

        layer   sum of layer_bytes[i] / bytes_per_s[i] + (n - 1) * all_reduce_s
        tensor  largest tensor_bytes[i] / bytes_per_s[i] + n_all_reduces * all_reduce_s

    Devices with layers work one after the other and send hidden rows to the next one. Devices with
    tensors work at the same time and add up hidden rows several times per layer.

    layer_bytes, tensor_bytes: bytes that each device reads and writes per token. bytes_per_s: the
    memory bandwidth of each device. all_reduce_s: seconds to add up the hidden rows of one token,
    and an upper bound of the seconds to send them.
    """
    layer = [n / rate for n, rate in zip(layer_bytes, bytes_per_s, strict=True)]
    tensor = [n / rate for n, rate in zip(tensor_bytes, bytes_per_s, strict=True)]
    return SplitCost(
        sum(layer) + (len(layer) - 1) * all_reduce_s, max(tensor) + n_all_reduces * all_reduce_s
    )
