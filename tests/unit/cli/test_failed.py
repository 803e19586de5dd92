"""Goal: one family of commands decides about what failed, whatever the policy and the stages of the flow.

Method: two records of three fail in a flow of each kind. The command runs in this process, all in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from typer.testing import Result

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.cli.console import OUT

Command = Callable[..., Result]
Feed = Callable[..., None]
KAFKA = ("--kafka", "broker:9092")
KINDS = {"sorting": "open", "letters": "open", "parks": "parked"}
"""Flow -> the state of what it could not process: without stages; with stages and a dead-letter topic; with parked records."""


class Flow:
    """A flow whose code fails for some words, and its commands."""

    def __init__(self, name: str, command: Command, store: str) -> None:
        self.name, self._command, self._store = name, command, store
        self.has_store = "copies" not in name and name != "sorting"

    @property
    def servers(self) -> tuple[str, ...]:
        return (*KAFKA, "--store", self._store) if self.has_store else KAFKA

    def run(self) -> Result:
        options = ("--engine", "inprocess", "--once", "--allow-weak-durability", "--max-excluded", "1000000")
        ran = self._command("run", f"cli_flows:{self.name}", *self.servers, *options)
        assert ran.exit_code == 0, ran.stderr
        return ran

    def __call__(self, verb: str, *arguments: str) -> Result:
        more = ("--allow-weak-durability",) if verb in ("release", "discard") else ()
        engine = ("--engine", "inprocess") if verb == "release" else ()
        return self._command(
            "failed", verb, f"cli_flows:{self.name}", *arguments, *self.servers, *more, *engine
        )

    def lines(self, verb: str, *arguments: str) -> list[dict[str, Any]]:
        result = self(verb, *arguments, "--json")
        assert result.exit_code == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    def left(self) -> list[object]:
        return [line["key"] for line in self.lines("list")]

    def counted(self) -> int:
        """How many words have counted, by what its store or its output has."""
        if not self.has_store:
            return len(self._command("peek", "copies", *KAFKA, "--json").stdout.splitlines())
        states = self._command(
            "state", f"cli_flows:{self.name}", "per-word", "--store", self._store, "--json"
        )
        return len(states.stdout.splitlines())


@pytest.fixture
def flow_of(flows: ModuleType, feed: Feed, command: Command, store: str) -> Callable[[str], Flow]:
    """Makes a flow that could not process two records of three, and is corrected now."""

    def make(name: str) -> Flow:
        flow = Flow(name, command, store)
        flows.broken.update("ab")
        feed("a", "b", "c")
        flow.run()
        flows.broken.clear()
        return flow

    return make


@pytest.fixture(params=KINDS)
def flow(flow_of: Callable[[str], Flow], request: pytest.FixtureRequest) -> Flow:
    """A flow of each kind."""
    return flow_of(request.param)


def test_records_are_listed_and_narrowed(flow: Flow) -> None:
    listed = flow("list", "--json")
    lines = [json.loads(line) for line in listed.stdout.splitlines()]
    assert {line["key"]: line["read_at"] for line in lines} == {"a": "words[0]@0", "b": "words[1]@0"}
    assert {line["state"] for line in lines} == {KINDS[flow.name]}
    assert all("cannot read" in line["text"] for line in lines)
    assert "failed records: 2 (2 ValueError)" in listed.stderr
    for options, left in {
        ("--key", "b*"): ["b"],
        ("--error", "Value*", "--key", "a"): ["a"],
        ("--error", "Key*"): [],
        ("--topic", "others"): [],
        ("--since", "2100-01-01T00:00:00Z"): [],
        ("--until", "1970-01-01T00:00:00.001Z"): ["a"],
        ("--state", "discarded"): [],
        ("--state", "all", "--limit", "1"): [lines[0]["key"]],
    }.items():
        assert [line["key"] for line in flow.lines("list", *options)] == left, options


def test_places_in_a_narrow_terminal_can_be_pasted(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OUT, "width", 30)
    shown = flow("list").stdout
    assert "words[0]@0" in shown
    assert "words[1]@0" in shown


def test_one_record_is_shown_by_where_it_was_read(flow: Flow) -> None:
    (shown,) = flow.lines("list", "words[0]@0")
    assert (shown["error"], shown["chain"], shown["headers"]) == ("ValueError", "(origin)", [])
    assert [event["what"] for event in shown["history"]] == ["parked" if flow.name == "parks" else "skipped"]
    assert "value" not in shown
    (whole,) = flow.lines("list", "words[0]@0", "--show-payloads")
    assert "value" in whole
    missing = flow("list", "words[0]@99")
    assert missing.exit_code == 2
    assert "no failed record was read at words[0]@99" in missing.stderr
    assert "names no record" in flow("list", "words").stderr


def test_selected_records_count_once_and_the_others_stay(flow: Flow) -> None:
    assert flow.lines("release", "words[0]@0", "--error", "Key*")[0]["released"] == 0
    assert flow.lines("release", "words[0]@0")[0]["released"] == 1
    assert flow.lines("release", "words[0]@0")[0]["released"] == 0
    assert flow.left() == ["b"]
    assert "records that count now: 1" in flow("release").stdout
    assert flow.left() == []
    flow.run()
    assert flow.counted() == 3


def test_what_is_discarded_never_counts(flow: Flow) -> None:
    unnamed = flow("discard")
    assert unnamed.exit_code != 0
    assert len(flow.left()) == 2
    assert "records that never count: 1" in flow("discard", "words[0]@0", "--yes").stdout
    assert flow.lines("discard", "--key", "a", "--yes")[0]["discarded"] == 0
    assert flow.left() == ["b"]
    assert "still to decide: 0" in flow("discard", "--yes").stdout
    assert flow.lines("release")[0]["released"] == 0
    flow.run()
    assert flow.counted() == 1
    assert "not shown: 2 " in flow("list").stderr


@pytest.mark.parametrize("name", ["sorting", "parks"])
def test_what_fails_again_stays(flow_of: Callable[[str], Flow], flows: ModuleType, name: str) -> None:
    flow = flow_of(name)
    flows.broken.add("b")
    result = flow("release")
    assert result.exit_code == 1
    assert "records that count now: 1" in result.stdout
    assert "failed again: 1" in result.stderr
    assert flow.left() == ["b"]


def test_what_changes_nothing_names_why(flow: Flow) -> None:
    for verb, more in (("release", ()), ("discard", ("--yes",))):
        typo = flow(verb, "words[0]@99", *more)
        wanted = (
            (0, "no failed record matches") if flow.name == "parks" else (2, "no failed record was read at")
        )
        assert (typo.exit_code, wanted[1] in typo.stderr) == (wanted[0], True)
        unmatched = flow(verb, "--error", "Key*", *more)
        assert unmatched.exit_code == 0
        assert "no failed record matches" in unmatched.stderr
    assert len(flow.left()) == 2
    if flow.name != "parks":  # what was parked and counts is listed nowhere
        assert flow("release", "words[0]@0").exit_code == 0
        again = flow("release", "words[0]@0")
        assert again.exit_code == 0
        assert "words[0]@0 is released already" in again.stderr
    flow("discard", "words[1]@0", "--yes")
    again = flow("discard", "words[1]@0", "--yes")
    assert (again.exit_code, "words[1]@0 is discarded already" in again.stderr) == (0, True)


def test_a_flow_that_stops_keeps_no_failed_records_and_the_list_names_that(
    flow_of: Callable[[str], Flow],
) -> None:
    flow = flow_of("counts")
    assert "the service stops at it, and PoisonError names it" in flow("list").stderr


def test_what_does_not_count_is_named_by_trace_and_audit(
    flow_of: Callable[[str], Flow], command: Command
) -> None:
    flow = flow_of("letters")
    target = "cli_flows:letters"
    traced = command("trace", target, "per-word", "c", *flow.servers)
    assert "2 failed records do not count, the first from words[" in traced.stdout
    assert "not counted" not in traced.stdout
    own = command("trace", target, "per-word", "a", *flow.servers)
    assert "not counted words[0]@0: it failed and is open (ValueError)" in own.stdout
    assert json.loads(command("trace", target, "per-word", "a", *flow.servers, "--format", "json").stdout)[
        "failed"
    ] == ["words[0]@0"]
    assert "2 failed records do not count" in command("audit", target, *flow.servers).stdout
    flow("release")
    flow.run()
    for answer in (
        command("trace", target, "per-word", "a", *flow.servers),
        command("audit", target, *flow.servers),
    ):
        assert "failed record" not in answer.stdout


def test_what_was_released_without_a_store_has_its_history(flow_of: Callable[[str], Flow]) -> None:
    flow = flow_of("sorting")
    flow("release", "words[0]@0")
    flow("discard", "words[1]@0", "--yes")
    histories = [flow.lines("list", f"words[{number}]@0")[0]["history"] for number in (0, 1)]
    assert [[event["what"] for event in history] for history in histories] == [
        ["skipped", "release", "done"],
        ["skipped", "discard"],
    ]
    states = {line["read_at"]: line["state"] for line in flow.lines("list", "--state", "all")}
    assert states == {"words[0]@0": "released", "words[1]@0": "discarded"}


@pytest.mark.parametrize("name", ["skips", "skipping_copies"])
def test_what_nobody_keeps_is_listed_as_discarded(flow_of: Callable[[str], Flow], name: str) -> None:
    flow = flow_of(name)
    listed = flow("list")
    assert "failed records: 0" in listed.stderr
    assert "not shown: 2 discarded" in listed.stderr
    lines = flow.lines("list", "--state", "discarded")
    assert {(line["read_at"], line["decided_by"]) for line in lines} == {
        (f"words[{number}]@0", "poison='skip'") for number in (0, 1)
    }


def test_what_cannot_be_read_can_only_be_discarded(flow_of: Callable[[str], Flow], log: MemoryLog) -> None:
    log.append("words", 0, b"rubbish")
    flow = flow_of("sorting")
    assert {line["read_at"]: line["state"] for line in flow.lines("list")}["words[0]@0"] == "unreadable"
    result = flow("release")
    assert "only discarded, or wait behind one that cannot: 1" in result.stderr
    assert "words[0]@0: its envelope cannot be read" in result.stderr
    assert flow.lines("discard", "--yes")[0] == {"flow": "cli-sorting", "discarded": 1, "left": 0}


def test_wrong_states_and_places_are_refused(flow: Flow) -> None:
    wrong = flow("list", "--state", "lost")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "Expected one of: open, parked," in wrong.stderr
    for verb in ("release", "discard"):
        refused = flow(verb, "words", *(("--yes",) if verb == "discard" else ()))
        assert refused.exit_code == 2
        assert "names no record" in refused.stderr
    assert len(flow.left()) == 2


def test_a_flow_that_has_not_run_is_named(
    flows: ModuleType, feed: Feed, command: Command, store: str
) -> None:
    del flows
    feed("a")
    absent = command("failed", "list", "cli_flows:parks", *KAFKA, "--store", store)
    assert absent.exit_code == 2
    assert "it has not run with this store" in absent.stderr


def test_why_not_names_what_is_parked_and_a_trace_is_refused(
    flow_of: Callable[[str], Flow], command: Command
) -> None:
    flow = flow_of("parks")
    found = command("why-not", "cli_flows:parks", "words[0]@0", *flow.servers)
    assert found.exit_code == 1
    assert "waiting" in found.stdout
    assert "It is parked: ValueError" in found.stdout
    refused = command("trace", "cli_flows:parks", "per-word", "a", *flow.servers)
    assert refused.exit_code == 2
    assert "Expected another policy than poison='park'" in refused.stderr
