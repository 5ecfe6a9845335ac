"""Interface through which cache bookkeeping copies cache data."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]


class Copier(Protocol):
    """Access to the data of cache blocks and recurrent states; a backend's cache implements it.

    Views are byte arrays, one or more a layer. `disk` and `swap` copy them out, and fill them to
    restore a block or state.
    """

    def copy_block(self, group: int, source: int, target: int) -> None: ...
    def copy_state(self, source: int, target: int) -> None: ...
    def block_views(self, group: int, block: int) -> list[Bytes]: ...
    def put_block(self, group: int, block: int, views: list[Bytes]) -> None: ...
    def state_views(self, slot: int) -> list[Bytes]: ...
    def put_state(self, slot: int, views: list[Bytes]) -> None: ...
