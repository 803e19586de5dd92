"""Goal: commands do what their help promises, and every error is one line. Method: the command in this process, all in memory."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from pyarrow import parquet
from typer.testing import Result

from sqe_chain import wrap
from sqe_chain.adapters import open_store
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.cli import rebuild, run
from sqe_chain.envelope.message import read
from sqe_chain.errors import ChainError
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal

Command = Callable[..., Result]
Feed = Callable[..., None]

RUN = ("--kafka", "broker:9092", "--engine", "inprocess", "--once", "--log-json")


def stateful(store: str, *more: str) -> tuple[str, ...]:
    return ("run", "cli_flows:counts", *RUN, "--store", store, "--allow-weak-durability", *more)


def events(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stderr.splitlines()]


def names(result: Result) -> list[object]:
    return [line["event"] for line in events(result) if line["event"] != "notice"]


# --- run ------------------------------------------------------------------------------------------


def test_once_processes_what_is_there_and_ends(
    flows: ModuleType, feed: Feed, store: str, command: Command
) -> None:
    feed("one", "two", "two")
    result = command(*stateful(store))
    assert result.exit_code == 0, result.stderr
    assert names(result) == [
        "claimed",
        "recovered",
        "sealed",
        "published",
        "persisted",
        "committed",
        "stopped",
    ]
    home, _ = open_store(store).home("cli-counts")
    assert home is not None
    assert home.run_id == ""  # the claim was given back
    again = command(*stateful(store))
    assert names(again) == ["claimed", "recovered", "caught_up", "stopped"]


def test_close_windows_closes_what_is_open_and_nothing_the_next_time(
    flows: ModuleType, feed: Feed, store: str, command: Command
) -> None:
    feed("one", "two", "two")  # at 0, 1 and 2 ms; windows have 2 ms
    run = ("run", "cli_flows:windows", *RUN, "--store", store, "--allow-weak-durability")
    result = command(*run, "--close-windows")
    assert result.exit_code == 0, result.stderr
    (closed,) = [line for line in events(result) if line["event"] == "windows_closed"]
    assert (closed["outputs"], closed["event_ms"]) == (0, 2)
    lines = command("state", "cli_flows:windows", "per-window", "--store", store, "--json").stdout
    assert [json.loads(line)["final"] for line in lines.splitlines()] == [True, True, True]
    assert "windows_closed" not in names(command(*run, "--close-windows"))


@pytest.mark.parametrize(
    ("flow", "options", "text"),
    [("counts", RUN, "no stage of the flow has any"), ("windows", RUN[:4], r"Expected --once")],
)
def test_close_windows_needs_windows_and_once(
    flows: ModuleType,
    log: MemoryLog,
    store: str,
    command: Command,
    flow: str,
    options: Sequence[str],
    text: str,
) -> None:
    result = command("run", f"cli_flows:{flow}", *options, "--store", store, "--close-windows")
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())


def test_once_takes_as_many_batches_as_it_needs(
    flows: ModuleType, log: MemoryLog, feed: Feed, store: str, command: Command
) -> None:
    feed(*"abcdefgh")
    result = command(*stateful(store, "--max-records", "3"))
    lags = [line["lag"] for line in events(result) if line["event"] == "committed"]
    assert len(lags) > 2
    assert lags[-1] == 0
    assert len(log.records("totals")) == 8


def test_a_flow_without_stages_republishes_without_a_store(
    flows: ModuleType, log: MemoryLog, feed: Feed, command: Command
) -> None:
    feed("one", "two")
    result = command("run", "cli_flows:copies", *RUN)
    assert result.exit_code == 0, result.stderr
    chains = [read(message.value()).chain for message in log.records("copies")]
    assert [len(chain) for chain in chains] == [1, 1]
    assert names(result) == ["recovered", "published", "committed", "stopped"]


def test_missing_topics_are_named_or_created(
    flows: ModuleType, log: MemoryLog, store: str, command: Command
) -> None:
    for topic in ("words", "totals"):
        log.delete(topic)
    refused = command(*stateful(store))
    assert refused.exit_code == 2
    assert "input topic 'words', output topic 'totals' not found" in str(events(refused)[-1]["text"])
    without_input = command(*stateful(store, "--create-topics", "0"))
    assert without_input.exit_code == 2
    assert "'words'" in str(events(without_input)[-1]["text"])
    assert "'totals'" not in str(events(without_input)[-1]["text"])
    assert command(*stateful(store, "--create-topics", "3")).exit_code == 0
    found = log.describe(["words", "totals"])
    assert {name: info.partitions for name, info in found.items()} == {"words": 3, "totals": 1}


def test_sigterm_finishes_cleanly(
    flows: ModuleType, log: MemoryLog, feed: Feed, store: str, command: Command
) -> None:
    feed("one")
    arguments = [text for text in stateful(store, "--interval", "1h") if text != "--once"]
    home = open_store(store)

    def end_it() -> None:
        assert wait_until(lambda: log.committed("cli-counts", [("words", 0)]) != {}, 30)
        assert wait_until(lambda: home.home("cli-counts")[0] is not None, 30)
        os.kill(os.getpid(), signal.SIGTERM)

    ender = threading.Thread(target=end_it)
    ender.start()
    result = command(*arguments)
    ender.join()
    assert result.exit_code == 0, result.stderr
    assert events(result)[-1]["reason"] == "SIGTERM"
    standing, _ = home.home("cli-counts")
    assert standing is not None
    assert standing.run_id == ""


def test_a_newer_run_ends_this_one_with_its_own_status(
    flows: ModuleType, log: MemoryLog, store: str, command: Command
) -> None:
    arguments = [text for text in stateful(store, "--interval", "1h") if text != "--once"]
    home = open_store(store)

    def take_over() -> None:
        def caught_up() -> bool:
            standing, beats = home.home("cli-counts")
            return standing is not None and bool(standing.run_id) and beats > 0

        assert wait_until(caught_up, 30)
        from dataclasses import replace  # noqa: PLC0415

        standing, _ = home.home("cli-counts")
        assert standing is not None
        home.set_home("cli-counts", standing, replace(standing, epoch=standing.epoch + 1, run_id="newer"))

    other = threading.Thread(target=take_over)
    other.start()
    result = command(*arguments)
    other.join()
    assert result.exit_code == 4
    assert events(result)[-1]["error"] == "Superseded"


def test_once_waits_for_a_broker_for_a_limited_time(
    flows: ModuleType, log: MemoryLog, store: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqe_chain.runtime.connecting.ONCE_PATIENCE_MS", 200)
    log.set_down(down=True)
    result = command(*stateful(store))
    assert result.exit_code == 5
    assert "waiting" in names(result)
    assert events(result)[-1]["error"] == "Unavailable"


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("cli_flows:nothing",), "has no 'nothing'"),
        (("no_such_module:flow",), "no module 'no_such_module'"),
        (("cli_flows:counts", "--interval", "soon"), "is no duration"),
        (("cli_flows:counts",), "Expected a store"),
        (("cli_flows:counts", "--store", "mongodb://a"), "no store is known for mongodb"),
        (("cli_flows:counts", "--store", "memory://weak"), "may lose acknowledged writes"),
        (("cli_flows:counts", "--store", "memory://a", "--engine", "spark"), "which each worker"),
        (("cli_flows:counts", "--store", "memory://a", "--spark-conf", "x"), "Expected NAME=VALUE"),
    ],
)
def test_an_error_is_one_line_and_no_traceback(
    flows: ModuleType, log: MemoryLog, command: Command, arguments: tuple[str, ...], text: str
) -> None:
    result = command("run", "--kafka", "broker:9092", "--engine", "inprocess", "--once", *arguments)
    assert result.exit_code in {2, 3}
    assert text in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr + result.stdout


def test_a_traceback_is_shown_when_asked_for(flows: ModuleType, log: MemoryLog, command: Command) -> None:
    arguments = ("run", "cli_flows:nothing", "--kafka", "broker:9092")
    assert "Traceback" in command(*arguments, "--traceback").stderr
    assert "Traceback" in str(events(command(*arguments, "--traceback", "--log-json"))[-1]["traceback"])


def test_the_traceback_of_a_task_is_shown_when_asked_for(
    flows: ModuleType, log: MemoryLog, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ChainError("a task failed: 7\nTraceback (most recent call last):\n  File ...")

    monkeypatch.setattr("sqe_chain.cli.run.load_flow", fails)
    arguments = ("run", "cli_flows:copies", "--kafka", "broker:9092")
    assert command(*arguments).stderr == "error: a task failed: 7 (ChainError)\n"
    assert "File ..." in command(*arguments, "--traceback").stderr


def test_a_kafka_configuration_that_is_half_written(
    flows: ModuleType, tmp_path: Path, command: Command
) -> None:
    config = tmp_path / "kafka.properties"
    config.write_text("sasl.username=alice\nsasl.pass", encoding="utf-8")
    result = command(
        "run", "cli_flows:copies", "--kafka", "broker:9092", "--kafka-config", str(config), "--once"
    )
    assert result.exit_code == 2
    assert "line 2" in result.stderr


def test_options_come_from_the_environment_too(
    flows: ModuleType, log: MemoryLog, store: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("KAFKA", "broker:9092"),
        ("STORE", store),
        ("ENGINE", "inprocess"),
        ("LOG_JSON", "1"),
        ("ALLOW_WEAK_DURABILITY", "true"),
    ):
        monkeypatch.setenv(f"SQE_CHAIN_{name}", value)
    result = command("run", "cli_flows:counts", "--once")
    assert result.exit_code == 0, result.stderr
    assert names(result)[0] == "claimed"


def test_without_its_packages_the_command_names_the_extra_that_has_them() -> None:
    program = "import sys; sys.modules['typer'] = None; from sqe_chain.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "pip install 'sqe-chain[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_and_help(command: Command) -> None:
    assert command("--version").stdout.startswith("sqe-chain 0.")
    for arguments in (("--help",), ("run", "--help"), ("state", "-h"), ("peek", "-h"), ("dev", "up", "-h")):
        result = command(*arguments)
        assert result.exit_code == 0
        assert "Usage" in result.stdout


# --- state ----------------------------------------------------------------------------------------


def test_states_are_shown_by_key_as_table_and_as_json(
    flows: ModuleType, feed: Feed, store: str, command: Command
) -> None:
    feed("one", "three", "three")
    command(*stateful(store))
    table = command("state", "cli_flows:counts", "per-word", "--store", store)
    assert table.exit_code == 0, table.stderr
    assert re.search(r"one .* 3 ", table.stdout)
    assert re.search(r"three .* 10 ", table.stdout)
    lines = command("state", "cli_flows:counts", "per-word", "three", "four", "--store", store, "--json")
    assert [json.loads(line) for line in lines.stdout.splitlines()] == [
        {"key": "three", "state": 10},
        {"key": "four", "state": None},
    ]
    limited = command("state", "cli_flows:counts", "per-word", "--store", store, "--limit", "1")
    assert "showing the first 1" in limited.stderr


def test_states_are_chosen_by_key_and_by_their_fields(
    flows: ModuleType, feed: Feed, store: str, command: Command
) -> None:
    feed("one", "three", "three", "two")
    command(*stateful(store))

    def keys(*choice: str) -> list[str]:
        found = command("state", "cli_flows:counts", "per-word", "--store", store, "--json", *choice)
        assert found.exit_code == 0, found.stderr
        return sorted(json.loads(line)["key"] for line in found.stdout.splitlines())

    assert keys("--match", "t*") == ["three", "two"]
    assert keys("--match", "[ot]*") == []
    assert keys("--where", "value>3") == ["three"]
    assert keys("--where", "value <= 3", "--match", "*e") == ["one"]
    assert keys("one", "three", "none", "--where", "value=10") == ["three"]
    assert keys("--where", "value!=3") == ["three"]
    troubles = {"size>3": "Expected one of: value", "value>x": "value 'x'. Expected", ">": "FIELD="}
    for condition, trouble in troubles.items():
        refused = command("state", "cli_flows:counts", "per-word", "--store", store, "--where", condition)
        assert refused.exit_code == 2
        assert trouble in refused.stderr


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet"])
def test_states_are_written_to_a_file_that_appears_when_it_is_whole(
    flows: ModuleType, feed: Feed, store: str, command: Command, tmp_path: Path, ending: str
) -> None:
    feed("one", "three", "three")
    command(*stateful(store))
    file = tmp_path / f"states{ending}"
    written = command("state", "cli_flows:counts", "per-word", "--store", store, "--output", str(file))
    assert written.exit_code == 0, written.stderr
    assert "2 states written" in written.stderr
    if ending == ".parquet":
        rows = parquet.read_table(file).to_pylist()
        assert sorted((row["key"], row["value"]) for row in rows) == [("one", 3), ("three", 10)]
    else:
        text = gzip.decompress(file.read_bytes()) if ending.endswith("gz") else file.read_bytes()
        found = [json.loads(line) for line in text.splitlines()]
        assert {row["key"]: row["state"] for row in found} == {"one": 3, "three": 10}
    again = command("state", "cli_flows:counts", "per-word", "--store", store, "--output", str(file))
    assert (again.exit_code, "already exists" in again.stderr) == (2, True)
    other = command("state", "cli_flows:counts", "per-word", "--store", store, "--output", f"{file}.csv")
    assert (other.exit_code, "unknown ending" in other.stderr) == (2, True)
    assert [path.name for path in tmp_path.glob("states*")] == [file.name]


@pytest.mark.parametrize("what", ["states", "export", "picture"])
@pytest.mark.parametrize("place", ["missing/file.jsonl", "file/below.jsonl", "directory", "refused.jsonl"])
def test_a_file_that_cannot_be_written_is_named_before_anything_is_done(
    flows: ModuleType,
    feed: Feed,
    store: str,
    command: Command,
    tmp_path: Path,
    what: str,
    place: str,
) -> None:
    feed("one")
    command(*stateful(store))
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    (tmp_path / "refused.jsonl.partial").mkdir()
    before = sorted(tmp_path.rglob("*"))
    at = tmp_path / place
    asked = {
        "states": ("state", "cli_flows:counts", "per-word", "--store", store, "--output", str(at)),
        "export": ("export", "cli_flows:counts", str(at), "--kafka", "broker:9092", "--store", store),
        "picture": ("show", "cli_flows:counts", "--svg", str(at)),
    }
    found = command(*asked[what])
    assert found.exit_code == 2, found.stderr
    assert str(at) in found.stderr.replace("\n", "")
    assert "unexpected" not in found.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_the_rows_of_a_filter_are_listed(flows: ModuleType, feed: Feed, store: str, command: Command) -> None:
    feed("one", "two", "one")
    found = command("run", "cli_flows:once", *RUN, "--store", store, "--allow-weak-durability")
    assert found.exit_code == 0, found.stderr
    lines = command("state", "cli_flows:once", "once", "--store", store, "--json")
    rows = [json.loads(line)["row"] for line in lines.stdout.splitlines()]
    assert {"eone", "etwo"} <= {row for row in rows if isinstance(row, str)}
    assert "eone: " in command("state", "cli_flows:once", "once", "--store", store).stdout
    for choice in ("--match", "--from", "--to"):
        refused = command("state", "cli_flows:once", "once", "--store", store, choice, "7")
        assert (refused.exit_code, "is a filter" in refused.stderr) == (2, True)
    command(*stateful(store))
    refused = command("state", "cli_flows:counts", "per-word", "--store", store, "--from", "7")
    assert (refused.exit_code, "has no windows" in refused.stderr) == (2, True)


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_windows_are_shown_chosen_and_written_with_their_places(
    flows: ModuleType, feed: Feed, store: str, command: Command, tmp_path: Path, ending: str
) -> None:
    feed("one", "one", "one", "three")  # at 0, 1, 2 and 3 ms: the first window is final and retained
    found = command("run", "cli_flows:windows", *RUN, "--store", store, "--allow-weak-durability")
    assert found.exit_code == 0, found.stderr
    asked = ("state", "cli_flows:windows", "per-window", "--store", store)

    def lines(*choice: str) -> list[tuple[object, ...]]:
        shown = command(*asked, "--json", *choice)
        assert shown.exit_code == 0, shown.stderr
        return sorted(tuple(json.loads(line).values()) for line in shown.stdout.splitlines())

    everything: list[tuple[object, ...]] = [
        ("one", 0, 2, True, 6),
        ("one", 2, 4, False, 3),
        ("three", 2, 4, False, 5),
    ]
    assert lines() == everything
    assert lines("--where", "value>3") == [everything[0], everything[2]]
    assert lines("one", "four") == everything[:2]
    assert lines("--from", "2") == everything[1:]
    assert lines("--to", "2") == everything[:1]
    assert (
        lines("--from", "1970-01-01T00:00:00.001Z", "--to", "1970-01-01T01:00:00.003+01:00") == everything[1:]
    )
    assert lines("--from", "3") == []
    assert re.search(r"one .*1970-01-01 00:00:00.002 .*00.004 .* open .* 3 ", command(*asked).stdout)
    assert re.search(r"one .*00.002 .* final .* 6 ", command(*asked).stdout)
    for choice in ("yesterday", "2026-11-20T10:00:00"):
        assert command(*asked, "--from", choice).exit_code == 2
    file = tmp_path / f"windows{ending}"
    assert command(*asked, "--output", str(file)).exit_code == 0
    if ending == ".parquet":
        rows = parquet.read_table(file).to_pylist()
        assert sorted(
            (row["key"], row["start_ms"], row["end_ms"], row["final"], row["value"]) for row in rows
        ) == sorted(everything)
    else:
        assert (
            sorted(tuple(json.loads(line).values()) for line in file.read_text().splitlines()) == everything
        )


def test_what_waits_for_event_time_is_shown_with_who_holds_it_back(
    flows: ModuleType, store: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = Rehearsal(flows.copies, partitions={"words": 2})
    for partition in (0, 1):
        word = f"p{partition}"
        upstream.feed("words", StringValue(value=word), partition=partition, timestamp_ms=7 * partition + 5)
    upstream.run_until_caught_up()
    flow = Flow("cli-waiting", state_partitions=1)
    flow.source("copies", StringValue).windowed(
        "per-window", Tumbling(2), key=flows.word_of, state=Int64Value, fold=flows.add, retention_ms=1_000
    )
    monkeypatch.setattr(flows, "waiting", flow, raising=False)
    service = Rehearsal(flow, partitions={"copies": 2}, store=open_store(store), log=upstream.log)
    service.batch()
    asked = ("state", "cli_flows:waiting", "per-window", "--store", store, "--waiting")
    lines = [json.loads(line) for line in command(*asked, "--json").stdout.splitlines()]
    found = service.waiting("per-window")
    assert [(one["topic"], one["partition"], one["waiting"]) for one in lines] == [
        ("copies", one.partition, one.units) for one in found
    ]
    one = next(one for one in found if one.holder is not None)
    assert one.holder is not None
    line = next(line for line in lines if line["partition"] == one.partition)
    assert line == {
        "topic": "copies",
        "partition": one.partition,
        "waiting": one.units,
        "taken_to_ms": one.taken_to_ms,
        "holder_topic": "copies",
        "holder_partition": one.holder.partition,
        "writer": "cli-copies/copies",
        "watermark_ms": one.holder.watermark_ms,
    }
    assert sum(one.units for one in found) == 2
    table = command(*asked)
    assert all(f"copies[{partition}]" in table.stdout for partition in (0, 1))
    assert f"copies[{one.holder.partition}] (written by cli-copies/copies)" in table.stdout
    assert "2 records wait" in table.stderr
    for refused in (("one",), ("--limit", "1"), ("--match", "*"), ("--from", "1")):
        refusal = command(*asked, *refused)
        assert (refusal.exit_code, "Expected it alone" in refusal.stderr) == (2, True)


def test_state_reports_what_it_does_not_know(
    flows: ModuleType, log: MemoryLog, store: str, command: Command
) -> None:
    unknown = command("state", "cli_flows:counts", "per-line", "--store", store)
    assert unknown.exit_code == 2
    assert "no stage 'per-line'. Expected one of: per-word" in unknown.stderr
    never_run = command("state", "cli_flows:counts", "per-word", "--store", store)
    assert never_run.exit_code == 2
    assert "has not run" in never_run.stderr
    command(*stateful(store))
    assert "has no such states" in command("state", "cli_flows:counts", "per-word", "--store", store).stderr
    half = command("state", "cli_flows:counts", "per-word", "0x123", "--store", store)
    assert "hexadecimal" in half.stderr


# --- peek -----------------------------------------------------------------------------------------


def test_peek_shows_chain_and_payload(flows: ModuleType, feed: Feed, command: Command) -> None:
    feed("one")
    command("run", "cli_flows:copies", *RUN)
    text = command("peek", "copies", "--kafka", "b:1").stdout
    assert "words[0]@0 > cli-copies/copies 1/1" in text
    assert '"one"' in text
    found = json.loads(command("peek", "copies", "--kafka", "b:1", "--json").stdout)
    assert found["key"] == "one"
    assert found["envelope"]["payloads"] == ["one"]
    assert found["envelope"]["chain"][0]["topic"] == "words"
    assert found["envelope"]["chain"][0]["offset"] == 0


def test_peek_shows_anything_else_as_it_is_with_the_reason(log: MemoryLog, command: Command) -> None:
    log.append("words", 0, b"plain text", key=None)
    log.append("words", 0, bytes([0, 255]), key=bytes([1, 2]))
    log.append("words", 0, None, key=b"gone")
    found = [
        json.loads(line) for line in command("peek", "words", "--kafka", "b:1", "--json").stdout.splitlines()
    ]
    assert [one["raw"] for one in found] == ["plain text", {"hex": "00ff"}, None]
    assert [one["key"] for one in found] == [None, {"hex": "0102"}, "gone"]
    assert [one["reason"].partition(":")[0] for one in found] == [
        "NotAnEnvelope",
        "NotAnEnvelope",
        "EmptyValue",
    ]
    text = command("peek", "words", "--kafka", "b:1").stdout
    assert "plain text" in text
    assert "0x00ff" in text


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        ((), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]),
        (("--limit", "1"), [(0, 0), (1, 0)]),
        (("--limit", "2", "--from", "latest"), [(0, 1), (0, 2), (1, 1), (1, 2)]),
        (("--partition", "1", "--from", "2"), [(1, 2)]),
        (("--from", "99"), []),
    ],
)
def test_peek_begins_at_the_given_place(
    feed: Feed, command: Command, arguments: tuple[str, ...], offsets: list[tuple[int, int]]
) -> None:
    feed(*"abcdef")
    result = command("peek", "words", "--kafka", "b:1", "--json", *arguments)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(one["partition"], one["offset"]) for one in found] == offsets


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nowhere",), "no topic 'nowhere'"),
        (("words", "--partition", "2"), "Expected 0 to 1"),
        (("words", "--from", "yesterday"), "Expected earliest, latest or an offset"),
        (("words", "--types", "no_such_types"), "no module 'no_such_types'"),
    ],
)
def test_peek_names_the_wrong_argument(
    log: MemoryLog, command: Command, arguments: tuple[str, ...], text: str
) -> None:
    result = command("peek", *arguments, "--kafka", "b:1")
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.parametrize(
    ("arguments", "module", "reached"),
    [
        (["run", "cli_flows:counts"], run, "launch"),
        (["rebuild", "cli_flows:counts"], rebuild, "prepare_command"),
        (["rewind", "cli_flows:counts", "--to", "words[0]=0"], rebuild, "prepare_command"),
    ],
)
@pytest.mark.parametrize("from_environment", [False, True])
def test_the_limit_on_skipped_records_reaches_the_service(
    flows: ModuleType,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    module: ModuleType,
    reached: str,
    from_environment: bool,
) -> None:
    given: list[Settings] = []

    def take(_flow: object, settings: Settings, *_: object, **__: object) -> nullcontext[None]:
        given.append(settings)
        return nullcontext()

    monkeypatch.setattr(module, reached, take)
    monkeypatch.setattr(rebuild, "_fold_again", lambda *_, **__: "")
    common = [*arguments, "--kafka", "b:1", "--store", "memory://", "--engine", "inprocess"]
    assert command(*common).exit_code == 0
    if from_environment:
        monkeypatch.setenv("SQE_CHAIN_MAX_EXCLUDED", "7")
        assert command(*common).exit_code == 0
    else:
        assert command(*common, "--max-excluded", "7").exit_code == 0
    assert [one.max_excluded for one in given] == [100, 7]
    assert command(*common, "--max-excluded", "-1").exit_code == 2


def test_keys_that_are_no_text_are_written_as_hexadecimal(
    flows: ModuleType, log: MemoryLog, store: str, command: Command, tmp_path: Path
) -> None:
    """The same rule as in JSON, where such a key is ``{"hex": ...}``: text, where all of it can be printed."""
    for key in (b"one", bytes([0, 255]), b"a\nb"):
        log.append("words", 0, wrap(StringValue(value="w"), key=key, timestamp_ms=0), key=key)
    command("run", "cli_flows:by_key", *RUN, "--store", store, "--allow-weak-durability")
    file = tmp_path / "keys.parquet"
    asked = ("state", "cli_flows:by_key", "per-key", "--store", store)
    assert command(*asked, "--output", str(file)).exit_code == 0
    rows = sorted((row["key"] or "", row["key_hex"]) for row in parquet.read_table(file).to_pylist())
    assert rows == [("", "00ff"), ("", "610a62"), ("one", None)]
    lines = [json.loads(line)["key"] for line in command(*asked, "--json").stdout.splitlines()]
    assert all(key in lines for key in ("one", {"hex": "00ff"}, {"hex": "610a62"}))


def test_a_flow_is_shown_and_written_as_a_picture(
    flows: ModuleType, command: Command, tmp_path: Path
) -> None:
    shown = command("show", "cli_flows:counts")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[:2] == [
        "flow cli-counts",
        "└─ source words: google.protobuf.StringValue",
    ]
    assert command("show", "cli_flows:counts", "--svg", "flow.svg").exit_code == 0
    assert (tmp_path / "flow.svg").read_text(encoding="utf-8").startswith("<svg")
    again = command("show", "cli_flows:counts", "--svg", "flow.svg")
    assert (again.exit_code, "flow.svg" in again.stderr) == (2, True)
