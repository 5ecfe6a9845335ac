"""Number formats of the KV cache and their size.

Integer formats have a float16 scale for each group of 32 numbers, so heads must be a whole number
of groups. docs/adr/0001-kv-type.md explains the default and gives the perplexity of each.
"""

from __future__ import annotations

BYTES_PER_NUMBER = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
GROUP_DIMENSIONS = 32
"""Dimensions of a head that share a scale in the integer formats."""
