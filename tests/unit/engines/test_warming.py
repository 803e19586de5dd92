"""Goal: a warm-up changes nothing outside, and calls no function of the user. Method: ports that refuse to be written to."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.adapters import open_store
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.engines import warming
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.ports import Range, StateStore
from sqe_chain.testing.faults import FaultScript, PortCall
from sqe_chain.testing.faulty_ports import faulty_log, faulty_store


def refuse(*_: object) -> Any:
    raise AssertionError("no function of the user may be called")


def flow() -> Flow:
    found = Flow("sums", state_partitions=2)
    sums = (
        found.source("words", StringValue)
        .map(refuse)
        .aggregate("sum", key=refuse, state=Int64Value, fold=refuse)
    )
    sums.changes().to("totals", partitions=1)
    return found


def made_log() -> MemoryLog:
    log = MemoryLog(uuid4().hex)
    for topic in ("words", "totals"):
        log.create_topic(topic, 2)
    for number in range(3):
        log.append("words", 0, f"no envelope {number}".encode())
    return log


def test_a_warm_up_reads_and_writes_nothing() -> None:
    log, script, reads = made_log(), FaultScript(), list[Range]()

    def note(call: PortCall, _: object) -> None:
        if call.of == "broker" and call.name == "read" and call.args[0] not in reads:
            reads.append(call.args[0])

    script.watch = note
    store: StateStore = faulty_store(open_store(f"memory://{uuid4().hex}"), script)
    engine = InProcessEngine(flow().compile(), faulty_log(log, script), lambda _: store)
    engine.warm_up()
    assert script.calls > 0, "it connects"
    assert script.written == []
    assert log.records("totals") == []
    assert [(one.partition, one.start, one.stop) for one in reads if one.topic == "words"] == [
        (0, 2, 3),
        (1, 0, 0),
    ]
    engine.publish()
    assert engine.persist(0, "plan", {}) == 0
    assert (script.written, log.records("totals")) == ([], []), "nothing of it is kept for a batch"


def test_a_warm_up_of_what_is_not_there_fails_by_name() -> None:
    log = made_log()
    log.delete("totals")
    engine = InProcessEngine(flow().compile(), log, lambda _: open_store(f"memory://{uuid4().hex}"))
    with pytest.raises(ConfigurationError, match="totals"):
        engine.warm_up()


def test_a_read_that_never_ends_holds_up_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of its broker, a new consumer may get nothing, and no error either."""
    monkeypatch.setattr(warming, "_READS_WITHIN_S", 0.05)
    log, script, released = made_log(), FaultScript(), threading.Event()

    def hang(call: PortCall, _: object) -> None:
        if call.name == "read" and call.args[0].partition == 1 and call.args[0].topic == "words":
            released.wait(60)

    script.watch = hang
    engine = InProcessEngine(
        flow().compile(), faulty_log(log, script), lambda _: open_store(f"memory://{uuid4().hex}")
    )
    try:
        with pytest.raises(Unavailable, match=r"words\[1\]: nothing came within"):
            engine.warm_up()
    finally:
        released.set()
