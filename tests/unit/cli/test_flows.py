"""Goal: flows are listed, and forgotten only after confirmation. Method: the command in this process, all in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import ModuleType

import pytest
from typer.testing import CliRunner, Result

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.cli.commands import application

Command = Callable[..., Result]
Feed = Callable[..., None]

KAFKA = ("--kafka", "broker:9092")
RUN = (*KAFKA, "--engine", "inprocess", "--once", "--allow-weak-durability")


def listed(command: Command, store: str) -> list[str]:
    found = command("flows", "list", "--store", store, "--json")
    assert found.exit_code == 0, found.stderr
    return [json.loads(line)["flow"] for line in found.stdout.splitlines()]


def test_flows_are_listed_with_what_they_read_and_write(
    flows: ModuleType, feed: Feed, command: Command, store: str
) -> None:
    assert "there are no flows in the store" in command("flows", "list", "--store", store).stderr
    feed("a")
    for flow in ("counts", "once"):
        command("run", f"cli_flows:{flow}", *RUN, "--store", store)
    lines = [
        json.loads(line) for line in command("flows", "list", "--store", store, "--json").stdout.splitlines()
    ]
    assert [(line["flow"], line["plan"], line["stages"]) for line in lines] == [
        ("cli-counts", 1, ["per-word"]),
        ("cli-once", 2, ["kept", "once"]),
    ]
    assert (lines[0]["reads"], lines[0]["writes"], lines[0]["claimed_by"]) == (["words"], ["totals"], None)
    assert re.search(
        r"cli-counts .* 1 .* per-word .* words .* totals", command("flows", "list", "--store", store).stdout
    )
    assert command("flows", "list").exit_code == 2


def test_a_flow_is_forgotten_when_its_name_is_typed(
    flows: ModuleType, feed: Feed, log: MemoryLog, command: Command, store: str
) -> None:
    feed("a")
    command("run", "cli_flows:counts", *RUN, "--store", store)
    command("run", "cli_flows:once", *RUN, "--store", store)
    asked = ["flows", "forget", "cli-counts", *KAFKA, "--store", store]
    wrong = CliRunner().invoke(application(), asked, input="cli-count\n")
    assert (wrong.exit_code, "nothing was forgotten" in wrong.stderr) == (2, True)
    assert listed(command, store) == ["cli-counts", "cli-once"]
    done = CliRunner().invoke(application(), asked, input="cli-counts\n")
    assert done.exit_code == 0, done.stderr
    assert listed(command, store) == ["cli-once"]
    assert log.committed("cli-counts", [("words", 0)]) == {}
    assert "totals" in log.describe(["totals"])
    again = command(*asked, "--yes")
    assert (again.exit_code, "flow 'cli-counts': the store knows nothing of it" in again.stderr) == (2, True)


def test_its_topics_go_where_that_is_asked_for(
    flows: ModuleType, feed: Feed, log: MemoryLog, command: Command, store: str
) -> None:
    feed("a")
    command("run", "cli_flows:counts", *RUN, "--store", store)
    done = command("flows", "forget", "cli-counts", *KAFKA, "--store", store, "--topics", "--yes")
    assert "deleted topics: totals" in done.stderr
    assert log.describe(["totals", "words"]).keys() == {"words"}


@pytest.mark.parametrize("name", ["", "cli counts", "words[0]", "n\u00f6"])
def test_what_is_no_name_of_a_flow_is_refused(command: Command, store: str, name: str) -> None:
    refused = command("flows", "forget", name, "--yes", "--store", store)
    assert (refused.exit_code, f"flow name {name!r}" in refused.stderr.replace("\n", " ")) == (2, True)
