"""Messages of revisions, laid into topics in memory, and what a flow with one stage makes of them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain import Flow
from sqe_chain.chain import Coordinates
from sqe_chain.envelope.message import read, republish, wrap_unchecked
from sqe_chain.envelope.revisions import Revision, RevisionRecord, revisions_topic
from sqe_chain.testing import Rehearsal

RAW_ID = b"r" * 16


def hop(
    output: str, topic: str = "", partition: int = 0, shard: int | None = None
) -> tuple[str, str, int, int | None]:
    """What published, and the topic that it had read from; the first one of a chain reads the root."""
    return output, topic, partition, shard


def message(text: str, root: int, *hops: tuple[str, str, int, int | None], partition: int = 0) -> bytes:
    """An envelope whose root is at an offset of raw[partition], epoch 0."""
    value = wrap_unchecked(StringValue(value=text), key=b"k", timestamp_ms=root)
    topic, topic_id, at = "raw", RAW_ID, partition
    for number, (output, before, own, shard) in enumerate(hops):
        if number:
            topic, topic_id, at = before, before.encode().ljust(16, b"-"), own
        place = Coordinates(topic=topic, topic_id=topic_id, partition=at, offset=root, leader_epoch=1)
        value = republish(read(value), place, StringValue(value=text), output=output, key=b"k", shard=shard)
    return value


def counting(fails: Container[str] = (), **options: object) -> Flow:
    """Notes the texts that it counts; its code fails for some."""

    def check(value: StringValue) -> StringValue:
        if value.value in fails:
            raise ValueError(value.value)
        return value

    flow = Flow("totals", state_partitions=2, **options)  # type: ignore[arg-type]
    flow.source("good", StringValue).map(check).aggregate("all", key=key_of, state=StringValue, fold=append)
    return flow


def key_of(_: StringValue) -> str:
    return "all"


def append(state: StringValue, value: StringValue) -> None:
    state.value += f"{value.value} "


def counted(found: Rehearsal) -> list[str]:
    """The texts that count, in their order."""
    state = found.states("all").get(b"all")
    return [] if state is None else state.value.split()


def begin_revision(
    found: Rehearsal,
    family: str,
    number: int,
    since: Mapping[int, int] | None = None,
    *,
    topic: str = "good",
    ends: Sequence[int] = (),
) -> None:
    """Lay the record of a revision into a topic's revisions: from offsets of the partitions of raw on; None: from the beginning."""
    places = None if since is None else {RAW_ID: {at: (1, offset) for at, offset in since.items()}}
    record = RevisionRecord(family, Revision(number, places), {RAW_ID: "raw"}, tuple(ends))
    found.log.create_topic(revisions_topic(topic), 1)
    found.log.append(revisions_topic(topic), 0, record.to_bytes(), record.key, None, 0)
