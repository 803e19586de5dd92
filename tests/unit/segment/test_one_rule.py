"""Goal: every way by which a message is read accepts and refuses the same bytes.

An origin producer and two republishers write envelopes, some damaged in their structure under a right checksum.
Four readers get them: record by record (a plan with skipped records), the loop over ordinary ones, the fast path, the
filter for plain consumers. All must agree on what is accepted, what is skipped and why, and on the marks.
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
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.message import parse_head, payloads_of, wrap
from sqe_chain.envelope.replay_filter import ReplayFilter
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.envelope.wire import sealed
from sqe_chain.errors import ChainError, EnvelopeError
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.ports import Header, Range
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.reading import Reading
from sqe_chain.task.results import ChangedStates, Job, Portion, Report
from sqe_chain.task.states import Claim, Transition
from tests.support.block_ways import taken_as
from tests.support.records import Record

TYPE = StringValue.DESCRIPTOR.full_name
BEFORE = Header(1, "run", 3, "plan-3")
TOPIC_ID = b"w" * 16


class Empty:
    """A store without states."""

    def read(self, *where: Any) -> tuple[Header, list[None], Header]:
        return BEFORE, [None for _ in where[-1]], BEFORE


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


# --- the ways -------------------------------------------------------------------------------------


def note(state: StringValue, value: StringValue) -> None:
    state.value += f"{value.value}|"


def way(
    messages: list[Record],
    policy: PoisonPolicy,
    block: int,
    *,
    one_by_one: bool = False,
    columns: int = 1,
    short: int = 1 << 30,
) -> Any:
    """States, exclusions, marks and replays; or the name of what stopped the service."""
    flow = Flow("f", state_partitions=1, poison=policy)
    flow.source("words", StringValue).aggregate(
        "all", key=lambda value: value.value[:1] or "-", state=StringValue, fold=note
    )
    store: Any = Empty()
    reading = Reading(
        flow.compile(), Job(Transition("f", Claim(1, "run"), 3, "plan-3"), 1, in_place=True), lambda _: store
    )
    elsewhere = (Exclusion("words", 0, 10**9, policy, "X", "x"),) if one_by_one else ()
    marks = PartitionMarks("words", TOPIC_ID, 0)
    portion = Portion(Range("words", TOPIC_ID, 0, 0, 10**6), marks, elsewhere)
    blocks = [messages[begin : begin + block] for begin in range(0, len(messages), block)]
    with taken_as(block=columns, run=short):
        try:
            found: list[Any] = [*reading.read(portion, blocks), *reading.finish()]
        except ChainError as error:
            return type(error).__name__
    report = found[-1]
    assert isinstance(report, Report)
    rows = {
        key: StringValue.FromString(state or b"").value
        for one in found
        if isinstance(one, ChangedStates)
        for key, state in one.rows
    }
    return (
        rows,
        [(one.offset, one.error) for one in report.excluded],
        report.ends[0].marks.to_json(),
        report.ends[0].replays,
    )


def as_a_plain_consumer(messages: list[Record]) -> Any:
    """What `ReplayFilter` accepts, and its marks; or the name of what stopped it."""
    replays, accepted = ReplayFilter({"words": TOPIC_ID}), []
    for message in messages:
        try:
            if replays.accept(message):
                accepted.append(message.at)
        except EnvelopeError:
            replays.undecodable(message)
        except ChainError as error:
            return type(error).__name__
    return accepted, replays.marks("words", 0).to_json()


@settings(deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    count=st.integers(1, 40),
    share=st.sampled_from([0.03, 0.1, 0.3]),
    block=st.sampled_from([1, 3, 7, 1_000]),
    short=st.sampled_from([1, 2, 5]),
)
def test_all_ways_agree(seed: int, count: int, share: float, block: int, short: int) -> None:
    messages = records(seed, count, share)
    one_by_one = way(messages, "skip", 1_000, one_by_one=True)
    assert way(messages, "skip", block) == one_by_one, "the loop over ordinary ones"
    assert way(messages, "skip", block, columns=1 << 30) == one_by_one, "without columns"
    consumed = as_a_plain_consumer(messages)
    stops = isinstance(one_by_one, str)
    strictly = way(messages, "stop", 1_000, short=short)
    if stops or one_by_one[1]:
        assert isinstance(strictly, str), "under `stop` the first one that is refused ends the service"
    else:
        assert (strictly[0], strictly[2]) == (one_by_one[0], one_by_one[2]), "the fast path"
    if stops:
        assert consumed == one_by_one
    else:
        assert consumed[1] == one_by_one[2], "marks of the filter for plain consumers"


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


def test_the_damages_are_seen() -> None:
    """So that the comparison compares something: most are refused, some are harmless."""
    refused = accepted = 0
    for seed in range(300):
        random = Random(seed)
        value = records(seed, 1, 0.0)[0].data
        assert value is not None
        try:
            parse_head(damaged(random, value))
            accepted += 1
        except EnvelopeError:
            refused += 1
    assert refused > 100
    assert accepted > 30
