"""Goal: a flow runs from Python, and what it has stored can be read. Method: broker and stores in memory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

import sqe_chain
from sqe_chain import Flow, run, running, states, wrap
from sqe_chain.adapters import open_store
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ConfigurationError, PoisonError
from sqe_chain.ext.tables import open_table
from sqe_chain.runtime import connecting
from sqe_chain.stages import Tumbling

WHERE = {"kafka": "b:1", "engine": "inprocess", "allow_weak_durability": True}
STORE = "memory://running"


def add(total: Int64Value, word: StringValue) -> None:
    total.value += len(word.value)


def checked(word: StringValue) -> StringValue:
    if word.value == "poison":
        raise ValueError(word.value)
    return word


def counts() -> Flow:
    flow = Flow("counts", state_partitions=2)
    words = flow.source("words", StringValue).map(checked)
    words.aggregate("per-word", key=lambda word: word.value, state=Int64Value, fold=add).changes().to(
        "totals", partitions=1
    )
    return flow


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryLog]:
    found = MemoryLog("running")
    found.create_topic("words", 2)
    found.create_topic("totals", 1)
    monkeypatch.setattr(connecting, "open_log", lambda *_: found)
    yield found
    found.clear()
    store = open_store(STORE)
    assert isinstance(store, MemoryStore)
    store.restore_all()


def feed(log: MemoryLog, *words: str) -> None:
    for word in words:
        log.append("words", 0, wrap(StringValue(value=word), key=word, timestamp_ms=1_700_000_000_000))


def test_once_processes_what_is_there(log: MemoryLog, capsys: pytest.CaptureFixture[str]) -> None:
    feed(log, "a", "bb", "a")
    run(counts(), store=STORE, once=True, **WHERE)  # type: ignore[arg-type]
    assert "committed" in capsys.readouterr().err
    with states(counts(), "per-word", STORE) as found:
        assert {key: state.value for key, state in found.to_dict().items()} == {"a": 2, "bb": 2}


def test_in_the_background_states_are_a_mapping(log: MemoryLog) -> None:
    feed(log, "a")
    with running(counts(), store=STORE, interval="10ms", **WHERE) as service:  # type: ignore[arg-type]
        service.wait_until_caught_up()
        found = service.state("per-word")
        assert found["a"].value == 1
        feed(log, "bb", "bb")
        service.wait_until_caught_up()
        assert found[b"bb"].value == 4
        assert (sorted(found), len(found)) == (["a", "bb"], 2)
        assert "cc" not in found
        for wrong in ("cc", 5, None, 1.5, ("a",)):
            assert wrong not in found
            assert found.get(wrong) is None  # type: ignore[arg-type]
            with pytest.raises(KeyError):
                found[wrong]  # type: ignore[index]
        with pytest.raises(ConfigurationError, match="a key must be bytes or str, got int"):
            list(found.rows([5]))  # type: ignore[list-item]
        frame = found.to_pandas().sort_values("key")
        assert frame[["key", "value"]].values.tolist() == [["a", 1], ["bb", 4]]
        before = service.alive
        assert before
    assert not service.alive
    assert not [thread for thread in threading.enumerate() if thread.name == "sqe-chain counts"]


def test_who_waits_before_there_is_anything_waits_until_the_service_has_started(log: MemoryLog) -> None:
    with running(counts(), store=STORE, **WHERE) as service:  # type: ignore[arg-type]
        service.wait_until_caught_up()
        assert dict(service.state("per-word")) == {}


def test_who_waits_before_there_are_topics_waits_until_the_service_has_created_them(log: MemoryLog) -> None:
    for topic in ("words", "totals"):
        log.delete(topic)
    with running(counts(), store=STORE, create_topics=2, **WHERE) as service:  # type: ignore[arg-type]
        service.wait_until_caught_up()
        assert log.describe(["words"])["words"].partitions == 2
    log.delete("words")
    with (
        pytest.raises(ConfigurationError, match="input topic 'words' not found"),
        running(counts(), store=STORE, **WHERE) as service,  # type: ignore[arg-type]
    ):
        service.wait_until_caught_up()


def test_a_missing_engine_is_named_before_any_topic_is_created(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("words", "totals"):
        log.delete(topic)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for module in [name for name in sys.modules if name.startswith("sqe_chain.engines.spark")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(
        ConfigurationError, match=r"'pyspark': pip install .*, or run with --engine inprocess$"
    ):
        run(counts(), store=STORE, create_topics=2, **{**WHERE, "engine": "spark"})  # type: ignore[arg-type]
    assert not log.describe(["words", "totals"])


def test_a_key_that_is_no_text_is_bytes(log: MemoryLog) -> None:
    flow = Flow("by-key", state_partitions=1)
    flow.source("words", StringValue).aggregate("per-key", key=lambda _: b"\xff", state=Int64Value, fold=add)
    feed(log, "a")
    run(flow, store=STORE, once=True, log=None, **WHERE)  # type: ignore[arg-type]
    with states(flow, "per-key", STORE) as found:
        assert list(found) == [b"\xff"]


def test_a_service_that_stops_gives_the_reason_to_waiting_callers_and_at_the_end(log: MemoryLog) -> None:
    feed(log, "poison")
    with (
        pytest.raises(PoisonError, match="poison"),
        running(counts(), store=STORE, **WHERE) as service,  # type: ignore[arg-type]
        pytest.raises(PoisonError),
    ):
        service.wait_until_caught_up()
    with (
        pytest.raises(ZeroDivisionError),
        running(counts(), store=STORE, **WHERE),  # type: ignore[arg-type]
    ):
        raise ZeroDivisionError


def test_a_wait_that_times_out_names_the_offsets_reached(log: MemoryLog) -> None:
    feed(log, "a")  # before the first batch: after it the service waits for an hour
    with running(counts(), store=STORE, interval="1h", **WHERE) as service:  # type: ignore[arg-type]
        service.wait_until_caught_up()
        feed(log, "a", "b")
        with pytest.raises(TimeoutError, match=r"words\[0\]': \(1, 3\)"):
            service.wait_until_caught_up(timeout_s=0.1)
        service.stop()
        with pytest.raises(ConfigurationError, match="has stopped"):
            service.wait_until_caught_up()


def test_states_of_windows_are_rows(log: MemoryLog) -> None:
    flow = Flow("windows", state_partitions=1)
    flow.source("words", StringValue).windowed(
        "per-window",
        Tumbling(1_000),
        key=lambda word: word.value,
        state=Int64Value,
        fold=add,
        retention_ms=1_000,
    )
    feed(log, "a", "a")
    run(flow, store=STORE, once=True, log=None, **WHERE)  # type: ignore[arg-type]
    with states(flow, "per-window", STORE) as found:
        (row,) = found.rows(["a"])
        assert row.span is not None
        assert (row.state.value, row.span.end_ms - row.span.start_ms) == (2, 1_000)  # type: ignore[union-attr]
        assert found.to_arrow().column_names == ["key", "key_hex", "start_ms", "end_ms", "final", "value"]
        with pytest.raises(ConfigurationError, match=r"Use rows\(\)"):
            found["a"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"engine": "flink"}, "engine='flink'"),
        ({"interval": "soon"}, "is no duration"),
        ({"max_recrods": 1}, "max_recrods"),
        ({"store": None}, "Expected a store"),
        ({"close_windows": True}, "no stage of the flow has any"),
        ({"close_windows": True, "once": False}, r"Expected --once \(once=True\)"),
    ],
)
def test_arguments_that_cannot_work_are_refused(
    log: MemoryLog, arguments: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        run(counts(), **{"store": STORE, "once": True, **WHERE, **arguments})  # type: ignore[arg-type]


class Reading(msgspec.Struct):
    robot: str
    at_ms: int


@pytest.mark.parametrize("mode", ["table", "partitions"])
def test_an_overwrite_without_an_end_is_refused_and_changes_nothing(tmp_path: Path, mode: str) -> None:
    """A service takes files as they come, so no row is ever the last one."""
    place = f"memory://{tmp_path.name}-{mode}"
    flow = Flow("replacing", state_partitions=1)
    files = flow.files("readings", Reading, tmp_path / "*.csv")
    files.ingest("readings", partition_key="robot", row_key="at_ms", at=place)
    where: dict[str, Any] = {
        "store": f"sqlite://{tmp_path}/states.db",
        "engine": "inprocess",
        "log": None,
        "allow_weak_durability": True,
    }
    (tmp_path / "a.csv").write_text("robot,at_ms\nr1,1\n")
    run(flow, once=True, **where)
    old = [{"robot": "r1", "at_ms": 1}]
    (tmp_path / "a.csv").write_text("robot,at_ms\nr1,2\n")
    text = r"Expected sqe-chain load \(from Python once=True\)"
    with (
        pytest.raises(ConfigurationError, match=text),
        running(flow, overwrite=mode, **where) as service,
    ):
        service.wait_until_caught_up()
    with pytest.raises(ConfigurationError, match=text):
        run(flow, overwrite=mode, **where)
    table = open_table(f"{place}/readings")
    assert table.read().to_pylist() == old
    run(flow, once=True, overwrite=mode, **where)
    assert table.read().to_pylist() == [{"robot": "r1", "at_ms": 2}]


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sqe_chain.nothing  # noqa: B018
