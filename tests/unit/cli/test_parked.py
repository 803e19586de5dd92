"""Goal: parked records are listed, released and discarded by the command. Method: the command in this process, all in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest
from typer.testing import Result

Command = Callable[..., Result]
Feed = Callable[..., None]
KAFKA = ("--kafka", "broker:9092")


@pytest.fixture
def call(flows: ModuleType, feed: Feed, command: Command, store: str) -> Command:
    """The commands of a flow that has parked two of three records, and is corrected now."""
    flows.broken.update("ab")
    feed("a", "b", "c")
    servers = (*KAFKA, "--store", store)
    ran = command(
        "run", "cli_flows:parks", "--engine", "inprocess", "--once", *servers, "--allow-weak-durability"
    )
    assert ran.exit_code == 0, ran.stderr
    assert "is parked" in ran.stderr
    flows.broken.clear()

    def parked(name: str, *arguments: str) -> Result:
        options = ("--store", store) if name == "list" else (*servers, "--allow-weak-durability")
        engine = ("--engine", "inprocess") if name == "release" else ()
        return command("parked", name, "cli_flows:parks", *arguments, *options, *engine)

    return parked


def keys(result: Result) -> list[object]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line)["key"] for line in result.stdout.splitlines()]


def test_records_are_listed_and_narrowed(call: Command) -> None:
    listed = call("list", "--json")
    assert keys(listed) == ["a", "b"]
    assert "2 parked records: 2 ValueError" in listed.stderr
    assert keys(call("list", "--json", "--key", "b*")) == ["b"]
    assert keys(call("list", "--json", "--error", "Key*")) == []
    assert keys(call("list", "--json", "--topic", "others")) == []
    assert "words[0]@0" in call("list").stdout


def test_selected_records_count_once_and_the_others_wait(call: Command) -> None:
    released = json.loads(call("release", "--key", "a", "--json").stdout)
    assert (released["done"], released["waiting"]) == (1, 1)
    assert json.loads(call("release", "--key", "a", "--json").stdout)["done"] == 0
    assert keys(call("list", "--json")) == ["b"]
    assert "records that count now: 1" in call("release").stdout


def test_what_fails_again_stays(call: Command, flows: ModuleType) -> None:
    flows.broken.add("b")
    result = call("release")
    assert "records that count now: 1" in result.stdout
    assert "stay parked" in result.stderr
    assert keys(call("list", "--json")) == ["b"]


def test_records_are_discarded_with_the_name_of_the_flow_alone(call: Command) -> None:
    assert call("discard").exit_code != 0
    assert keys(call("list", "--json")) == ["a", "b"]
    assert "records that are discarded: 1" in call("discard", "--key", "a", "--yes").stdout
    assert "parked now: 0" in call("discard", "--yes").stdout


def test_a_flow_that_parks_nothing_is_refused(
    command: Command, flows: ModuleType, feed: Feed, store: str
) -> None:
    del flows
    feed("a")
    absent = command("parked", "list", "cli_flows:parks", "--store", store)
    assert absent.exit_code == 2
    assert "it has not run with this store" in absent.stderr
    other = command(
        "parked", "release", "cli_flows:counts", *KAFKA, "--store", store, "--allow-weak-durability"
    )
    assert other.exit_code == 2
    assert "Expected poison='park'" in other.stderr


def test_why_not_names_what_is_parked_and_a_trace_is_refused(
    call: Command, command: Command, store: str
) -> None:
    (first, *_) = [json.loads(line)["read_at"] for line in call("list", "--json").stdout.splitlines()]
    servers = (*KAFKA, "--store", store)
    found = command("why-not", "cli_flows:parks", first, *servers)
    assert found.exit_code == 1
    assert "waiting" in found.stdout
    assert "It is parked: ValueError" in found.stdout
    refused = command("trace", "cli_flows:parks", "per-word", "a", *servers)
    assert refused.exit_code == 2
    assert "Expected another policy than poison='park'" in refused.stderr
