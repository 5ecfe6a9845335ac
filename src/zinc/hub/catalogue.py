"""The catalogue: short names such as `qwen3:8b` for repositories that people run.

The data is in catalogue.toml. A short name is `family[:size[-quantisation]]`; a family alone means
its first size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from zinc.core.dataclass import dataclass

_DATA = Path(__file__).parent / "catalogue.toml"


@dataclass(frozen=True, slots=True)
class ShortName:
    """An entry of the catalogue, with the quantisation that a short name asks for, if any."""

    name: str
    repo: str
    quantisation: str | None = None


class Catalogue:
    """The short names of a TOML file: a table for each family, from size to repository."""

    @cached_property
    def _families(self) -> Mapping[str, Mapping[str, str]]:
        import tomllib  # only commands that use a short name need it

        with _DATA.open("rb") as file:
            return tomllib.load(file)

    def __iter__(self) -> Iterator[ShortName]:
        """Yield every entry, in the order of the file."""
        for family, sizes in self._families.items():
            for size, repo in sizes.items():
                yield ShortName(f"{family}:{size}", repo)

    def find(self, text: str) -> ShortName | None:
        """Return the entry that `text` names, in any case; None if there is none."""
        family, _, size = text.lower().partition(":")
        sizes = self._families.get(family)
        if sizes is None:
            return None
        if not size:
            size = next(iter(sizes))
        if size in sizes:
            return ShortName(f"{family}:{size}", sizes[size])
        # The longest size that begins the text; the rest is the quantisation.
        for known in sorted(sizes, key=len, reverse=True):
            if size.startswith(f"{known}-"):
                quantisation = size.removeprefix(f"{known}-").upper()
                return ShortName(f"{family}:{known}", sizes[known], quantisation)
        return None

    def nearest(self, text: str) -> list[str]:
        """Return up to three short names that look like `text`, those of its family first."""
        import difflib

        names = [entry.name for entry in self]
        family = text.lower().partition(":")[0]
        same = [name for name in names if name.partition(":")[0] == family]
        return difflib.get_close_matches(text.lower(), same or names, 3, 0.0 if same else 0.6)


CATALOGUE = Catalogue()
