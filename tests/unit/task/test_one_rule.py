"""Goal: what is read side by side is sound, and has what protobuf finds; all ways of reading are compared by `tests.lab.fuzzing`.

An origin producer and two republishers write envelopes, some damaged in their structure under a right checksum.
"""

from __future__ import annotations

from random import Random
from typing import Any

from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain._proto.envelope_pb2 import Envelope as EnvelopeMessage
from sqe_chain.chain import root_position
from sqe_chain.envelope.columns import Columns
from sqe_chain.envelope.message import parse_head, payloads_of, wrap
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.envelope.wire import sealed
from sqe_chain.errors import EnvelopeError
from tests.support.records import Record

TYPE = StringValue.DESCRIPTOR.full_name


# --- what is read ---------------------------------------------------------------------------------

DAMAGES: dict[str, list[Any]] = {
    "event_id": [b"", b"abc", bytes(16), None],
    "size": [1, 2, 5],
    "position": [
        None, bytes(12), bytes(15), bytes(16), bytes(20), b"\x00\x00\x00\x01\x80" + bytes(11),
        b"\x80\x00\x00\x01" + bytes(12), b"\xff" * 16, bytes(12) + b"\x00\x00\x00\x09",
    ],
    "previous": [b"\xff" * 12, b"\xff" * 16, b"", bytes(16), b"\x01"],
    "lane": [None, 0, 1, 7],
    "type": ["", "google.protobuf.BytesValue"],
    "payload": [b"", b"\xff\xff", b"\x0a\x05ab"],
    "timestamp_ms": [0, -1, -2, 2**48 - 1, 2**48, 2**63 - 1, -(2**63)],
    "key": [b"", b"k", None],
}  # fmt: skip
TAILS = [
    b"\x12\x00",
    b"\x20\x05",
    b"\x32\x01x",
    b"\x4a\x01x",
    b"\x6a\x01\x00",
    b"\x68\x01",
    b"\x70\x05",
    b"\x40\x00",
]
"""Fields that are added as they are: doubles, payloads without a size, deletions, a field of a later version."""


def damaged(random: Random, value: bytes) -> bytes:
    """The envelope with one thing changed, and a right checksum."""
    kind = random.choice(["field", "field", "field", "chain", "tail", "more", "bytes"])
    message = EnvelopeMessage.FromString(value)
    message.ClearField("crc32")
    if kind == "field":
        name = random.choice(list(DAMAGES))
        message.ClearField(name)  # type: ignore[arg-type] # the stub knows literals only
        found: Any = random.choice(DAMAGES[name])
        if found is not None:
            setattr(message, name, found)
    elif kind == "chain":
        if random.random() < 0.3:
            message.ClearField("chain")
        elif random.random() < 0.5 or not message.chain.links:
            message.chain.links.add(
                topic="t", topic_id=bytes(16), output="o", offset=1, leader_epoch=0, ordinal=0, of=1
            )
        else:
            message.chain.links[-1].of = random.choice([0, 1, 2, 3])
    elif kind == "more":
        message.more.append(b"\x0a\x01x")
    elif kind == "tail":
        return sealed(message.SerializeToString(deterministic=True) + random.choice(TAILS))
    elif kind == "bytes":
        return random.choice([b"", b"rubbish", value[:-3], value + b"x"])
    return sealed(message.SerializeToString(deterministic=True))


def records(seed: int, count: int, share: float) -> list[Record]:
    """What an origin producer and two republishers write. They crash and republish it; some of it is damaged."""
    random, at, values = Random(seed), [0, 0], list[bytes]()
    templates = [
        OutputTemplate(
            lane=0, topic="raw", topic_id=b"r" * 16, partition=number, output="up/words", shard=None
        )
        for number in (0, 1)
    ]
    while len(values) < count:
        who = random.randrange(3)
        if who == 2:
            values.append(wrap(StringValue(value=random.choice("abc")), key="k", timestamp_ms=1))
            continue
        if random.random() < 0.1:
            at[who] = max(0, at[who] - random.randrange(4))
        of = 1 + (at[who] * 7 + who) % 3
        for ordinal in range(of):
            payload = StringValue(value="abc"[ordinal] + str(at[who])).SerializeToString()
            root = root_position(1, at[who])
            values.append(
                templates[who].encode(b"", at[who], 1, ordinal, of, root, 5, b"k", TYPE, [payload])[0]
            )
        at[who] += 1
    return [
        Record(offset, damaged(random, value) if random.random() < share else value)
        for offset, value in enumerate(values)
    ]


@settings(deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([0.1, 0.5]))
def test_what_is_ordinary_is_sound_and_has_what_protobuf_finds(seed: int, share: float) -> None:
    values = [record.data for record in records(seed, 30, share)]
    ordinary = Columns(values, TYPE.encode()).ordinary
    for value, plain in zip(values, ordinary.tolist(), strict=True):
        try:
            head = parse_head(value)
        except EnvelopeError:
            assert not plain
            continue
        if plain:
            assert head.type == TYPE
            assert payloads_of(head) == [head.payload]
            assert head.payload
