"""Goal: skipped inputs are reported, listed and sent back. Method: the command in this process, all in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from typer.testing import Result

from sqe_chain.adapters.memory import MemoryLog

Command = Callable[..., Result]
Feed = Callable[..., None]

KAFKA = ("--kafka", "broker:9092")
RUN = (*KAFKA, "--engine", "inprocess", "--once", "--allow-weak-durability", "--max-excluded-share", "1")


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


def test_lines_of_text_show_it_without_python(
    flows: ModuleType, feed: Feed, command: Command, store: str
) -> None:
    flows.broken.add("a")
    feed("a")
    shown = command("run", "cli_flows:skips", *RUN, "--store", store).stderr
    assert 'excluded_errors={"ValueError": 1}' in shown
    assert f'{{"input": "words[0]@0", "error": "ValueError", "text": "{refused("a")}"}}' in shown


def test_records_that_kept_plans_skip_are_listed_and_counted(
    flows: ModuleType, feed: Feed, command: Command, store: str
) -> None:
    flows.broken.update("bc")
    feed("a", "b")
    command("run", "cli_flows:skips", *RUN, "--store", store)
    feed("c")
    command("run", "cli_flows:skips", *RUN, "--store", store)
    listed = command("excluded", "cli_flows:skips", "--store", store, "--json")
    lines = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(line["plan"], line["topic"], line["partition"], line["offset"]) for line in lines] == [
        (2, "words", 0, 1),
        (1, "words", 1, 0),
    ]
    assert {line["policy"] for line in lines} == {"skip"}
    assert lines[0]["text"] == refused("c")
    table = command("excluded", "cli_flows:skips", "--store", store, "--limit", "1")
    assert "words[0]@1" in table.stdout
    assert "words[1]@0" not in table.stdout
    assert "2 inputs skipped in plans 0 to 2: 2 ValueError" in table.stderr
    assert command("excluded", "cli_flows:copies").exit_code == 2
    assert "the store has no flow" in command("excluded", "cli_flows:counts", "--store", store).stderr


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


def test_dead_letter_records_come_back_once(
    flows: ModuleType, feed: Feed, log: MemoryLog, command: Command, store: str
) -> None:
    flows.broken.add("b")
    feed("a", "b")
    log.append("words", 0, b"rubbish")
    command("run", "cli_flows:letters", *RUN, "--store", store)
    flows.broken.clear()
    shown = command("dead-letters", "replay", "cli_flows:letters", *KAFKA)
    assert shown.exit_code == 0, shown.stderr
    assert "dead-letter records sent back: 1" in shown.stdout
    assert "stay in cli-letters.dead-letters: 1" in shown.stderr
    again = json.loads(command("dead-letters", "replay", "cli_flows:letters", *KAFKA, "--json").stdout)
    assert (again["flow"], again["sent"], again["left"]) == ("cli-letters", 0, 0)
    command("run", "cli_flows:letters", *RUN, "--store", store)
    states = command("state", "cli_flows:letters", "per-word", "--store", store, "--json").stdout
    assert sorted(json.loads(line)["key"] for line in states.splitlines()) == ["a", "b"]
    for name in (".", "..", "a b"):
        wrong = command("dead-letters", "replay", "cli_flows:letters", *KAFKA, "--to", name)
        assert wrong.exit_code == 2
