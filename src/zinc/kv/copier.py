"""What the bookkeeping of the cache asks of those who keep its data."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]


class Copier(Protocol):
    """What has the data: a backend's Cache. Views are what `disk` and `swap` copy, and fill to put
    them back."""

    def copy_block(self, group: int, source: int, target: int) -> None: ...
    def copy_state(self, source: int, target: int) -> None: ...
    def block_views(self, group: int, block: int) -> list[Bytes]: ...
    def put_block(self, group: int, block: int, views: list[Bytes]) -> None: ...
    def state_views(self, slot: int) -> list[Bytes]: ...
    def put_state(self, slot: int, views: list[Bytes]) -> None: ...
