"""The contract of stores, asked of those that need no server: memory and SQLite. So a rule that one of them breaks is known early."""

from __future__ import annotations

from tests.contract.test_state_store import TestMemory, TestSqlite

__all__ = ["TestMemory", "TestSqlite"]
