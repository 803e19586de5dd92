"""Goal: threads and coroutines append side by side, in order and exactly. Method: in one process, on a broker in memory."""

from __future__ import annotations

import array
import asyncio
import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import (
    ConfigurationError,
    LogClosed,
    LogFull,
    LogLocked,
    LogUnwritable,
    OutputTooLarge,
    PartitionsMismatch,
    RecordTooLarge,
    Unavailable,
)
from sqe_chain.ext.wal import DurableProducer, Limits, LocalFiles, MemoryFiles, Pending, Record, WriteAheadLog
from sqe_chain.ext.wal.publisher import Publisher
from sqe_chain.testing.faulty_ports import faulty_log
from tests.support.waiting import PATIENCE_S, eventually
from tests.support.wal_faults import SMALL, TOPIC, Faults, counted, key_of, new_broker

SMALL_LOG = Limits(8_192, 1_024, 1_024, 10, 1_024)


def producer(
    where: Any, broker: Any, *, limits: Limits = SMALL, timeout_s: float = PATIENCE_S, partitions: int = 2
) -> DurableProducer:
    return DurableProducer(
        where, TOPIC, partitions=partitions, kafka=broker, limits=limits, timeout_s=timeout_s
    )


def test_threads_append_side_by_side(tmp_path: Path) -> None:
    broker = new_broker("wal-threads")

    def send(first: int) -> list[int]:
        return [
            one.append(b"%d" % number, key=b"thread %d" % first).offset for number in range(first, 400, 8)
        ]

    with producer(tmp_path, broker) as one:
        with ThreadPoolExecutor(8) as pool:
            offsets = list(pool.map(send, range(8)))
        one.flush(timeout_s=PATIENCE_S)
        assert one.status.waiting == 0
    assert sorted(chain.from_iterable(offsets)) == list(range(400))
    assert all(numbers == sorted(numbers) for numbers in offsets)
    found = counted(broker)
    assert sorted(found) == list(range(400))
    for first in range(8):
        assert [number for number in found if number % 8 == first] == list(range(first, 400, 8))


def test_coroutines_append_side_by_side(tmp_path: Path) -> None:
    broker = new_broker("wal-coroutines")

    async def send() -> list[int]:
        with producer(tmp_path, broker) as one:
            receipts = await asyncio.gather(
                *(one.append_async(b"%d" % number, key=key_of(number)) for number in range(500))
            )
            one.flush(timeout_s=PATIENCE_S)
        return [receipt.offset for receipt in receipts]

    assert sorted(asyncio.run(send())) == list(range(500))
    assert sorted(counted(broker)) == list(range(500))


def test_records_are_handed_over_without_waiting() -> None:
    broker = new_broker("wal-submit")
    with producer(MemoryFiles(), broker) as one:
        pending = [one.submit(b"%d" % number) for number in range(50)]
        receipts = [each.result() for each in pending]
        assert all(each.done for each in pending)
        one.flush(timeout_s=PATIENCE_S)
    assert [receipt.offset for receipt in receipts] == list(range(50))
    assert {receipt.partition for receipt in receipts} == {0, 1}, "records without a key are spread"
    by_partition = {p: [r.sequence for r in receipts if r.partition == p] for p in (0, 1)}
    assert by_partition == {0: list(range(25)), 1: list(range(25))}


def test_several_records_are_written_together_or_not_at_all() -> None:
    with producer(MemoryFiles(), new_broker("wal-many")) as one:
        receipts = one.append_many([Record(b"%d" % number, b"key") for number in range(5)])
        assert [receipt.offset for receipt in receipts] == list(range(5))
        assert one.append_many([]) == []
        with pytest.raises(RecordTooLarge, match="together or not at all"):
            one.append_many([Record(bytes(500))] * 3)
        assert [r.offset for r in asyncio.run(one.append_many_async([Record(b"x"), Record(b"y")]))] == [5, 6]
        (group,) = {entry.epoch for entry in one.log.read(0)}
        assert group == receipts[0].epoch


def test_records_that_wait_are_published_by_the_next_run() -> None:
    files, broker = MemoryFiles(), MemoryLog("wal-topic-missing")
    broker.clear()
    with producer(files, broker) as one:
        one.append(b"0", key=b"key")
        eventually(lambda: one.status.error is not None, "the missing topic is told")
        assert isinstance(one.status.error, ConfigurationError)
        assert "Topic robot.raw does not exist" in str(one.status.error)
        with pytest.raises(Unavailable, match=r"1 records .* does not exist"):
            one.flush(timeout_s=0)
        one.close(timeout_s=0)
    broker.create_topic(TOPIC, 2)
    with producer(files, broker) as one:
        one.flush(timeout_s=PATIENCE_S)
    assert counted(broker) == [0]


