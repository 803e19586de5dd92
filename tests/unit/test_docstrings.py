"""Examples in docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf.wrappers_pb2 import StringValue

import sqe_chain
from sqe_chain import ReplayFilter, wrap

PACKAGE = Path(sqe_chain.__file__).parent
MODULES = sorted(
    ".".join(("sqe_chain", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
"""Every module with an example."""

value = wrap(StringValue(value="3 screws"), key="robot-7", timestamp_ms=1_700_000_000_000)
MESSAGE = SimpleNamespace(
    topic=lambda: "robot.raw",
    partition=lambda: 0,
    offset=lambda: 0,
    leader_epoch=lambda: 0,
    value=lambda: value,
    headers=lambda: None,
    error=lambda: None,
)
"""What `consumer.poll` gives in the examples that need it."""


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"message": MESSAGE, "ReplayFilter": ReplayFilter})
    assert result.attempted > 0
    assert result.failed == 0
