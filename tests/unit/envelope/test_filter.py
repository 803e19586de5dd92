"""A plain consumer that keeps the filter's marks with its own state counts every message once."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain import Coordinates, ReplayFilter, read, republish, wrap
from sqe_chain.chain import root_position
from sqe_chain.envelope.carrier import in_headers
from sqe_chain.errors import ConfigurationError, GapError, NotAnEnvelope, RecreatedTopic, ServiceStopped

IDS = {"robot.ok": b"k" * 16, "robot.raw": b"r" * 16}


@dataclass
class Message:
    """The methods of confluent_kafka.Message that the filter uses."""

    held: bytes | None
    at: int | None
    name: str | None = "robot.ok"
    epoch: int | None = 0
    failure: str | None = None
    heads: list[tuple[str, bytes | None]] | None = None

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.heads

    def topic(self) -> str | None:
        return self.name

    def partition(self) -> int | None:
        return 1

    def offset(self) -> int | None:
        return self.at

    def leader_epoch(self) -> int | None:
        return self.epoch

    def value(self) -> bytes | None:
        return self.held

    def error(self) -> object | None:
        return self.failure


def made(root: int, previous: int | None = None) -> bytes:
    at = Coordinates(topic="robot.raw", topic_id=b"r" * 16, partition=2, offset=root, leader_epoch=1)
    witness = b"" if previous is None else root_position(1, previous) + bytes(4)
    return republish(
        None,
        at,
        StringValue(value=str(root)),
        output="standard/ok",
        key="k",
        timestamp_ms=5,
        previous=witness,
    )


def test_a_consumer_killed_anywhere_counts_every_message_once() -> None:
    """It stores sum and marks together, is killed after any message, and reads again from the start."""
    log = [made(root) for root in (0, 1, 2, 1, 2, 3, 0, 4)]
    for kill in range(len(log)):
        stored, total = ReplayFilter(IDS).export(), 0
        for lives in (log[:kill], log):
            replays = ReplayFilter.load(stored, IDS)
            for offset, value in enumerate(lives):
                if replays.accept(Message(value, offset)):
                    total += int(read(value).payload_as(StringValue).value)
            stored = replays.export()
        assert total == 0 + 1 + 2 + 3 + 4


def test_raw_topics_go_by_offset_and_epochs_are_the_client_s() -> None:
    replays = ReplayFilter(IDS, raw={"robot.raw"})
    seen = [
        replays.accept(Message(b"x", at, "robot.raw", epoch))
        for at, epoch in ((0, None), (1, -1), (1, None), (1, 0), (0, 1), (9, 0))
    ]
    assert seen == [True, True, False, True, True, False]
    assert replays.marks("robot.raw", 1)[0].position == root_position(2, 0)


def test_origin_envelopes_are_known_by_their_own_offset() -> None:
    replays = ReplayFilter(IDS)
    value = wrap(StringValue(value="a"), key=None, timestamp_ms=1)
    assert [replays.accept(Message(value, at)) for at in (0, 1, 0)] == [True, True, False]


def test_a_partition_first_met_behind_its_start_was_entered_in_the_middle() -> None:
    for offset in (1, 5):
        assert ReplayFilter(IDS).accept(Message(made(9, previous=8), offset))
    with pytest.raises(GapError):
        ReplayFilter(IDS).accept(Message(made(9, previous=8), 0))


def test_an_undecodable_message_is_named_and_can_be_left_behind() -> None:
    replays = ReplayFilter(IDS)
    assert replays.accept(Message(made(5), 0))
    broken = Message(b"what is this", 1)
    with pytest.raises(NotAnEnvelope):
        replays.accept(broken)
    replays.undecodable(broken)
    assert replays.accept(Message(made(9, previous=8), 2))


def test_a_compacted_topic_may_have_holes() -> None:
    replays = ReplayFilter(IDS, compacted={"robot.ok"})
    assert replays.accept(Message(made(5), 0))
    assert replays.accept(Message(made(9, previous=8), 1))
    loaded = ReplayFilter.load(replays.export(), IDS, compacted={"robot.ok"})
    assert loaded.accept(Message(made(15, previous=14), 2))


def test_what_was_declared_wrongly_is_named() -> None:
    with pytest.raises(ConfigurationError, match="36 bytes"):
        ReplayFilter({"robot.ok": b"-" * 36})
    with pytest.raises(ConfigurationError, match="no topic id was given for topic other"):
        ReplayFilter(IDS).accept(Message(made(1), 0, "other"))
    with pytest.raises(ServiceStopped, match="declared as raw"):
        ReplayFilter(IDS, raw={"robot.ok"}).accept(Message(made(1), 0))


def test_events_of_the_client_are_no_messages() -> None:
    with pytest.raises(ValueError, match="_PARTITION_EOF"):
        ReplayFilter(IDS).accept(Message(b"Broker: no more messages", 5, failure="_PARTITION_EOF"))
    for message in (Message(made(1), None), Message(made(1), 0, None)):
        with pytest.raises(ValueError, match="not read from Kafka"):
            ReplayFilter(IDS).accept(message)


def test_marks_of_a_topic_created_again_are_refused() -> None:
    replays = ReplayFilter(IDS)
    replays.accept(Message(made(1), 0))
    with pytest.raises(RecreatedTopic, match=b"n".hex() * 16):
        ReplayFilter.load(replays.export(), {**IDS, "robot.ok": b"n" * 16})


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format":2,"partitions":[]}', '{"format":1,"partitions":[{}]}', "null"]
)
def test_text_that_is_no_export_is_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigurationError, match="marks"):
        ReplayFilter.load(text, IDS)


def test_an_export_is_the_same_for_the_same_marks_and_loads_exactly() -> None:
    replays = ReplayFilter(IDS, raw={"robot.raw"})
    for message in (Message(b"x", 3, "robot.raw"), Message(made(1), 0), Message(made(2), 1)):
        assert replays.accept(message)
    text = replays.export()
    assert ReplayFilter.load(text, IDS, raw={"robot.raw"}).export() == text
    assert ReplayFilter.load(text.encode(), IDS).export() == text
    assert [record["topic"] for record in json.loads(text)["partitions"]] == ["robot.ok", "robot.raw"]


def test_notices_are_given_once() -> None:
    replays = ReplayFilter(IDS)
    at = Coordinates(topic="robot.raw", topic_id=b"x" * 16, partition=2, offset=0)
    other = republish(None, at, StringValue(), output="standard/ok", key=None, timestamp_ms=1)
    assert replays.accept(Message(made(1), 0))
    assert replays.accept(Message(other, 1))
    assert len(replays.notices()) == 1
    assert replays.notices() == []


def test_a_chain_in_headers_counts_as_one_in_the_value() -> None:
    replays = ReplayFilter(IDS)
    value, headers = in_headers(made(5), source="standard/ok")
    assert value == StringValue(value="5").SerializeToString()
    assert replays.accept(Message(value, 0, heads=headers))
    assert not replays.accept(Message(made(5), 1))  # the same one again, in an envelope
    assert replays.accept(Message(made(6, previous=5), 2))
    value, headers = in_headers(made(6), source="standard/ok")
    assert not replays.accept(Message(value, 3, heads=headers))
    with pytest.raises(ServiceStopped, match="declared as raw"):
        ReplayFilter(IDS, raw=["robot.ok"]).accept(Message(value, 0, heads=headers))
    with pytest.raises(NotAnEnvelope):
        replays.accept(Message(value, 4, heads=[("other", b"")]))


@pytest.mark.parametrize("text", ["[" * 5_000, '{"format":1,"partitions":' + "[" * 5_000])
def test_marks_nested_without_end_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not marks written by"):
        ReplayFilter.load(text, IDS)


@pytest.mark.parametrize(("name", "wrong"), [("topic", ["robot.ok"]), ("partition", {})])
def test_marks_of_something_that_is_no_partition_are_refused_by_name(name: str, wrong: object) -> None:
    replays = ReplayFilter(IDS)
    replays.accept(Message(wrap(StringValue(value="x"), key=None, timestamp_ms=1), 0))
    stored = json.loads(replays.export())
    stored["partitions"][0][name] = wrong
    with pytest.raises(ConfigurationError, match="not marks written by"):
        ReplayFilter.load(json.dumps(stored), IDS)
