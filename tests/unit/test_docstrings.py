"""Examples in docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
from types import SimpleNamespace

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain import ReplayFilter, wrap

MODULES = (
    "chain",
    "envelope",
    "filter",
    "marks",
    "stages",
    "stages.deduplicate",
    "stages.distinct",
    "stages.extractors",
    "stages.identity",
    "stages.place",
    "stages.replays",
    "stages.root_replays",
    "stages.sequences",
    "sqe_key",
    "stages.stream_time",
    "stages.windowing",
    "stages.windows",
    "template",
    "wire",
)

value = wrap(StringValue(value="3 screws"), key="robot-7", timestamp_ms=1_700_000_000_000)
MESSAGE = SimpleNamespace(
    topic=lambda: "robot.raw",
    partition=lambda: 0,
    offset=lambda: 0,
    leader_epoch=lambda: 0,
    value=lambda: value,
    error=lambda: None,
)
"""What `consumer.poll` gives in the examples that need it."""


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    module = importlib.import_module(f"sqe_chain.{name}")
    result = doctest.testmod(module, extraglobs={"message": MESSAGE, "ReplayFilter": ReplayFilter})
    assert result.attempted > 0
    assert result.failed == 0
