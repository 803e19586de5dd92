"""JSON that is read back: plans, marks of plain consumers, metadata of commits, payloads. No text ends in an error without a name."""

from __future__ import annotations

import json
import zlib
from base64 import b85encode
from collections.abc import Callable, Hashable
from random import Random
from typing import Any, Final

from sqe_chain.chain import root_position
from sqe_chain.codecs import codec_for
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.message import Envelope
from sqe_chain.envelope.replay_filter import ReplayFilter
from sqe_chain.errors import ChainError, ConfigurationError, MalformedField, StoreInconsistent
from sqe_chain.plans.inputs import decode_marks, encode_marks, parse_metadata
from sqe_chain.plans.layout import Layout, StageLayout
from sqe_chain.plans.plan import Plan, PlannedRange
from sqe_chain.ports import Commit
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.states import Claim
from tests.lab.fuzzing.ways import Difference

_TOPIC_IDS: Final = {"words": b"w" * 16}
_VALUES: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 2**63, 10**30, 1.5, "", "a", "00", "zz", "ff" * 8, [], {}, [[]], ["a", 1, "00"], {"a": 1}, "é", "\ud800",
)  # fmt: skip


def _marks() -> PartitionMarks:
    marks = PartitionMarks("words", b"w" * 16, 0)
    marks.accept_raw(7, 1)
    return marks


_PLAN: Final = Plan(
    4, "", "ab", Claim(2, "run"), 9, Layout(8, {"s": StageLayout(0, 1, "f")}, {"o": ("u", 2)}, {"words": ("00", 1)}),
    (PlannedRange("words", "00", 0, 0, 2),), {("words", 0): _marks()}, (Exclusion("words", 0, 1, "skip", "ValueError", "odd"),),
).with_id()  # fmt: skip
_STORED: Final = _PLAN.to_bytes()


def _plan(data: bytes) -> str:
    try:
        found = Plan.from_bytes(data)
    except StoreInconsistent:
        return "refused"
    if data == _STORED and found != _PLAN:
        raise Difference("the plan is another one")
    return "taken"


def _filter(data: bytes) -> str:
    try:
        ReplayFilter.load(data, _TOPIC_IDS)
    except ConfigurationError:
        return "refused"
    except ChainError as error:
        return type(error).__name__
    return "taken"


def _metadata(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    metadata = parse_metadata(Commit(0, text))
    marks = (
        decode_marks(metadata.get("marks")),
        decode_marks(text),
        decode_marks(b85encode(zlib.compress(data)).decode()),
    )
    for mark in marks:
        if mark is not None and mark.topic == "words" and decode_marks(encode_marks(mark)) != mark:
            raise Difference(f"marks of {data!r} are read back as others")
    return f"{bool(metadata)} {[one is not None for one in marks]}"


def _payload(data: bytes) -> str:
    envelope = Envelope(b"e" * 16, 5, None, "json:", (data,), 0, root_position(0, 0))
    try:
        found = envelope.payload_as(object, codec_for(object, "json"))
    except MalformedField:
        return "refused"
    try:
        right = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Difference(f"{data!r} is taken as {found!r}, but: {error}") from error
    if found != right:
        raise Difference(f"{data!r} is taken as {found!r}, right is {right!r}")
    return "taken"


_READERS: Final[tuple[Callable[[bytes], str], ...]] = (_plan, _filter, _metadata, _payload)


def check(data: bytes, seen: set[Hashable]) -> int:
    """Read a text in all ways."""
    seen.add(tuple(read(data) for read in _READERS))
    return 1


def mutated(data: bytes, most: int, random: Random) -> bytes:
    """Another text: JSON with some of its values replaced, or with some bytes changed."""
    way = random.random()
    if way < 0.1:
        return random.choice(
            ("[" * random.choice((5, 2_000, 11_000)), '{"a":' * 2_000, "1" * 5_000, "", "NaN", '"\\ud800"')
        ).encode()
    base: Any = json.loads(_STORED)
    if way < 0.4:
        base = {"format": 1, "partitions": [_marks().to_json()]}
    elif way < 0.5:
        base = {"marks": encode_marks(_marks()), "plan": "ab"}
    if way > 0.8 and data:
        found = bytearray(data)
        for _ in range(random.randrange(1, 4)):
            found[random.randrange(len(found))] = random.choice(b'{}[]",:0a\\\x00\xff')
        return bytes(found)
    for _ in range(random.randrange(3)):
        base = _changed(random, base)
    return json.dumps(base, separators=(",", ":")).encode()[:most]


def _changed(random: Random, value: Any) -> Any:
    """The value with something in it replaced, or removed."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        name = random.choice(sorted(value))
        found = dict(value)
        if random.random() < 0.2:
            del found[name]
        else:
            found[name] = _changed(random, found[name])
        return found
    if isinstance(value, list) and value and random.random() < 0.8:
        at = random.randrange(len(value))
        return [*value[:at], _changed(random, value[at]), *value[at + (random.random() < 0.9) :]]
    return random.choice(_VALUES)
