"""A broker in memory: deterministic, one process, for tests and notebooks.

It does to a reader what real logs do: sparse offsets, leader epochs, open and aborted transactions, compaction,
retention, truncation, topics deleted and created again.
"""

from sqe_chain.adapters.memory._broker import MemoryMessage
from sqe_chain.adapters.memory._log import MemoryLog, MemoryTransaction, MemoryWriter

__all__ = ["MemoryLog", "MemoryMessage", "MemoryTransaction", "MemoryWriter"]
