"""Cache bookkeeping: which blocks belong to whom."""

from zinc.kv.blocks import BlockAllocator
from zinc.kv.slots import SlotAllocator

__all__ = ["BlockAllocator", "SlotAllocator"]
