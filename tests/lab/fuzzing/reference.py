"""The content of an envelope, or why it is none: written from proto/README.md and the .proto alone, to judge the library by.

Slow, and without protobuf or anything of sqe-chain. A reader may refuse a value with several faults for any of them. So a
refusal is the set of classes that would be right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple
from zlib import crc32

PREFIX: Final = bytes.fromhex("0d535145ff")
SEAL_TAG: Final = 0x7D
RESIDUE: Final = 0x2144DF1C
VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
KINDS: Final = {
    1: FIXED32, 2: BYTES, 3: BYTES, 4: VARINT, 5: BYTES, 6: BYTES, 7: BYTES, 8: VARINT, 9: BYTES, 10: FIXED64,
    11: BYTES, 12: BYTES, 13: VARINT, 14: VARINT, 15: FIXED32,
}  # fmt: skip
"""Wire type of each field; field 13 is usually packed, as bytes."""
MORE, DELETED = 9, 13
MOST_LINKS, LAST_TIME = 32, 2**48 - 1
TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MOST_GROUPS = 64
"""Groups in each other; parsers refuse more than a hundred levels or so, and nobody writes any."""


class Field(NamedTuple):
    """A field as it is in the bytes: number, wire type, content (a number, or bytes), begin and end."""

    number: int
    kind: int
    content: int | bytes
    begin: int
    end: int


class Link(NamedTuple):
    """A link; None where a field that has to be there is not."""

    topic: bytes = b""
    topic_id: bytes = b""
    partition: int = 0
    output: bytes = b""
    shard: int | None = None
    offset: int | None = None
    leader_epoch: int | None = None
    ordinal: int | None = None
    of: int | None = None


@dataclass(frozen=True)
class Content:
    """The content of an envelope."""

    event_id: bytes = b""
    timestamp_ms: int = 0
    key: bytes | None = None
    type: str = ""
    payloads: tuple[bytes | None, ...] = ()
    lane: int = 0
    position: bytes = b""
    previous: bytes = b""
    chain: bytes = b""
    watermark_ms: int = 0
    of: int = 0


@dataclass(frozen=True)
class Verdict:
    """Whether it is an envelope.

    Attributes:
        content: its content; None: it is refused.
        refusals: names of errors; any of these would be right.
        strict: why a strict reader refuses what others take; a receiver asks that of the first message of a lane, without `order`.
        order: whether only the order of fields is wrong for a strict reader.
        links: of the chain, where a strict reader has nothing against it.
    """

    content: Content | None = None
    refusals: frozenset[str] = frozenset()
    strict: frozenset[str] = frozenset()
    order: bool = False
    links: tuple[Link, ...] = field(default=(), repr=False)


class Malformed(Exception):
    """Bytes that are no protobuf message."""


def judge(value: bytes | None) -> Verdict:
    """Whether a record's value is an envelope."""
    return _framed(value) or _content(value or b"", None, carried=False)


def judge_carried(value: bytes | None, headers: Sequence[bytes | None]) -> Verdict:
    """The same where the record may have headers `sqe-chain`, with these contents."""
    if (value is not None and value.startswith(PREFIX)) or not headers:
        return judge(value)
    if len(headers) > 1:
        return Verdict(refusals=frozenset({"MalformedField"}))
    return _framed(headers[0] or b"") or _content(headers[0] or b"", value, carried=True)


def _framed(value: bytes | None) -> Verdict | None:
    """Why the bytes are not whole and undamaged; None when they are."""
    if not value:
        wrong = "EmptyValue"
    elif not value.startswith(PREFIX):
        wrong = "TruncatedEnvelope" if PREFIX.startswith(value) else "NotAnEnvelope"
    elif value[-5] == SEAL_TAG and crc32(value) == RESIDUE:
        return None
    else:
        wrong = _damage(value)
    return Verdict(refusals=frozenset({wrong}))


def _damage(value: bytes) -> str:
    at = 0
    while at < len(value):
        try:
            one = _field(value, at)
        except IndexError:
            return "TruncatedEnvelope"
        except Malformed:
            return "WrongChecksum"
        if value[at] == SEAL_TAG:
            sound = crc32(value[: one.end - 4]) == one.content
            return "TrailingBytes" if sound else "WrongChecksum"
        at = one.end
    return "TruncatedEnvelope"


