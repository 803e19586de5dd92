"""Goal: dead-letter records are listed, shown and discarded. Method: the command in this process, all in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest
from typer.testing import Result

from sqe_chain.adapters.memory import MemoryLog

Command = Callable[..., Result]
Feed = Callable[..., None]
KAFKA = ("--kafka", "broker:9092")


@pytest.fixture
def skipped(
    flows: ModuleType,
    feed: Feed,
    command: Command,
    store: str,
    log: MemoryLog,
) -> MemoryLog:
    """A flow that has skipped two records of three."""
    flows.broken.update("ab")
    feed("a", "b", "c")
    ran = command(
        "run", "cli_flows:letters", *KAFKA, "--engine", "inprocess", "--once", "--store", store, "--allow-weak-durability",
        "--max-excluded-share", "1",
    )  # fmt: skip
    assert ran.exit_code == 0, ran.stderr
    flows.broken.clear()
    return log


def lines(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_records_are_listed_and_narrowed(skipped: MemoryLog, command: Command) -> None:
    everything = command("dead-letters", "list", "cli_flows:letters", *KAFKA, "--json")
    assert {line["key"] for line in lines(everything)} == {"a", "b"}
    assert "2 dead-letter records: 2 ValueError" in everything.stderr
    narrowed = command(
        "dead-letters", "list", "cli_flows:letters", *KAFKA, "--json", "--key", "a*", "--error", "Value*"
    )
    assert [line["read_at"] for line in lines(narrowed)] == ["words[0]@0"]
    assert (
        lines(command("dead-letters", "list", "cli_flows:letters", *KAFKA, "--json", "--error", "Key*")) == []
    )
    late = command(
        "dead-letters", "list", "cli_flows:letters", *KAFKA, "--json", "--since", "2100-01-01T00:00:00Z"
    )
    assert lines(late) == []
    assert all("cannot read" in str(line["text"]) for line in lines(everything))
    assert "ValueError" in command("dead-letters", "list", "cli_flows:letters", *KAFKA).stdout


def test_one_record_is_shown_without_its_value(skipped: MemoryLog, command: Command) -> None:
    (at,) = [
        line["at"]
        for line in lines(
            command("dead-letters", "list", "cli_flows:letters", *KAFKA, "--json", "--key", "a")
        )
    ]
    (shown,) = lines(command("dead-letters", "show", "cli_flows:letters", at, *KAFKA))
    assert shown["error"] == "ValueError"
    assert shown["chain"] == "(origin)"
    assert "value" not in shown
    (whole,) = lines(command("dead-letters", "show", "cli_flows:letters", at, *KAFKA, "--show-payloads"))
    assert "value" in whole
    missing = command("dead-letters", "show", "cli_flows:letters", "cli-letters.dead-letters[0]@99", *KAFKA)
    assert missing.exit_code == 2
    assert "there is no record at" in missing.stderr
    other = command("dead-letters", "show", "cli_flows:letters", "words[0]@0", *KAFKA)
    assert "Expected 'cli-letters.dead-letters'" in other.stderr


def test_what_is_discarded_is_never_sent_back(skipped: MemoryLog, command: Command) -> None:
    before = len(skipped.records("words"))
    discarded = command(
        "dead-letters",
        "discard",
        "cli_flows:letters",
        *KAFKA,
        "--to",
        "cli-letters.dead-letters[0]=1",
        "--yes",
    )
    assert discarded.exit_code == 0, discarded.stderr
    assert discarded.stdout.startswith("1 offsets")
    replayed = command("dead-letters", "replay", "cli_flows:letters", *KAFKA, "--json")
    assert lines(replayed)[0]["sent"] == 1
    assert len(skipped.records("words")) == before + 1
    assert len(skipped.records("cli-letters.dead-letters")) == 2
    everything = command("dead-letters", "discard", "cli_flows:letters", *KAFKA, "--yes")
    assert everything.stdout.startswith("0 offsets")


def test_nothing_is_discarded_without_the_name_or_elsewhere(skipped: MemoryLog, command: Command) -> None:
    assert command("dead-letters", "discard", "cli_flows:letters", *KAFKA).exit_code != 0
    elsewhere = command("dead-letters", "discard", "cli_flows:letters", *KAFKA, "--to", "words[0]=1", "--yes")
    assert elsewhere.exit_code == 2
    assert "expected a partition of 'cli-letters.dead-letters'" in elsewhere.stderr
    discard = ("dead-letters", "discard", "cli_flows:letters", *KAFKA, "--yes", "--to")
    outside = command(*discard, "cli-letters.dead-letters[9]=1")
    assert outside.exit_code == 2
    twice = command(*discard, "cli-letters.dead-letters[0]=1", "--to", "cli-letters.dead-letters[0]=2")
    assert (twice.exit_code, twice.stdout) == (2, "")
    assert "--to cli-letters.dead-letters[0] is given twice" in twice.stderr


def test_records_are_sent_back_and_discarded_by_selection(skipped: MemoryLog, command: Command) -> None:
    before = len(skipped.records("words"))

    def sent(*selection: str) -> object:
        return lines(command("dead-letters", "replay", "cli_flows:letters", *KAFKA, "--json", *selection))[0][
            "sent"
        ]

    assert sent("--key", "b", "--until", "1970-01-01T00:00:00Z") == 0
    assert sent("--key", "b", "--error", "Value*") == 1
    assert [record.key() for record in skipped.records("words")[before:]] == [b"b"]
    discarded = command("dead-letters", "discard", "cli_flows:letters", *KAFKA, "--key", "a", "--yes")
    assert discarded.stdout.startswith("1 records")
    assert sent() == 0
    assert len(skipped.records("words")) == before + 1