def test_a_topic_with_too_few_partitions_is_reported() -> None:
    broker = MemoryLog("wal-few-partitions")
    broker.clear()
    broker.create_topic(TOPIC, 1)
    with producer(MemoryFiles(), broker) as one:
        one.append(b"0")
        eventually(lambda: isinstance(one.status.error, PartitionsMismatch), "it is reported")
        broker.grow(TOPIC, 3)
        one.flush(timeout_s=PATIENCE_S)
        assert one.status.error is None


def test_kafka_away_and_back() -> None:
    broker = new_broker("wal-away")
    with producer(MemoryFiles(), broker) as one:
        broker.set_down(down=True)
        for number in range(30):
            one.append(b"%d" % number, key=b"key")
        eventually(lambda: isinstance(one.status.error, Unavailable), "it is told")
        assert one.status.waiting == 30
        broker.set_down(down=False)
        one.flush(timeout_s=PATIENCE_S)
    assert counted(broker) == list(range(30))


class ReadFiles(MemoryFiles):
    """Files that count how often segments are read."""

    reads = 0

    def read(self, name: str, at: int, size: int) -> bytes:
        self.reads += name.endswith(".wal")
        return super().read(name, at, size)


def test_nothing_is_read_while_kafka_is_away() -> None:
    files, broker = ReadFiles(), new_broker("wal-away-unread")
    broker.set_down(down=True)
    with WriteAheadLog(files, TOPIC, 2, limits=SMALL) as log:
        log.append(Record(b"0", b"key"))
        before, publisher = files.reads, Publisher(log, broker)
        with pytest.raises(Unavailable):
            publisher.publish()
        assert files.reads == before
        broker.set_down(down=False)
        assert (publisher.publish(), publisher.publish()) == (1, 0)
        assert files.reads > before
    assert counted(broker) == [0]


def test_a_broker_that_fails_in_the_middle_doubles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sqe_chain.ext.wal.background._LAST_RETRY_S", 0.01
    )  # else pauses grow to five seconds
    broker = new_broker("wal-fails")
    faults = Faults(dict.fromkeys(range(1, 40, 3), "refused half"))
    with producer(MemoryFiles(), faulty_log(broker, faults)) as one:
        for number in range(30):
            one.append(b"%d" % number, key=key_of(number))
        one.flush(timeout_s=PATIENCE_S)
    assert len(broker.records(TOPIC)) > 30
    assert sorted(counted(broker)) == list(range(30))


def test_a_record_too_large_for_the_topic_waits_and_is_reported() -> None:
    broker = new_broker("wal-large")
    broker.configure(TOPIC, max_message_bytes=300)
    with producer(MemoryFiles(), broker, partitions=1) as one:
        one.append(b"0", key=b"key")
        large = one.append(b"1".zfill(500), key=b"key")
        one.append(b"2", key=b"key")
        eventually(lambda: isinstance(one.status.error, OutputTooLarge), "it is told")
        assert f"offset {large.offset} of the write-ahead log" in str(one.status.error)
        assert one.status.published == 1
        broker.configure(TOPIC, max_message_bytes=3_000)
        one.flush(timeout_s=PATIENCE_S)
    assert counted(broker) == [0, 1, 2]


LARGE: Any = {"key": b"key", "headers": [("h", bytes(200))]}
"""Where the log is full for one such record, it is for the next one."""


def fill(one: DurableProducer) -> int:
    """Append until the log is full; returns how many records were acknowledged."""
    count = 0
    while True:
        try:
            one.append(b"%d" % count, **LARGE, timeout_s=0)
        except LogFull as error:
            if "records wait for Kafka" in str(error):
                return count
        else:
            count += 1


def test_back_pressure_raises_or_waits() -> None:
    broker = new_broker("wal-full")
    broker.set_down(down=True)
    with producer(MemoryFiles(), broker, limits=SMALL_LOG) as one:
        count = fill(one)
        assert count > 10
        assert one.status.used_bytes <= one.status.max_bytes == 8_192
        waiting = threading.Thread(target=lambda: one.append(b"%d" % count, **LARGE))
        waiting.start()

        async def wait() -> None:
            with pytest.raises(LogFull):
                await one.append_async(b"", **LARGE, timeout_s=0.01)
            last = one.append_async(b"%d" % (count + 1), **LARGE)
            await asyncio.wait_for(asyncio.gather(up(), last), PATIENCE_S)

        async def up() -> None:
            broker.set_down(down=False)

        asyncio.run(wait())
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        one.flush(timeout_s=PATIENCE_S)
    assert sorted(counted(broker)) == list(range(count + 2))