def number_at(data: bytes, at: int, most: int = 10) -> tuple[int, int]:
    """A varint, and where it ends. Raises Malformed when it is too long, IndexError when it is cut off."""
    number = data[at]
    if number < 0x80:
        return number, at + 1
    number = 0
    for index in range(most):
        byte = data[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    raise Malformed("a number is too long")


def _field(data: bytes, at: int, *, zero: bool = False) -> Field:
    """The field at a place. Raises IndexError when it is cut off, Malformed when nothing begins there."""
    tag, start = number_at(data, at)
    number, kind = tag >> 3, tag & 7
    if (number == 0 and not zero) or kind not in (VARINT, FIXED64, BYTES, FIXED32):
        raise Malformed("no field begins here")
    content: int | bytes
    if kind == VARINT:
        content, end = number_at(data, start)
        return Field(number, kind, content & (2**64 - 1), at, end)
    if kind == BYTES:
        size, start = number_at(data, start)
        end = start + size
        content = data[start:end]
    else:
        end = start + (8 if kind == FIXED64 else 4)
        content = int.from_bytes(data[start:end], "little")
    if end > len(data):
        raise IndexError(end)
    return Field(number, kind, content, at, end)


def fields_of(data: bytes) -> Iterator[Field]:
    """The fields of a protobuf message, as parsers see them; groups as one field. Raises Malformed."""
    at, length = 0, len(data)
    while at < length:
        tag = data[at]
        if (
            tag & 0x87 == BYTES and tag > BYTES and at + 1 < length and data[at + 1] < 0x80
        ):  # most are like this
            end = at + 2 + data[at + 1]
            if end > length:
                raise Malformed("it is cut off")
            yield Field(tag >> 3, BYTES, data[at + 2 : end], at, end)
            at = end
            continue
        try:
            one = _parsed(data, at, 0)
        except IndexError:
            raise Malformed("it is cut off") from None
        yield one
        at = one.end


def _parsed(data: bytes, at: int, depth: int) -> Field:
    tag, start = number_at(data, at, 5)
    if tag >> 32 or not (tag >> 3 or depth):  # within a group protobuf's C library lets it pass
        raise Malformed("no field has this number")
    if tag & 7 != GROUP:
        if tag & 7 == BYTES:
            number_at(data, start, 5)
        return _field(data, at, zero=depth > 0)
    if depth > _MOST_GROUPS:
        raise Malformed("too many groups in each other")
    end = start
    while True:
        tag_end, after = number_at(data, end, 5)
        if tag_end & 7 == GROUP_END:
            if tag_end >> 3 != tag >> 3:
                raise Malformed("another group ends")
            return Field(tag >> 3, GROUP, b"", at, after)
        end = _parsed(data, end, depth + 1).end


def signed(number: int) -> int:
    """A number of 64 bits in two's complement."""
    return number - 2**64 if number >> 63 else number


def _content(envelope: bytes, value: bytes | None, *, carried: bool) -> Verdict:  # noqa: C901 - field by field
    refused: list[str] = []
    try:
        found = list(fields_of(envelope))
    except Malformed:
        return Verdict(refusals=frozenset({"MalformedField"}))
    if found[-1].begin != len(envelope) - 5:  # another field holds the bytes of the checksum
        return Verdict(refusals=frozenset({"MalformedField"}))
    known: dict[int, int | bytes] = {}
    more: list[bytes] = []
    deleted: list[int] = []
    for one in found:
        if one.number == DELETED and one.kind == BYTES and isinstance(one.content, bytes):
            at = 0
            try:
                while at < len(one.content):
                    index, at = number_at(one.content, at)
                    deleted.append(index & (2**32 - 1))
            except (IndexError, Malformed):
                return Verdict(refusals=frozenset({"MalformedField"}))
        elif KINDS.get(one.number) != one.kind:
            continue  # of a later version, as protobuf has it
        elif one.number == DELETED and isinstance(one.content, int):
            deleted.append(one.content & (2**32 - 1))
        elif one.number == MORE and isinstance(one.content, bytes):
            more.append(one.content)
        else:
            if one.number in known:
                refused.append("MalformedField")
            known[one.number] = one.content
    if refused:
        return Verdict(refusals=frozenset(refused))
    return _checked(envelope, known, more, deleted, value, found, carried=carried)


def _checked(  # noqa: C901, PLR0912 - one rule after the other, as the format lists them
    envelope: bytes,
    known: dict[int, int | bytes],
    more: list[bytes],
    deleted: list[int],
    value: bytes | None,
    found: Sequence[Field],
    *,
    carried: bool,
) -> Verdict:
    def octets(number: int) -> bytes:
        content = known.get(number, b"")
        assert isinstance(content, bytes)
        return content

    def integer(number: int) -> int:
        content = known.get(number, 0)
        assert isinstance(content, int)
        return content

    refused = set[str]()
    chain, event_id, position, previous = octets(2), octets(3), octets(11), octets(12)
    lane, time_ms, watermark_ms = integer(10), signed(integer(4)), signed(integer(14))
    size, payload = integer(8) & (2**32 - 1), octets(7)
    try:
        name = octets(6).decode()
    except UnicodeDecodeError:
        return Verdict(refusals=frozenset({"MalformedField"}))
    if carried:
        if payload or size or more or (value is not None and deleted):
            refused.add("MalformedField")
        if value is None and not deleted:
            refused.add("EmptyValue")
        payload = value or b""
    if not name:
        refused.add("MissingField")
    if (size or 1) != 1 + len(more):
        refused.add("MalformedField")
    payloads: list[bytes | None] = [payload, *more]
    for index in deleted:
        if index >= len(payloads) or payloads[index]:
            refused.add("MalformedField")
        else:
            payloads[index] = None
    refused |= _identity(chain, event_id, lane, position, previous)
    of = 0
    if position and chain:
        if len(chain) < 5 or chain[-5] != 0x4D:
            refused.add("MissingField")
        else:
            of = int.from_bytes(chain[-4:], "little")
            if (
                int.from_bytes(position[:4]) > 2**31
                or int.from_bytes(position[4:12]) >= 2**63
                or int.from_bytes(position[-4:]) >= of
            ):
                refused.add("OutOfBounds")
    for at_ms in (time_ms, watermark_ms):
        if not -1 <= at_ms <= LAST_TIME:
            refused.add("OutOfBounds")
    if refused:
        return Verdict(refusals=frozenset(refused))
    identity = event_id or digest(16, lane.to_bytes(8, "little"), position)
    key = octets(5) if 5 in known else None
    content = Content(
        identity, time_ms, key, name, tuple(payloads), lane, position, previous, chain, watermark_ms, of
    )
    links, strict = _links(chain, lane, position, of)
    return Verdict(content, frozenset(), strict, not _ascending(found), links)


def _identity(chain: bytes, event_id: bytes, lane: int, position: bytes, previous: bytes) -> set[str]:
    """What is wrong about the fields that identify the message."""
    refused = set[str]()
    if position:
        links, rest = divmod(len(position) - 12, 4)
        if links > MOST_LINKS and not rest:
            refused.add("ChainTooLong")
        elif rest or links < 1 or links > MOST_LINKS:
            refused.add("MalformedField")
        if not chain or event_id or not lane:
            refused.add("InconsistentEnvelope")
    else:
        if chain:
            refused.add("MissingField")
        elif len(event_id) != 16:
            refused.add("MalformedField" if event_id else "MissingField")
        if lane:
            refused.add("InconsistentEnvelope")
    if previous and len(previous) != len(position):
        refused.add("InconsistentEnvelope")
    return refused


def _ascending(found: Sequence[Field]) -> bool:
    """Whether fields are in ascending order, each once except `more`."""
    last = 0
    for one in found:
        if one.kind == GROUP or one.number < last or (one.number == last and one.number != MORE):
            return False
        last = one.number
    return True


def links_in(chain: bytes) -> tuple[Link, ...]:
    """The links of a chain, not checked. Raises Malformed."""
    return tuple(
        _link(one.content)
        for one in fields_of(chain)
        if one.number == 1 and one.kind == BYTES and isinstance(one.content, bytes)
    )


_LINK: Final = {
    1: ("topic", BYTES), 2: ("topic_id", BYTES), 3: ("partition", VARINT), 4: ("output", BYTES), 5: ("shard", VARINT),
    6: ("offset", FIXED64), 7: ("leader_epoch", FIXED32), 8: ("ordinal", FIXED32), 9: ("of", FIXED32),
}  # fmt: skip


def _link(data: bytes) -> Link:
    found: dict[str, int | bytes] = {}
    for one in fields_of(data):
        name, kind = _LINK.get(one.number, ("", -1))
        if one.kind == kind:
            found[name] = (
                one.content & (2**32 - 1) if kind == VARINT and isinstance(one.content, int) else one.content
            )
    return Link(**found)  # type: ignore[arg-type] # kinds were compared


@lru_cache(4_096)
def _links(chain: bytes, lane: int, position: bytes, of: int) -> tuple[tuple[Link, ...], frozenset[str]]:
    """The links, and what a strict reader has against them."""
    try:
        links = links_in(chain)
        for link in links:
            link.topic.decode()
            link.output.decode()
    except (Malformed, UnicodeDecodeError):
        return (), frozenset({"MalformedField"})
    refused = set[str]()
    if len(links) > MOST_LINKS:
        refused.add("ChainTooLong")
    for link in links:
        if None in (link.offset, link.leader_epoch, link.ordinal, link.of):
            refused.add("MissingField")
        elif not _bounded(link):
            refused.add("OutOfBounds")
    if not refused and (
        lane_of(links) != lane or position_of(links) != position or (links and links[-1].of != of)
    ):
        refused.add("InconsistentEnvelope")
    return links, frozenset(refused)


def _bounded(link: Link) -> bool:
    topic = link.topic.decode()
    assert link.offset is not None
    assert link.leader_epoch is not None
    assert link.ordinal is not None
    assert link.of is not None
    return (
        TOPIC.fullmatch(topic) is not None
        and topic not in (".", "..")
        and len(link.topic_id) == 16
        and 1 <= len(link.output) <= 512
        and link.partition < 2**31
        and _marked(link)
        and link.offset < 2**63
        and link.leader_epoch <= 2**31
        and link.ordinal < link.of
    )


def _marked(link: Link) -> bool:
    """Whether revisions alone have the first bit of their shards."""
    revised = re.fullmatch(rb"[^/]+/[^/@]+@([2-9]|[1-9][0-9]{1,5})(/.*)?", link.output, re.DOTALL)
    return bool((link.shard or 0) >> 31) == bool(revised)


def shard_of(link: Link) -> int | None:
    """The state partition that published; None for none."""
    if link.shard is None or link.shard < 2**31:
        return link.shard
    return link.shard - 2**31 - 1 if link.shard > 2**31 else None


def digest(length: int, *fields: bytes) -> bytes:
    """BLAKE2b over fields, each after its length."""
    hashed = b"".join(len(one).to_bytes(4) + one for one in fields)
    return blake2b(hashed, digest_size=length).digest()


def lane_of(links: Sequence[Link], *, ids: bool = True) -> int:
    """The lane after these links; without the ids of topics after the root: the path."""
    lane = bytes(8)
    for index, link in enumerate(links):
        topic_id = link.topic_id if ids or index == 0 else b""
        lane = digest(8, lane, link.topic, topic_id, link.partition.to_bytes(4))
        shard = shard_of(link)
        lane = digest(8, lane, link.output, b"" if shard is None else shard.to_bytes(4))
    return int.from_bytes(lane, "little")


def position_of(links: Sequence[Link]) -> bytes:
    """The position after these links."""
    if not links:
        return b""
    root = (links[0].leader_epoch or 0).to_bytes(4) + (links[0].offset or 0).to_bytes(8)
    return root + b"".join((link.ordinal or 0).to_bytes(4) for link in links)
