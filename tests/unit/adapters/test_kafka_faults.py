"""The log maps every error of the driver to its own errors, whatever the request was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
        self.config: Mapping[str, Any] = {}

    def configured(self, config: Mapping[str, Any], **_: object) -> Driver:
        self.config = config
        return self

    def fail(self, call: str, error: KafkaException, *, once: bool = False) -> None:
        """From now on this call fails."""
        self.call, self.error, self.once = call, error, once

    def report(self, error: KafkaError) -> None:
        """Report that a record was refused, at the next poll."""
        self.reports.append(partial(self.config["on_delivery"], error, Report(error)))

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


class Topics:
    """What a broker answers about topics."""

    @staticmethod
    def describe(names: Sequence[str]) -> dict[str, TopicInfo]:
        sizes = {"u": 2_000}
        return {
            name: TopicInfo(name, bytes(16), 1, max_message_bytes=sizes.get(name, 1_048_588))
            for name in names
        }

    @staticmethod
    def leaders(_: str) -> list[int]:
        return [1]


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


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The client that all parts get: two thousand real ones would leave no processor to other tests."""
    made = Driver("", failing("_ALL_BROKERS_DOWN"))
    for module, name in ((_reader, "Consumer"), (_group, "Consumer"), (_writer, "Producer")):
        monkeypatch.setattr(module, name, made.configured)
    monkeypatch.setattr(_writer, "admin", lambda _: Topics)
    return made


@pytest.fixture
def writer() -> Iterator[Writer]:
    made = _writer.KafkaWriter(NOWHERE)
    made.connect(["t"])
    yield made
    made.close()


@pytest.mark.parametrize("call", ["produce", "poll", "flush"])
@pytest.mark.parametrize("name", CODES)
def test_of_the_producer(writer: Writer, driver: Driver, name: str, call: str) -> None:
    driver.fail(call, failing(name))
    with pytest.raises(ChainError) as caught:  # noqa: PT012 - some fail when it is flushed
        writer.write([("t", 0, None, b"", None, 0)])
        writer.flush()
    assert "Writing" in str(caught.value) or "An output" in str(caught.value)


@pytest.mark.parametrize("name", CODES)
def test_of_a_report_of_delivery(writer: Writer, driver: Driver, name: str) -> None:
    driver.report(failing(name).args[0])
    with pytest.raises(ChainError, match=r"Writing t\[0\]") as caught:
        writer.write([])
    wanted = (
        OutputRefused if name in REFUSALS else ConfigurationError if name in CONFIGURATION else Unavailable
    )
    assert type(caught.value) is (GroupInUse if name in MEMBERS else wanted)


@pytest.mark.parametrize("name", sorted(REFUSALS))
@pytest.mark.parametrize("call", ["poll", "flush", "produce"])
def test_what_ends_a_producer_is_explained_by_the_report_that_follows(
    writer: Writer, driver: Driver, name: str, call: str
) -> None:
    """The driver first reports that order would be lost, and only later which record was refused, and why."""
    driver.fail(call, failing("_GAPLESS_GUARANTEE", fatal=True), once=True)
    for one in ("_PURGE_QUEUE", name, "_PURGE_QUEUE"):
        driver.report(failing(one).args[0])
    with pytest.raises(OutputRefused, match=rf"Writing t\[0\].*{name}"):  # noqa: PT012 - as above
        writer.write([("t", 0, None, b"", None, 0)])
        writer.flush()


def test_a_full_buffer_loses_no_record_and_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(_writer, "Producer", lambda _: Full())
    writer = _writer.KafkaWriter(settings("127.0.0.1:2", {}, 0.05, 0.05))
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


@pytest.mark.parametrize("name", [name for name in CODES if name != "GROUP_AUTHORIZATION_FAILED"])
def test_of_the_admin_client(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Driver("describe_consumer_groups", failing(name))
    monkeypatch.setattr(confluent_kafka.admin, "AdminClient", client.configured)
    asker = Admin(NOWHERE)
    with pytest.raises(ChainError, match="Describing group g"):
        asker.allowed_in_group("g")
    failed: Future[Any] = Future()
    failed.set_exception(failing(name))
    monkeypatch.setattr(client, "describe_consumer_groups", lambda *_, **__: {"g": failed}, raising=False)
    for call in ("", "poll"):
        client.fail(call, failing(name))
        with pytest.raises(ChainError, match=r"Describing group g|Asking"):
            asker.allowed_in_group("g")


@pytest.mark.parametrize("call", ["commit", "poll", "committed"])
@pytest.mark.parametrize("name", CODES)
def test_of_the_group(name: str, call: str, driver: Driver) -> None:
    group = KafkaGroup(NOWHERE, "g")
    driver.fail(call, failing(name))
    with pytest.raises(ChainError, match="group g"):  # noqa: PT012 - one call or the other
        if call == "committed":
            group.committed([("t", 0)])
        else:
            group.commit({("t", 0): Commit(1)})


@pytest.mark.parametrize("name", CODES)
def test_of_a_commit_that_was_answered(name: str, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    group = KafkaGroup(NOWHERE, "g")
    answer = partial(driver.config["on_commit"], failing(name).args[0], [])
    monkeypatch.setattr(driver, "commit", lambda **_: answer(), raising=False)
    with pytest.raises(ChainError, match="group g"):
        group.commit({("t", 0): Commit(1)})


@pytest.mark.parametrize("name", sorted(CONFIGURATION))
def test_a_coordinator_that_a_broker_refuses_to_name_is_not_waited_for(
    name: str, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver reports only that the time is up. The reason is in a message."""
    group = KafkaGroup(NOWHERE, "g")
    driver.fail("committed", failing("_TIMED_OUT"))
    monkeypatch.setattr(driver, "poll", lambda _: Report(failing(name).args[0]), raising=False)
    with pytest.raises(ConfigurationError, match=name):
        group.committed([("t", 0)])


def test_a_right_that_a_producer_lacks_is_named_also_when_its_records_are_dropped(
    writer: Writer, driver: Driver
) -> None:
    driver.fail("poll", failing("CLUSTER_AUTHORIZATION_FAILED", fatal=True), once=True)
    driver.report(failing("_PURGE_QUEUE").args[0])
    with pytest.raises(ConfigurationError, match="grant the user WRITE"):
        writer.write([("t", 0, None, b"", None, 0)])


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", "grant the user"),
        ("POLICY_VIOLATION", "ask whoever runs"),
        ("INVALID_TIMESTAMP", "correct the clocks"),
    ],
)
def test_an_error_that_lasts_names_what_to_do(writer: Writer, driver: Driver, name: str, advice: str) -> None:
    driver.report(failing(name).args[0])
    with pytest.raises(ChainError, match=advice):
        writer.write([])
