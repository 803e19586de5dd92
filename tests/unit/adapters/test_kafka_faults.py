"""The log maps every error of the driver to its own errors, whatever the request was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import confluent_kafka.admin
import pytest
from confluent_kafka import KafkaError, KafkaException

from sqe_chain.adapters.kafka import _group, _reader, _writer
from sqe_chain.adapters.kafka._admin import Admin
from sqe_chain.adapters.kafka._clients import CONFIGURATION, MEMBERS, REFUSALS
from sqe_chain.adapters.kafka._group import KafkaGroup
from sqe_chain.adapters.kafka._reader import POOL as READERS
from sqe_chain.adapters.kafka._reader import KafkaReader, read
from sqe_chain.adapters.kafka._settings import settings
from sqe_chain.errors import ChainError, ConfigurationError, GroupInUse, OutputRefused, Unavailable
from sqe_chain.ports import Commit, Range, TopicInfo

if TYPE_CHECKING:
    from sqe_chain.ports import Writer

CODES = sorted(name for name in dir(KafkaError) if name.isupper() and name != "NO_ERROR")
NOWHERE = settings("127.0.0.1:1", {}, 0.05, 0.05)
WANTED = Range("t", b"", 0, 0, 10)


def failing(name: str, *, fatal: bool = False) -> KafkaException:
    return KafkaException(KafkaError(getattr(KafkaError, name), f"it was {name}", fatal))


class Driver:
    """A driver client in which one call fails and all others do nothing."""

    def __init__(self, call: str, error: KafkaException, *, once: bool = False) -> None:
        self.call, self.error, self.once, self.reports = call, error, once, list[Callable[[], None]]()

    def __len__(self) -> int:
        return len(self.reports)

    def __getattr__(self, name: str) -> Any:
        def called(*_: object, **__: object) -> Any:
            if name == self.call:
                self.call = "" if self.once else name
                raise self.error
            while name == "poll" and self.reports:
                self.reports.pop(0)()
            return {"consume": [], "poll": None}.get(name, 0)

        return called


class Report:
    """A message or an event as the driver reports it."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error

    def error(self) -> KafkaError:
        return self._error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 5


def idle(*_: object, **__: object) -> Driver:
    """A client that does nothing, until a test puts another in its place."""
    return Driver("", failing("_ALL_BROKERS_DOWN"))


