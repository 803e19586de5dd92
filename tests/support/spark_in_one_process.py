"""Tests that use the session of Spark run in one process of a run, one file after another: each process would start its own."""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadFileScheduling

FILES: Final = ("tests/contract/test_engine.py", "tests/contract/test_table_engines.py")


class SparkInOneProcess(LoadFileScheduling):  # type: ignore[misc]
    """Each file is run by one process, and these together by one."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return FILES[0] if file in FILES else file
