"""Goal: a writer keeps what it states: nothing that it writes later is earlier than the watermark of an earlier message."""

from __future__ import annotations

from typing import Any

from sqe_chain.flow import Flow
from sqe_chain.logs.memory import MemoryLog
from sqe_chain.partitioner import Partitioner
from sqe_chain.protocol.settings import Settings
from sqe_chain.testing.rehearsal import Rehearsal

Event = dict[str, Any]


def key_of(event: Event) -> str:
    return str(event["key"])


def test_what_is_read_now_is_earlier_than_what_was_stated_beside_it_meanwhile() -> None:
    """Method: of two partitions one is behind; the other one has brought later statements when it is read to its end."""
    log, part_of = MemoryLog("watermarks-kept"), Partitioner(2)
    first, second = Flow("first"), Flow("second")
    first.source("in", dict, raw=True).to("between", key=key_of, partitions=2)
    second.source("between", dict).to("out", key=key_of, partitions=1)
    writer = Rehearsal(first, partitions={"in": 1}, log=log)
    reader = Rehearsal(second, log=log, settings=Settings(max_records=2))
    behind, ahead = "a", next(key for key in "bcdefgh" if part_of(key.encode()) != part_of(b"a"))
    for at_ms in (10, 11, 12, 13, 14):
        writer.feed("in", {"key": behind}, timestamp_ms=at_ms)
    writer.batch()
    for at_ms in (100, 200, 300):  # each batch states what came before it
        writer.feed("in", {"key": ahead}, timestamp_ms=at_ms)
        writer.batch()
    reader.run_until_caught_up()
    for key, at_ms in ((ahead, 400), (behind, 500)):
        writer.feed("in", {"key": key}, timestamp_ms=at_ms)
        writer.batch()
        reader.run_until_caught_up()
    stated = 0
    for envelope in reader.published("out"):
        assert envelope.timestamp_ms >= stated
        stated = max(stated, envelope.watermark_ms)
    assert len(reader.published("out")) == 10
    assert stated > 14, "it does state something"
