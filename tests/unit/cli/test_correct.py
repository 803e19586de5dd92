"""Goal: sqe-chain correct begins a revision as documented. Method: the command in this process, all in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from typer.testing import Result

from sqe_chain import read
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.flow import Flow

Command = Callable[..., Result]
WHERE = "--kafka", "broker:9092", "--allow-weak-durability"


@pytest.fixture
def corrected(flows: ModuleType, feed: Callable[..., None], command: Command) -> None:
    """Words were copied; from now on the code of the flow copies them twice, and declares a second revision."""
    feed("a", "bb", "ccc")
    assert command("run", "cli_flows:copies", *WHERE, "--engine", "inprocess", "--once").exit_code == 0
    again = Flow("cli-copies")
    words = again.source("words", StringValue)
    words.flat_map(lambda word: [word, word]).to("copies", partitions=2, revision=2)
    vars(flows)["copies"] = again


def names(log: MemoryLog) -> set[str]:
    return {read(record.value()).chain.links[-1].output for record in log.records("copies")}


@pytest.mark.usefixtures("corrected")
def test_a_revision_begins_and_the_service_publishes_under_it(log: MemoryLog, command: Command) -> None:
    looked = command("correct", "cli_flows:copies", *WHERE, "--from", "beginning", "--dry-run", "--json")
    assert looked.exit_code == 0, looked.stderr
    shown = json.loads(looked.stdout)
    assert (shown["revision"], shown["since"], shown["dry_run"]) == (2, None, True)
    assert set(shown["continues_from"].values()) == {0}
    assert "copies.revisions" not in log.describe(["copies.revisions"])
    done = command("correct", "cli_flows:copies", *WHERE, "--from", "beginning")
    assert done.exit_code == 0, done.stderr
    assert "revision 2 of cli-copies/copies begins at the beginning of all roots" in done.stderr
    assert command("run", "cli_flows:copies", *WHERE, "--engine", "inprocess", "--once").exit_code == 0
    assert names(log) == {"cli-copies/copies", "cli-copies/copies@2"}


@pytest.mark.usefixtures("corrected")
def test_a_service_does_not_start_before_its_revision_has_begun(command: Command) -> None:
    refused = command("run", "cli_flows:copies", *WHERE, "--engine", "inprocess", "--once")
    assert refused.exit_code == 3
    assert "Run sqe-chain correct first" in refused.stderr


@pytest.mark.parametrize(
    ("flow", "since", "text"),
    [
        ("counts", "beginning", "has stages: its states at a point in time mix"),
        ("copies", "beginning", "Declare to(..., revision=2)"),
        ("copies", "Monday", "--from 'Monday'. Expected a time with its zone"),
    ],
)
@pytest.mark.usefixtures("flows", "log")
def test_what_cannot_be_corrected_is_refused_by_name(
    command: Command, feed: Callable[..., None], flow: str, since: str, text: str
) -> None:
    feed("a")
    if flow == "copies":
        assert command("run", "cli_flows:copies", *WHERE, "--engine", "inprocess", "--once").exit_code == 0
    refused = command("correct", f"cli_flows:{flow}", *WHERE, "--from", since)
    assert refused.exit_code == 2
    assert text in " ".join(refused.stderr.split())
