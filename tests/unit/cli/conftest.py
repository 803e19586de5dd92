"""A module with flows, as a user would write it, and a broker and stores in memory behind the command."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from typer.testing import CliRunner, Result

from sqe_chain import wrap
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.cli import flows as flows_command
from sqe_chain.cli import peek
from sqe_chain.cli.commands import application
from sqe_chain.cli.loading import load_module
from sqe_chain.runtime import connecting

FLOWS = """
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.flow import Flow
from sqe_chain.stages import Tumbling


weight = 1


def add(total, word):
    total.value += len(word.value) * weight


def word_of(word):
    return word.value


counts = Flow("cli-counts", state_partitions=2)
counted = counts.source("words", StringValue).aggregate("per-word", key=word_of, state=Int64Value, fold=add)
counted.changes().to("totals", partitions=1)

copies = Flow("cli-copies")
copies.source("words", StringValue).to("copies", partitions=2)

two_stores = Flow("cli-two-stores")
two_stores.source("words", StringValue).aggregate(
    "slow", key=word_of, state=Int64Value, fold=add, store="slow"
)

once = Flow("cli-once")
_kept = once.source("words", StringValue).deduplicate("once", word_of, 60_000)
_kept.aggregate("kept", key=word_of, state=Int64Value, fold=add)

windows = Flow("cli-windows", state_partitions=1)
windows.source("words", StringValue).windowed(
    "per-window", Tumbling(2), key=word_of, state=Int64Value, fold=add, retention_ms=1_000
)

by_key = Flow("cli-by-key", state_partitions=1)
by_key.source("words", StringValue).aggregate("per-key", state=Int64Value, fold=add)

broken = set()


def check(word):
    if word.value in broken:
        raise ValueError(f"cannot read {word.value}")
    return word


letters = Flow("cli-letters", state_partitions=2, poison="dead_letter")
letters.source("words", StringValue).map(check).aggregate("per-word", key=word_of, state=Int64Value, fold=add)

parks = Flow("cli-parks", state_partitions=2, poison="park")
parks.source("words", StringValue).map(check).aggregate("per-word", key=word_of, state=Int64Value, fold=add)

skips = Flow("cli-skips", state_partitions=1, poison="skip")
skips.source("words", StringValue).map(check).aggregate("per-word", key=word_of, state=Int64Value, fold=add)

skipping_copies = Flow("cli-skipping-copies", poison="skip")
skipping_copies.source("words", StringValue).map(check).to("copies", partitions=2)

sorting = Flow("cli-sorting", poison="dead_letter")
sorting.source("words", StringValue).map(check).to("copies", partitions=2)

a_number = 7
"""


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module `cli_flows`, in the working directory."""
    (tmp_path / "cli_flows.py").write_text(FLOWS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield load_module("cli_flows")
    del sys.modules["cli_flows"]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[MemoryLog]:
    """A broker in memory with the topics of the flows; the command finds it under any address."""
    broker = MemoryLog(request.node.nodeid)
    for topic, partitions in (
        ("words", 2),
        ("totals", 1),
        ("copies", 2),
        ("cli-letters.dead-letters", 1),
        ("cli-sorting.dead-letters", 1),
    ):
        broker.create_topic(topic, partitions)
    for module in (connecting, peek, flows_command):
        monkeypatch.setattr(module, "open_log", lambda _bootstrap, _config: broker)
    yield broker
    broker.clear()


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    """The address of a store in memory that no other test uses."""
    return f"memory://{re.sub('[^a-z0-9]', '-', request.node.name)}"


@pytest.fixture
def feed(log: MemoryLog) -> Callable[..., None]:
    """Appends one enveloped message per word, to each partition in turn."""

    def append(*words: str) -> None:
        for number, word in enumerate(words):
            value = wrap(StringValue(value=word), key=word, timestamp_ms=number)
            log.append("words", number % 2, value, key=word.encode(), timestamp_ms=number)

    return append


@pytest.fixture
def command() -> Callable[..., Result]:
    """Runs the command in this process; its output is in `stdout` and `stderr`."""
    return lambda *arguments: CliRunner(env={"COLUMNS": "120"}).invoke(
        application(*arguments[:1]), list(arguments)
    )
