"""The backends of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from zinc.core.errors import ZincError

if TYPE_CHECKING:
    from zinc.backends.api import Backend


def backends(options: Mapping[str, str]) -> Iterator[tuple[str, Backend | ZincError]]:
    """Yield the name of each backend, with the backend or the error that opening it raises."""
    from zinc.backends import api

    for name in api.discover():
        try:
            yield name, api.create(name, options=options)
        except ZincError as error:
            yield name, error
