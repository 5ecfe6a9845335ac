"""How a number of the cache may be stored: the names and what each costs.

Integers have a float16 scale for each 32 of them, so they need heads of whole groups. Which type is
the default, and what each does to perplexity, is in docs/adr/0001-kv-type.md.
"""

from __future__ import annotations

BYTES_A_NUMBER = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
GROUP = 32
"""Dimensions of a head that share a scale, in all types but f16."""
