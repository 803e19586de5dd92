"""Goal: skipped inputs are reported, listed and released. Method: the command in this process, all in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from typer.testing import Result

Command = Callable[..., Result]
Feed = Callable[..., None]

KAFKA = ("--kafka", "broker:9092")
RUN = (*KAFKA, "--engine", "inprocess", "--once", "--allow-weak-durability", "--max-excluded", "1000000")


def committed(result: Result) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    return [line for line in lines if line["event"] == "committed"]


def refused(text: str) -> str:
    """The error text of the flow's own function, with its place in the code and the key."""
    source = (Path(__file__).parent / "conftest.py").read_text(encoding="utf-8")
    lines = source.partition("FLOWS = ")[2].partition('"""')[2].splitlines()
    line = next(number for number, code in enumerate(lines, 1) if "cannot read" in code)
    return f"cannot read {text}, at cli_flows.py:{line} in check, key {text.encode()!r}"


def test_a_batch_reports_the_records_that_it_skipped(
    flows: ModuleType, feed: Feed, command: Command, store: str
) -> None:
    flows.broken.update("abcdefgh")
    feed(*"abcdefghij")
    (line,) = committed(command("run", "cli_flows:skips", *RUN, "--store", store, "--log-json"))
    assert line["excluded"] == 8
    assert line["excluded_errors"] == {"ValueError": 8}
    sample = line["excluded_sample"]
    assert len(sample) == 5  # type: ignore[arg-type]
    assert {"input": "words[0]@0", "error": "ValueError", "text": refused("a")} in sample  # type: ignore[operator]


def test_a_republisher_reports_it_too_and_a_sound_batch_reports_nothing(
    flows: ModuleType, feed: Feed, command: Command
) -> None:
    flows.broken.add("b")
    feed("a", "b")
    (line,) = committed(command("run", "cli_flows:skipping_copies", *RUN, "--log-json"))
    assert line["excluded_sample"] == [{"input": "words[1]@0", "error": "ValueError", "text": refused("b")}]
    feed("c")
    (line,) = committed(command("run", "cli_flows:skipping_copies", *RUN, "--log-json"))
    assert "excluded_sample" not in line


def test_records_that_kept_plans_skip_are_listed_and_counted(
    flows: ModuleType, feed: Feed, command: Command, store: str
) -> None:
    flows.broken.update("bc")
    feed("a", "b")
    command("run", "cli_flows:skips", *RUN, "--store", store)
    feed("c")
    command("run", "cli_flows:skips", *RUN, "--store", store)
    every = ("failed", "list", "cli_flows:skips", *KAFKA, "--store", store, "--state", "all")
    lines = [json.loads(line) for line in command(*every, "--json").stdout.splitlines()]
    assert [line["read_at"] for line in lines] == ["words[0]@1", "words[1]@0"]
    assert lines[0]["text"] == refused("c")
    table = command(*every, "--limit", "1")
    assert "words[0]@1" in table.stdout
    assert "words[1]@0" not in table.stdout
    assert "failed records: 2 (2 ValueError)" in table.stderr
    never = command("failed", "list", "cli_flows:counts", *KAFKA, "--store", store)
    assert "the store has no flow" in never.stderr


def test_peek_shows_a_dead_letter_record_and_its_error(
    flows: ModuleType, feed: Feed, command: Command, store: str
) -> None:
    flows.broken.add("b")
    feed("a", "b")
    command("run", "cli_flows:letters", *RUN, "--store", store)
    (line,) = [
        json.loads(line)
        for line in command("peek", "cli-letters.dead-letters", *KAFKA, "--json").stdout.splitlines()
    ]
    assert line["headers"] == []
    assert line["envelope"]["payloads"] == ["b"]
    letter = line["dead_letter"]
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("words", 1, 0)
    assert (letter["flow"], letter["error"], letter["text"]) == ("cli-letters", "ValueError", refused("b"))
    shown = command("peek", "cli-letters.dead-letters", *KAFKA).stdout
    assert "dead-letter record of flow cli-letters, read at words[1]@0: ValueError: cannot read b" in shown
    assert 'payload "b"' in shown
