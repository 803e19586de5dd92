"""Goal: the command republishes states as documented. Method: the command in this process, all in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import ModuleType

import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from typer.testing import Result

from sqe_chain import read
from sqe_chain.adapters.memory import MemoryLog

Command = Callable[..., Result]
Feed = Callable[..., None]


@pytest.fixture
def where(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Broker and store."""
    store = f"memory://{re.sub('[^a-z]', '-', request.node.name)}"
    return "--kafka", "broker:9092", "--allow-weak-durability", "--store", store


@pytest.fixture
def counted(
    flows: ModuleType,
    feed: Feed,
    command: Command,
    where: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Words were counted; from now on the code counts tenfold."""
    feed("a", "bb", "ccc", "a")
    assert run(command, where).exit_code == 0
    monkeypatch.setattr(flows, "weight", 10)


def run(command: Command, where: tuple[str, ...]) -> Result:
    return command("run", "cli_flows:counts", *where, "--engine", "inprocess", "--once")


def totals(log: MemoryLog) -> list[tuple[str, int]]:
    """What was published, in order."""
    found = [(message.key() or b"", read(message.value())) for message in log.records("totals")]
    return [(key.decode(), envelope.payload_as(Int64Value).value) for key, envelope in found]


@pytest.mark.usefixtures("counted")
def test_a_rebuild_republishes_states_if_asked(
    log: MemoryLog, command: Command, where: tuple[str, ...]
) -> None:
    before = totals(log)
    done = command("rebuild", "cli_flows:counts", *where, "--engine", "inprocess", "--announce")
    assert done.exit_code == 0, done.stderr
    assert "folded again; start its service" in done.stderr
    assert "3 messages for stage 'per-word'" in done.stderr
    assert sorted(totals(log)[len(before) :]) == [("a", 20), ("bb", 20), ("ccc", 30)]
    again = command("announce", "cli_flows:counts", *where)
    assert again.exit_code == 0, again.stderr
    assert "published before and unchanged since: per-word" in again.stderr
    assert len(totals(log)) == len(before) + 3


@pytest.mark.usefixtures("counted")
def test_a_rebuild_without_it_publishes_nothing(
    log: MemoryLog, command: Command, where: tuple[str, ...]
) -> None:
    before = totals(log)
    assert command("rebuild", "cli_flows:counts", *where, "--engine", "inprocess").exit_code == 0
    assert totals(log) == before
    done = command("announce", "cli_flows:counts", *where, "--stage", "per-word", "--log-json")
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    (event,) = [line for line in lines if line["event"] == "announced"]
    assert (event["outputs"], event["known"]) == ({"per-word": 3}, [])
    assert len(totals(log)) == len(before) + 3


@pytest.mark.usefixtures("counted")
def test_a_flow_that_has_to_catch_up_reports_it(
    log: MemoryLog, command: Command, where: tuple[str, ...]
) -> None:
    rewound = command(
        *("rewind", "cli_flows:counts", *where, "--engine", "inprocess"),
        *("--to", "words[0]=1", "--to", "words[1]=1"),
    )
    assert rewound.exit_code == 0, rewound.stderr
    before = totals(log)
    refused = command("announce", "cli_flows:counts", *where)
    assert refused.exit_code == 3
    assert "Run the service until it has caught up, then this command again" in " ".join(
        refused.stderr.split()
    )
    done = command("rebuild", "cli_flows:counts", *where, "--engine", "inprocess", "--announce")
    assert done.exit_code == 0, done.stderr
    text = " ".join(done.stderr.split())
    assert "folded again" in text
    assert "not republished yet" in text
    assert "sqe-chain announce cli_flows:counts" in text
    assert totals(log) == before
    assert run(command, where).exit_code == 0
    assert command("announce", "cli_flows:counts", *where).exit_code == 0
    assert sorted(totals(log)[len(before) :]) == [("a", 20), ("bb", 20), ("ccc", 30)]


@pytest.mark.usefixtures("flows")
@pytest.mark.parametrize(
    "arguments",
    [("announce", "cli_flows:letters"), ("rebuild", "cli_flows:letters", "--announce")],
    ids=["announce", "rebuild"],
)
def test_states_that_cannot_be_republished_are_refused_before_anything_is_done(
    command: Command, where: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    done = command(*arguments, *where)
    assert done.exit_code == 2
    assert "has no changes() with an output" in " ".join(done.stderr.split())