def test_a_full_disk_is_reported_to_every_waiting_caller() -> None:
    class FullDisk(MemoryFiles):
        full = False

        def write(self, name: str, at: int, data: bytes, zeros: int = 0) -> None:
            if self.full:
                super().write(name, at, data[:7])
                raise OSError(28, "No space left on device")
            super().write(name, at, data, zeros)

    disk, broker = FullDisk(), new_broker("wal-disk-full")
    with producer(disk, broker) as one:
        one.append(b"0", key=b"key")
        disk.full = True
        pending = [one.submit(b"no", key=b"key") for _ in range(3)]
        for each in pending:
            with pytest.raises(LogUnwritable, match="No space left on device"):
                each.result()
        with pytest.raises(LogUnwritable):
            asyncio.run(one.append_async(b"no", key=b"key"))
        disk.full = False
        assert one.append(b"1", key=b"key").offset == 1
        one.flush(timeout_s=PATIENCE_S)
    assert counted(broker) == [0, 1]


def test_a_closed_producer_takes_nothing() -> None:
    one = producer(MemoryFiles(), new_broker("wal-closed"))
    one.append(b"0")
    one.close()
    one.close()
    with pytest.raises(LogClosed):
        one.append(b"1")
    with pytest.raises(LogClosed):
        asyncio.run(one.append_async(b"1"))


def test_a_caller_waiting_for_room_gets_an_error_when_the_log_is_closed() -> None:
    broker = new_broker("wal-closed-while-waiting")
    broker.set_down(down=True)
    one = producer(MemoryFiles(), broker, limits=SMALL_LOG)
    fill(one)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            one.append(b"1", **LARGE)
        except LogClosed as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: one._commit._waiting == 1, "it waits")
    one.close(timeout_s=0)
    waiting.join(PATIENCE_S)
    assert len(told) == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_cannot_append() -> None:
    with producer(MemoryFiles(), new_broker("wal-fork")) as one:
        one.append(b"0")
        child = os.fork()
        if child == 0:
            try:
                one.append(b"1")
            except LogLocked:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


INTERRUPTED = ("write", "sync", "_end", "_on_durable")
"""Where the main thread is interrupted, while others wait for the group that it writes; the last two: when the group is durable."""


