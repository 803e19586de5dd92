"""Goal: trace, why-not and audit as commands. Method: the command in this process, broker and store in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from typer.testing import Result

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.ext.explain import command as explaining
from sqe_chain.ext.explain.audit import AuditedStage
from sqe_chain.ext.explain.replaying import Missing
from sqe_chain.runtime.launching import Prepared

Command = Callable[..., Result]
Feed = Callable[..., None]

KAFKA = ("--kafka", "broker:9092")
RUN = (*KAFKA, "--engine", "inprocess", "--once", "--allow-weak-durability", "--max-excluded", "1000000")


@pytest.fixture
def ran(flows: ModuleType, feed: Feed, command: Command, store: str) -> str:
    """A flow that has counted five words, two of them alike. Returns the address of its store."""
    assert flows.counts
    feed("a", "bb", "a", "ccc", "a")
    command("run", "cli_flows:counts", *RUN, "--store", store)
    return store


def alter(store: str, key: bytes, value: int) -> None:
    memory = MemoryStore(store.removeprefix("memory://"))
    for cell in range(2):
        header = memory.headers("cli-counts", "per-word", [cell])[0]
        if header and any(row == key for row, _ in memory.scan("cli-counts", "per-word", cell)):
            rows = [(key, Int64Value(value=value).SerializeToString())]
            memory.write("cli-counts", "per-word", cell, header, header, rows)


def test_a_trace_as_text_and_json(ran: str, command: Command) -> None:
    shown = command("trace", "cli_flows:counts", "per-word", "a", *KAFKA, "--store", ran)
    assert shown.exit_code == 0, shown.stderr
    assert "words[0]@0" in shown.stdout
    assert "a: equal: the stored state is what 3 records give" in shown.stdout
    raw = command("trace", "cli_flows:counts", "per-word", "a", *KAFKA, "--store", ran, "--format", "json")
    found = json.loads(raw.stdout)
    assert found["equal"] is True
    assert [record["state"] for record in found["records"]] == [1, 2, 3]
    page = command("trace", "cli_flows:counts", "per-word", "a", *KAFKA, "--store", ran, "--format", "html")
    assert page.stdout.startswith("<!doctype html>")
    assert page.stdout.count("<tr>") == 4


def test_a_trace_of_an_altered_state_ends_with_1(ran: str, command: Command) -> None:
    alter(ran, b"a", 2)
    shown = command("trace", "cli_flows:counts", "per-word", "a", *KAFKA, "--store", ran)
    assert shown.exit_code == 1
    assert "a: different: the stored state is that after words[0]@1; words[0]@2 is the first" in shown.stdout


def test_why_a_record_counts_or_does_not(ran: str, command: Command) -> None:
    counted = command("why-not", "cli_flows:counts", "words[1]@0", *KAFKA, "--store", ran)
    assert counted.exit_code == 0, counted.stderr
    assert "words[1]@0: counted. Counted in stage 'per-word' under key b'bb'" in counted.stdout
    absent = command("why-not", "cli_flows:counts", "words[1]@77", *KAFKA, "--store", ran, "--json")
    assert absent.exit_code == 1
    assert json.loads(absent.stdout)["verdict"] == "absent"


def test_why_not_ends_when_it_is_asked_to(
    ran: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prepared, "asked_to_stop", lambda _self: True)
    stopped = command("why-not", "cli_flows:counts", "words[1]@0", *KAFKA, "--store", ran)
    assert (stopped.exit_code, stopped.stdout) == (3, "")
    assert "asked to stop before all records were read" in stopped.stderr


@pytest.mark.parametrize("record", ["words", "words[1]", "words[x]@1", "words[1]@-1", "[1]@1"])
def test_what_names_no_record_is_refused(ran: str, command: Command, record: str) -> None:
    shown = command("why-not", "cli_flows:counts", record, *KAFKA, "--store", ran)
    assert shown.exit_code == 2
    assert "Expected TOPIC[PARTITION]@OFFSET" in shown.stderr


def test_an_audit_finds_the_altered_key(ran: str, command: Command) -> None:
    sound = command("audit", "cli_flows:counts", *KAFKA, "--store", ran)
    assert sound.exit_code == 0, sound.stderr
    assert "3 of 3 states are what the records give" in sound.stdout
    alter(ran, b"bb", 7)
    altered = command("audit", "cli_flows:counts", *KAFKA, "--store", ran, "--json", "--rate", "100000")
    assert altered.exit_code == 1
    assert json.loads(altered.stdout)["different"] == ["bb"]


DIFFERENT = AuditedStage("per-word", 3, 1, different=(b"a",), first=("it differs",))
MISSING = AuditedStage("per-word", 3, 1, missing=(Missing("words", 0, 0, 2),))


@pytest.mark.parametrize(
    ("results", "status"),
    [([DIFFERENT, MISSING], 1), ([MISSING, DIFFERENT], 1), ([MISSING, MISSING], 3), ([DIFFERENT], 1)],
)
def test_a_difference_outranks_stages_that_cannot_be_compared(
    ran: str, command: Command, monkeypatch: pytest.MonkeyPatch, results: list[AuditedStage], status: int
) -> None:
    audits = iter(results)
    monkeypatch.setattr(explaining, "audited_stages", lambda *_: [None] * len(results))
    monkeypatch.setattr(explaining, "audit", lambda *_, **__: next(audits))
    assert command("audit", "cli_flows:counts", *KAFKA, "--store", ran).exit_code == status


@pytest.mark.parametrize("arguments", [("trace", "per-word", "a"), ("why-not", "words[0]@0"), ("audit",)])
def test_a_flow_that_never_ran_is_refused_by_each_command(
    flows: ModuleType, feed: Feed, command: Command, store: str, arguments: tuple[str, ...]
) -> None:
    assert flows.counts
    feed("a")
    name, *rest = arguments
    shown = command(name, "cli_flows:counts", *rest, *KAFKA, "--store", store)
    assert shown.exit_code == 2
    assert len(shown.stderr.strip().splitlines()) == 1
    assert "has not run" in shown.stderr or "never run" in shown.stderr


def test_a_filter_keeps_no_states_by_key(flows: ModuleType, command: Command, store: str) -> None:
    assert flows.counts
    shown = command("trace", "cli_flows:once", "once", "a", *KAFKA, "--store", store)
    assert shown.exit_code == 2
    assert "keeps no states by key" in shown.stderr


def test_a_trace_and_an_audit_after_an_export(ran: str, command: Command, feed: Feed, tmp_path: Path) -> None:
    file = tmp_path / "counted.jsonl.gz"
    exported = command("export", "cli_flows:counts", str(file), *KAFKA, "--store", ran)
    assert exported.exit_code == 0, exported.stderr
    feed("a", "bb")
    command("run", "cli_flows:counts", *RUN, "--store", ran)
    since = ("--since", str(file), *KAFKA, "--store", ran)
    shown = command("trace", "cli_flows:counts", "per-word", "a", *since)
    assert shown.exit_code == 0, shown.stderr
    assert (
        'trusted, not checked: the states of the export, of plan 1: [{"window": null, "state": 3}]'
        in shown.stdout
    )
    assert (
        "a: equal: the stored state is what 1 records give after plan 1, whose state is trusted, as of plan 2"
        in (shown.stdout)
    )
    audited = command("audit", "cli_flows:counts", *since)
    assert audited.exit_code == 0, audited.stderr
    assert "3 of 3 states are what the records give after plan 1, whose states are trusted, as of plan 2" in (
        audited.stdout
    )
    missing = command("trace", "cli_flows:counts", "per-word", "a", "--since", "12", *KAFKA, "--store", ran)
    assert missing.exit_code == 2
    assert "12: no such file. Expected one that `sqe-chain export` has written" in missing.stderr
