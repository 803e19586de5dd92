"""Goal: a selection takes what it names, and an unset variable of a shell takes nothing.

Method: records with odd keys fail; all other records stay. The oracle of patterns tries all that `*` may stand for.
"""

from __future__ import annotations

import doctest
import json
import random
from collections.abc import Callable
from types import ModuleType

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from typer.testing import Result

from sqe_chain import wrap
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.cli.console import OUT
from sqe_chain.operations import patterns
from sqe_chain.operations.patterns import key_matches, listed_key, matches

Command = Callable[..., Result]
KEYS = (
    b"robot[7]",
    b"robot7",
    b"robot*",
    b"robot?",
    b"\x00\xff",
    b"0x00ff",
    b"0x",
    b"0X1",
    b"",
    None,
    b"-a",
    "№".encode(),
)
OPTIONS = ("--kafka", "broker:9092", "--store")


def test_examples_run() -> None:
    result = doctest.testmod(patterns)
    assert (result.attempted > 0, result.failed) == (True, 0)


def tried(text: str, pattern: str) -> bool:
    """The oracle."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(tried(text[start:], pattern[1:]) for start in range(len(text) + 1))
    return bool(text) and pattern[0] in ("?", text[0]) and tried(text[1:], pattern[1:])


def test_only_star_and_question_mark_are_special() -> None:
    draw = random.Random(7)
    found = set()
    for _ in range(5_000):
        text, pattern = (
            "".join(draw.choices(letters, k=draw.randrange(6))) for letters in ("a[]!\n", "a[]!*?\n")
        )
        assert matches(text, pattern) == tried(text, pattern), (text, pattern)
        found.add(tried(text, pattern))
    assert found == {True, False}


def test_what_a_list_shows_for_a_key_selects_that_key_alone() -> None:
    keys = [key for key in KEYS if key is not None]
    assert {key: [other for other in keys if key_matches(other, listed_key(key))] for key in keys} == {
        key: [key] for key in keys
    }
    assert [key for key in keys if key_matches(key, "0X1")] == [b"0X1"]
    assert [key for key in keys if key_matches(key, "0x00FF")] == [b"\x00\xff"]
    assert [key for key in keys if key_matches(key, "robot?")] == [b"robot7", b"robot*", b"robot?"]
    assert all(key_matches(key, "*") for key in keys)


@pytest.fixture
def failed(flows: ModuleType, log: MemoryLog, command: Command, store: str) -> str:
    """Records of all these keys wait in one flow, and another one has skipped them; the store's address."""
    for number, key in enumerate(KEYS):
        flows.broken.add(f"w{number}")
        value = wrap(StringValue(value=f"w{number}"), key=key, timestamp_ms=number)
        log.append("words", 0, value, key=key, timestamp_ms=number)
    for flow, more in (("parks", ()), ("letters", ("--max-excluded", "1000000"))):
        ran = command(
            "run", f"cli_flows:{flow}", "--engine", "inprocess", "--once", *OPTIONS, f"{store}-{flow}",
            "--allow-weak-durability", *more,
        )  # fmt: skip
        assert ran.exit_code == 0, ran.stderr
    return store


def as_shown(key: bytes | None) -> object:
    """A key in JSON."""
    if key is None or key == b"\x00\xff" or key.startswith(b"0x"):
        return key and {"hex": key.hex()}
    return key.decode()


def keys_of(result: Result) -> list[object]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line)["key"] for line in result.stdout.splitlines()]


FLOWS = ("parks", "letters")
"""Flows whose records of these keys wait in the store, or in a topic."""


def call(command: Command, verb: str, flow: str, store: str, *more: str) -> Result:
    weak = ("--allow-weak-durability",) if verb != "list" else ()
    return command("failed", verb, f"cli_flows:{flow}", *OPTIONS, f"{store}-{flow}", *weak, *more)


def listed(command: Command, flow: str, store: str, *chosen: str) -> list[object]:
    return keys_of(call(command, "list", flow, store, "--json", *chosen))


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
@pytest.mark.parametrize("flow", FLOWS)
def test_one_record_is_selected_by_its_key(
    failed: str, command: Command, flow: str, key: bytes | None
) -> None:
    chosen = ["--no-key"] if key is None else [f"--key={listed_key(key)}"]
    assert listed(command, flow, failed, *chosen) == [as_shown(key)]
    discarded = call(command, "discard", flow, failed, "--yes", *chosen)
    assert "records that never count: 1\n" in discarded.stdout
    assert listed(command, flow, failed) == [as_shown(other) for other in KEYS if other != key]


@pytest.mark.parametrize("flow", FLOWS)
def test_tables_show_keys_as_they_are_selected(
    failed: str, command: Command, monkeypatch: pytest.MonkeyPatch, flow: str
) -> None:
    monkeypatch.setattr(OUT, "width", 200)  # in a narrow terminal keys continue on the next line
    shown = call(command, "list", flow, failed).stdout
    assert all(f" {listed_key(key)} " in shown for key in KEYS if key is not None)


EMPTY = {
    ("--key", ""): "--no-key for records without a key",
    ("--error", ""): "For all errors give no --error",
    ("--key", "a", "--no-key"): "Expected one of the two",
    ("--since", ""): "--since ''",
    ("--until", ""): "--until ''",
}


@pytest.mark.parametrize("chosen", EMPTY)
@pytest.mark.parametrize("verb", ["list", "release", "discard"])
def test_empty_options_are_refused(failed: str, command: Command, verb: str, chosen: tuple[str, ...]) -> None:
    more = {"list": (), "release": ("--engine", "inprocess"), "discard": ("--yes",)}[verb]
    for flow in FLOWS:
        refused = call(command, verb, flow, failed, *more, *chosen)
        assert refused.exit_code == 2
        assert EMPTY[chosen] in " ".join(refused.stderr.split())
        assert len(listed(command, flow, failed)) == len(KEYS)
