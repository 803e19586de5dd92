"""The kind of `ingest` itself; what it does in flows is in tests/protocol/ext/tables/test_tables.py."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from tests.support.table_flows import table_flow


def kind_of(flow: Flow) -> object:
    (stage,) = flow.compile().stages
    return stage.stage_kind


def test_a_table_in_memory_does_not_go_to_another_process(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(kind_of(table_flow(tmp_path)))) == kind_of(table_flow(tmp_path))  # noqa: S301 - our own
    in_memory = Flow("readings-to-memory")
    in_memory.source("readings.raw", dict, raw=True).ingest(
        "readings",
        partition_key="robot",
        row_key="at",
        columns={"robot": "string", "at": "int64"},
        at="memory://here",
    )
    with pytest.raises(ConfigurationError, match="in the memory of this process"):
        pickle.dumps(kind_of(in_memory))
