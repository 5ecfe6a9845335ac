"""The choice between layers and tensors, for a model on several devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SplitCost:
    """The seconds of a token with each way to divide a model, as far as memory and links limit it.

    See `split_cost`.
    """

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
    """Return what a token costs with each way to divide a model over n devices.

        layer   sum of layer_bytes[i] / bytes_per_s[i] + (n - 1) * all_reduce_s
        tensor  largest tensor_bytes[i] / bytes_per_s[i] + n_all_reduces * all_reduce_s

    Devices with layers take turns, and hidden rows cross between two of them; devices with tensors
    work at the same time, and hidden rows are added up several times a layer. layer_bytes,
    tensor_bytes: that each device moves for a token. bytes_per_s: its memory bandwidth.
    all_reduce_s: seconds to add up the hidden rows of one token, which a transfer takes at most.
    """
    layer = [n / rate for n, rate in zip(layer_bytes, bytes_per_s, strict=True)]
    tensor = [n / rate for n, rate in zip(tensor_bytes, bytes_per_s, strict=True)]
    return SplitCost(
        sum(layer) + (len(layer) - 1) * all_reduce_s, max(tensor) + n_all_reduces * all_reduce_s
    )