@pytest.fixture(autouse=True)
def _no_real_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand clients, each with threads that look for a broker again and again, leave no processor to other tests."""
    for module, name in ((_reader, "Consumer"), (_group, "Consumer"), (_writer, "Producer")):
        monkeypatch.setattr(module, name, idle)


@pytest.fixture
def writer() -> Iterator[Writer]:
    _writer._TOPICS[NOWHERE, "t"] = TopicInfo("t", bytes(16), 1)
    made = _writer.KafkaWriter(NOWHERE)
    yield made
    made.close()
    _writer._TOPICS.clear()


def sender(writer: Any, call: str, error: KafkaException) -> tuple[_writer.Sender, Driver]:
    found = writer._sender("t")
    found.driver = driver = Driver(call, error)
    return found, driver


@pytest.mark.parametrize("call", ["produce", "poll", "flush"])
@pytest.mark.parametrize("name", CODES)
def test_of_the_producer(writer: Writer, name: str, call: str) -> None:
    sender(writer, call, failing(name))
    with pytest.raises(ChainError) as caught:  # noqa: PT012 - some fail when it is flushed
        writer.write([("t", 0, None, b"", None, 0)])
        writer.flush()
    assert "Writing" in str(caught.value) or "An output" in str(caught.value)


@pytest.mark.parametrize("name", CODES)
def test_of_a_report_of_delivery(writer: Writer, name: str) -> None:
    found, _ = sender(writer, "", failing(name))
    found._on_delivery(failing(name).args[0], Report(failing(name).args[0]))  # type: ignore[arg-type]
    with pytest.raises(ChainError, match=r"Writing t\[0\]") as caught:
        writer.flush()
    wanted = (
        OutputRefused if name in REFUSALS else ConfigurationError if name in CONFIGURATION else Unavailable
    )
    assert type(caught.value) is (GroupInUse if name in MEMBERS else wanted)


@pytest.mark.parametrize("name", sorted(REFUSALS))
@pytest.mark.parametrize("call", ["poll", "flush", "produce"])
def test_what_ends_a_producer_is_explained_by_the_report_that_follows(
    writer: Writer, name: str, call: str
) -> None:
    """The driver first reports that order would be lost, and only later which record was refused, and why."""
    found, driver = sender(writer, call, failing("_GAPLESS_GUARANTEE", fatal=True))
    for one in ("_PURGE_QUEUE", name, "_PURGE_QUEUE"):
        error = failing(one).args[0]
        driver.reports.append(partial(found._on_delivery, error, Report(error)))  # type: ignore[arg-type]
    driver.once = True
    with pytest.raises(OutputRefused, match=rf"Writing t\[0\].*{name}"):  # noqa: PT012 - as above
        writer.write([("t", 0, None, b"", None, 0)])
        writer.flush()


def test_a_full_buffer_loses_no_record_and_no_order(writer: Any) -> None:
    """Two topics of two sizes, so of two producers; each has room for a record only after the next poll."""
    written: list[tuple[Any, ...]] = []

    class Full:
        room = False

        def produce(self, *record: Any) -> None:
            if not self.room:
                raise BufferError
            self.room = False
            written.append(record)

        def poll(self, _: float) -> int:
            self.room = True
            return 0

        def purge(self) -> None:
            """Nothing is left."""

        flush = poll

    _writer._TOPICS[NOWHERE, "u"] = TopicInfo("u", bytes(16), 1, max_message_bytes=2_000)
    writer._sender("t").driver, writer._sender("u").driver = Full(), Full()
    outputs = [
        ("tu"[number % 3 == 1], number % 2, b"k", b"%d" % number, None, 1_700_000_000_000 + number)
        for number in range(20)
    ]
    writer.write([])
    writer.write(outputs)
    assert written == [
        (topic, value, key, partition, None, None, time_ms, headers)
        for topic, partition, key, value, headers, time_ms in outputs
    ]


@pytest.mark.parametrize("name", CODES)
def test_of_a_record_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = KafkaReader(NOWHERE)
    monkeypatch.setattr(reader, "driver", Driver("", failing(name)))
    monkeypatch.setattr(reader.driver, "consume", lambda *_: [Report(failing(name).args[0])], raising=False)
    monkeypatch.setattr("sqe_chain.adapters.kafka._reader._error", Report.error)
    with pytest.raises(ChainError, match=r"Reading t\[0\]|did not answer"):
        list(reader.read(WANTED))


@pytest.mark.parametrize("call", ["assign", "seek", "consume", "unassign"])
@pytest.mark.parametrize("name", CODES)
def test_of_the_consumer(name: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = KafkaReader(NOWHERE)
    monkeypatch.setattr(reader, "driver", Driver(call, failing(name)))
    READERS.give_back(NOWHERE, reader)
    wanted = Range("t", b"", 0, 5, 10, leader_epoch=3)
    with pytest.raises(ChainError, match=r"Reading t\[0\]|did not answer"):
        list(read(NOWHERE, wanted))


def test_of_the_consumer_when_nobody_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = KafkaReader(NOWHERE)
    monkeypatch.setattr(reader, "driver", Driver("unassign", failing("_STATE")))
    monkeypatch.setattr(reader, "read", lambda _: iter([[], []]))
    READERS.give_back(NOWHERE, reader)
    blocks = read(NOWHERE, WANTED)
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CODES)
def test_of_the_admin_client(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_kafka.admin, "AdminClient", idle)
    asker = Admin(NOWHERE)
    failed: Future[Any] = Future()
    failed.set_exception(failing(name))
    with pytest.raises(ChainError, match="Asking"):
        asker._result_unless(frozenset(), failed, "Asking")
    monkeypatch.setattr(asker, "driver", Driver("poll", failing(name)))
    with pytest.raises(ChainError, match="Asking"):
        asker._result_unless(frozenset(), failed, "Asking")
    with pytest.raises(ChainError, match="Asking"):
        asker._send(lambda: (_ for _ in ()).throw(failing(name)), "Asking")


@pytest.mark.parametrize("call", ["commit", "poll", "committed"])
@pytest.mark.parametrize("name", CODES)
def test_of_the_group(name: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group = KafkaGroup(NOWHERE, "g")
    monkeypatch.setattr(group, "driver", Driver(call, failing(name)))
    with pytest.raises(ChainError, match="group g"):  # noqa: PT012 - one call or the other
        if call == "committed":
            group.committed([("t", 0)])
        else:
            group.commit({("t", 0): Commit(1)})


@pytest.mark.parametrize("name", CODES)
def test_of_a_commit_that_was_answered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group = KafkaGroup(NOWHERE, "g")
    driver = Driver("", failing(name))
    monkeypatch.setattr(group, "driver", driver)
    monkeypatch.setattr(
        driver, "commit", lambda **_: group._on_commit(failing(name).args[0], []), raising=False
    )
    began = time.monotonic()
    with pytest.raises(ChainError, match="group g"):
        group.commit({("t", 0): Commit(1)})
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("name", sorted(CONFIGURATION))
def test_a_coordinator_that_a_broker_refuses_to_name_is_not_waited_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver reports only that the time is up. The reason is in a message."""
    group = KafkaGroup(NOWHERE, "g")
    driver = Driver("committed", failing("_TIMED_OUT"))
    monkeypatch.setattr(group, "driver", driver)
    monkeypatch.setattr(driver, "poll", lambda _: Report(failing(name).args[0]), raising=False)
    with pytest.raises(ConfigurationError, match=name):
        group.committed([("t", 0)])


def test_a_right_that_a_producer_lacks_is_named_also_when_its_records_are_dropped(writer: Writer) -> None:
    found, _ = sender(writer, "poll", failing("CLUSTER_AUTHORIZATION_FAILED", fatal=True))
    dropped = failing("_PURGE_QUEUE").args[0]
    found._on_delivery(dropped, Report(dropped))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="grant the user WRITE"):
        writer.write([("t", 0, None, b"", None, 0)])


@pytest.mark.parametrize("name", ["TOPIC_AUTHORIZATION_FAILED", "POLICY_VIOLATION", "INVALID_TIMESTAMP"])
def test_an_error_that_lasts_names_what_to_do(writer: Writer, name: str) -> None:
    found, _ = sender(writer, "", failing(name))
    found._on_delivery(failing(name).args[0], Report(failing(name).args[0]))  # type: ignore[arg-type]
    with pytest.raises(ChainError, match=r"grant the user|ask whoever runs|correct the clocks"):
        writer.flush()