@pytest.mark.parametrize("effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", INTERRUPTED)
def test_a_signal_in_the_main_thread_leaves_nobody_waiting(
    at: str, effect: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, broker = MemoryFiles(), new_broker("wal-interrupted")
    with producer(files, broker) as one:
        one.append(b"0", key=b"key")
        commit = one._commit
        with commit._lock:  # of another thread, which has not come to write it
            other = Pending(commit, *commit._add(one.log.framed([Record(b"1", b"key")], count())))
        where: Any = files if at in {"write", "sync"} else commit
        called = getattr(where, at)

        def interrupted(*arguments: Any) -> Any:
            monkeypatch.undo()
            if effect:
                called(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(where, at, interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.append(b"2", key=b"key")
        if at in {"write", "sync"}:
            with pytest.raises(LogUnwritable, match="interrupted"):
                other.result()
        else:
            assert other.result().offset == 1
        assert one.append(b"3", key=b"key").offset == (1 if at in {"write", "sync"} else 3)
        one.flush(timeout_s=PATIENCE_S)
    assert counted(broker) == ([0, 3] if at in {"write", "sync"} else [0, 1, 2, 3])


def test_values_that_change_after_they_were_handed_over_do_not_change_the_record() -> None:
    broker, value = new_broker("wal-mutable"), bytearray(b"0")
    with producer(MemoryFiles(), broker) as one:
        with one._commit._writing:  # so that nothing is written yet
            pending = one.submit(value, key=b"key")  # type: ignore[arg-type]  # some callers do that
            value[:] = b"7"
        pending.result()
        one.flush(timeout_s=PATIENCE_S)
    assert counted(broker) == [0]


def test_a_callers_mistake_stops_nobody() -> None:
    broker = new_broker("wal-mistakes")
    mistakes: list[dict[str, Any]] = [
        {"value": "text"}, {"value": b"", "key": 7}, {"value": b"", "headers": [("h", "text")]}, {"value": b"", "timestamp_ms": 1 << 70},
    ]  # fmt: skip
    with producer(MemoryFiles(), broker) as one:
        for mistake in mistakes:
            with pytest.raises(Exception, match=r".") as caught:
                one.append(**mistake)
            assert not isinstance(caught.value, LogUnwritable)
        assert one.append(b"0").offset == 0
        one.flush(timeout_s=PATIENCE_S)
    assert counted(broker) == [0]


BUFFERS: dict[str, tuple[Any, bytes | None]] = {
    "bytes": (b"abc", b"abc"),
    "bytearray": (bytearray(b"abc"), b"abc"),
    "memoryview": (memoryview(b"abc"), b"abc"),
    "every second byte": (memoryview(b"a-b-c")[::2], b"abc"),
    "rows of bytes": (memoryview(b"abcd").cast("B", (2, 2)), b"abcd"),
    "array of bytes": (array.array("B", b"abc"), b"abc"),
    "array of characters": (ctypes.create_unicode_buffer("abc"), None),
    "array of integers": (array.array("I", [1, 2, 3]), None),
    "view of integers": (memoryview(array.array("H", [1, 2])), None),
    "an empty array": (array.array("d"), None),
    "numpy bytes": (np.frombuffer(b"abc", np.uint8), b"abc"),
    "numpy rows": (np.frombuffer(b"abcd", np.uint8).reshape(2, 2).T, b"acbd"),
    "numpy integers": (np.arange(3), None),
    "numpy objects": (np.array([object()]), None),
    "numpy times": (np.array(["2026-11-26"], "datetime64[D]"), None),
    "numpy scalar": (np.int32(7), None),
    "text": ("abc", None),
    "a number": (3, None),
    "a list": ([1, 2], None),
}
WAYS = ("append", "submit", "append_many", "append_async", "append_many_async")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["value", "key", "header"])
def test_a_buffer_is_taken_byte_for_byte_or_refused(way: str, place: str) -> None:
    """One that was acknowledged with another length would damage the log, also for others."""
    broker = new_broker(f"wal-buffers-{way}-{place}")
    expected = []
    with producer(MemoryFiles(), broker, limits=Limits(), partitions=1) as one:
        for given, content in BUFFERS.values():
            if place == "key" and not way.startswith("append_many"):
                continue  # `key_bytes` has its own rule
            record: dict[str, Any] = {"value": b"v", "key": b"k", "headers": None}
            record |= {"headers": [("h", given)]} if place == "header" else {place: given}
            if content is None:
                with pytest.raises(TypeError, match=r"Expected bytes, or a buffer of single bytes"):
                    handed_over(one, way, record)
            else:
                handed_over(one, way, record)
                expected.append(content)
        one.append(b"the last", key=b"k")
        one.flush(timeout_s=PATIENCE_S)
    *found, last = broker.records(TOPIC)
    assert last.value() == b"the last"
    reads = {
        "value": lambda m: m.value(),
        "key": lambda m: m.key(),
        "header": lambda m: dict(m.headers())["h"],
    }
    assert [reads[place](message) for message in found] == expected


def handed_over(one: DurableProducer, way: str, record: dict[str, Any]) -> None:
    if way == "append":
        one.append(**record)
    elif way == "submit":
        one.submit(**record).result()
    elif way == "append_many":
        one.append_many([Record(**record)])
    elif way == "append_async":
        asyncio.run(one.append_async(**record))
    else:
        asyncio.run(one.append_many_async([Record(**record)]))


def test_nothing_is_kept_of_what_a_full_log_has_refused() -> None:
    broker = new_broker("wal-refusals")
    broker.set_down(down=True)
    with producer(MemoryFiles(), broker, limits=SMALL_LOG) as one:
        count = fill(one)

        async def refused(timeout_s: float) -> None:
            with pytest.raises(LogFull):
                await one.append_async(b"no", **LARGE, timeout_s=timeout_s)

        async def given_up() -> None:
            waiting = [asyncio.create_task(one.append_async(b"no", **LARGE)) for _ in range(9)]
            await asyncio.sleep(0)
            assert len(one._commit._room_futures) >= len(waiting)
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

        async def all_of_them() -> None:
            await asyncio.gather(*(refused(0.01) for _ in range(50)), given_up())

        asyncio.run(all_of_them())
        assert not one._commit._room_futures
        broker.set_down(down=False)
        one.flush(timeout_s=PATIENCE_S)
    assert sorted(counted(broker)) == list(range(count))


def test_settings_go_with_an_address_only() -> None:
    with pytest.raises(ConfigurationError, match="goes with an address"):
        DurableProducer(MemoryFiles(), TOPIC, partitions=1, kafka=MemoryLog("x"), config={"a": "b"})


def test_an_error_while_opening_releases_the_directory(tmp_path: Path) -> None:
    producer(tmp_path, new_broker("wal-release")).close()
    with pytest.raises(PartitionsMismatch):
        producer(tmp_path, new_broker("wal-release"), partitions=3)
    producer(LocalFiles(tmp_path), new_broker("wal-release")).close()
