"""Outputs whose names do not fit into a commit are refused before anything is published."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal


def test_too_many_long_names_are_refused() -> None:
    flow = Flow("many")
    source = flow.source("in", Int64Value)
    for number in range(20):
        source.to(f"{number}-{'x' * 200}", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("in", Int64Value(value=1))
    with pytest.raises(ConfigurationError, match="20 outputs"):
        rehearsal.start()
    assert rehearsal.script.written == []
