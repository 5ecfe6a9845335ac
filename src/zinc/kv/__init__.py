"""Bookkeeping of the KV cache: blocks, state slots, prefix cache, swap and disk."""

from zinc.kv.blocks import BlockAllocator
from zinc.kv.copier import Copier
from zinc.kv.node import TOKEN_BYTES, common_tokens
from zinc.kv.pool import Allocation, CachePool, Group, PrefixHit, key_of, window_blocks
from zinc.kv.slots import SlotAllocator
from zinc.kv.swap import Swapped

__all__ = [
    "TOKEN_BYTES",
    "Allocation",
    "BlockAllocator",
    "CachePool",
    "Copier",
    "Group",
    "PrefixHit",
    "SlotAllocator",
    "Swapped",
    "common_tokens",
    "key_of",
    "window_blocks",
]
