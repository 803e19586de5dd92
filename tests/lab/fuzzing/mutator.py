"""Inputs made of others: by the structure of envelopes, where almost all bytes have to be right, and by bytes alone.

Everything is drawn from the generator that is passed in.
"""

from __future__ import annotations

from random import Random
from typing import Final
from zlib import crc32

from tests.lab.fuzzing import reference
from tests.lab.fuzzing.records import MOST_RECORDS, Record, Script, from_bytes, to_bytes
from tests.lab.fuzzing.reference import (
    BYTES,
    DELETED,
    FIXED32,
    FIXED64,
    GROUP,
    MORE,
    VARINT,
    Field,
    Malformed,
)

TYPE: Final = b"google.protobuf.StringValue"
NUMBERS: Final = (
    0, 1, 2, 3, 5, 127, 128, 255, 16383, 16384, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48 - 1, 2**48, 2**63 - 1, 2**63,
    2**64 - 1, 2**64 - 2,
)  # fmt: skip
SIZES: Final = (0, 1, 4, 5, 11, 12, 15, 16, 17, 20, 24, 28, 127, 128, 140, 144, 512, 513, 16384)
TYPES: Final = (
    TYPE,
    b"",
    b"google.protobuf.BytesValue",
    b"json:",
    b"\xff",
    TYPE + b"\xc3\xa9",
    b"\xed\xa0\x80",
)
OUTPUTS: Final = (
    (b"up/words", None),
    (b"up/words", 0),
    (b"up/words", 3),
    (b"up/words@2", 2**31),
    (b"up/words@2", 2**31 + 1),
    (b"up/words@2/released.9f", 2**31),
)
"""Outputs, the last ones of revisions, and what their links have as a shard."""
TOPICS: Final = (b"raw", b"lines", b"..", b"", b"\xff", b"t" * 249, b"t" * 250, b"a b")


def mutated(data: bytes, most: int, random: Random) -> bytes:  # noqa: C901 - one change after the other
    """Another input of at most `most` bytes."""
    if random.random() < 0.03:
        return _bytes(random, data)[:most]
    script = from_bytes(data)
    if random.random() < 0.2 or not script.records:
        script.setting = random.randrange(16)
    if not script.records or random.random() < 0.1:
        script.records = written(random)
    records = script.records
    # Long blocks cost little more than short ones, for columns are looked at all at once.
    records += [random.choice(records) for _ in range(random.choice((0, 24, 48)) - len(records))]
    records[:] = [Record(one.data, one.chains) for one in records]
    for number, record in enumerate(records):
        if random.random() < 0.7:
            other = records[random.randrange(len(records))]
            try:
                records[number] = changed(random, record, other)
            except Malformed:
                records[number] = Record(_bytes(random, record.data or b"x"))
    if random.random() < 0.2:
        _reordered(random, records)
    for number, record in enumerate(records):
        record.at = number
    while len(found := to_bytes(Script(script.setting, records))) > most:
        del records[len(records) // 2 :]
        if not records:
            return found[:most]
    return found


def written(random: Random) -> list[Record]:
    """What sound writers publish: an origin, and republishers with chains of one to 32 links."""
    lanes = [_lane(random) for _ in range(random.randrange(1, 4))]
    at, previous, records = [0] * len(lanes), [b""] * len(lanes), list[Record]()
    for _ in range(random.choice((1, 8, 40, MOST_RECORDS, MOST_RECORDS))):
        who = random.randrange(len(lanes) + 1)
        if who == len(lanes):
            records.append(Record(sealed(_fields(random, event_id=random.randbytes(16)))))
            continue
        links = [
            link._replace(offset=at[who] + 5) if not number else link
            for number, link in enumerate(lanes[who])
        ]
        position = reference.position_of(links)
        fields = _fields(random, links=links, previous=previous[who] if random.random() < 0.5 else b"")
        records.append(Record(sealed(fields)))
        previous[who] = position
        at[who] += random.choice((0, 1, 1, 1, 2))
    if random.random() < 0.3:
        records = [carried(record) for record in records]
    return records


def _lane(random: Random) -> tuple[reference.Link, ...]:
    count = random.choice((1, 1, 1, 1, 1, 1, 2, 2, 3, 32))
    names = [random.choice(OUTPUTS) for _ in range(count)]
    return tuple(
        reference.Link(
            random.choice((b"raw", b"lines")), bytes([random.randrange(3)]) * 16, random.randrange(3), output, shard,
            random.randrange(9), random.randrange(3), 0, random.choice((1, 2)),
        )
        for output, shard in names
    )  # fmt: skip


def _fields(
    random: Random, *, event_id: bytes = b"", links: list[reference.Link] | None = None, previous: bytes = b""
) -> list[Field]:
    parts: list[tuple[int, int, int | bytes]] = [(1, FIXED32, 0xFF455153)]
    if links:
        parts.append((2, BYTES, b"".join(field_of(1, BYTES, _link(link)) for link in links)))
    parts += [(3, BYTES, event_id)] if event_id else []
    parts.append((4, VARINT, random.choice((5, 1_700_000_000_000))))
    if random.random() < 0.7:
        parts.append((5, BYTES, random.choice((b"", b"k", b"key" * 60))))
    parts += [(6, BYTES, TYPE), (7, BYTES, random.choice((b"\n\x01a", b"\n\x01b", b"x" * 200)))]
    if random.random() < 0.15:
        extra = [b"\n\x01c"] * random.randrange(1, 3)
        parts += [(8, VARINT, 1 + len(extra)), *((MORE, BYTES, one) for one in extra)]
    if links:
        parts += [(10, FIXED64, reference.lane_of(links)), (11, BYTES, reference.position_of(links))]
        parts += [(12, BYTES, previous)] if previous else []
    if random.random() < 0.2:
        parts.append((14, VARINT, random.choice((1, 1_700_000_000_000))))
    return [Field(number, kind, content, 0, 0) for number, kind, content in parts]


def _link(link: reference.Link) -> bytes:
    parts = [field_of(1, BYTES, link.topic), field_of(2, BYTES, link.topic_id)]
    parts += [field_of(3, VARINT, link.partition)] if link.partition else []
    parts.append(field_of(4, BYTES, link.output))
    parts += [] if link.shard is None else [field_of(5, VARINT, link.shard)]
    parts += [field_of(6, FIXED64, link.offset or 0), field_of(7, FIXED32, link.leader_epoch or 0)]
    parts += [field_of(8, FIXED32, link.ordinal or 0), field_of(9, FIXED32, link.of or 0)]
    return b"".join(parts)


def varint(number: int, longer: int = 0) -> bytes:
    """A varint; by `longer` bytes longer than it has to be."""
    number &= 2**64 - 1
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    for _ in range(longer):
        found[-1] |= 0x80
        found.append(0)
    return bytes(found)


def field_of(number: int, kind: int, content: int | bytes, longer: tuple[int, int] = (0, 0)) -> bytes:
    """A field; its tag, and its size or number, by `longer` bytes longer than they have to be."""
    tag = varint(number << 3 | kind, longer[0])
    if isinstance(content, bytes):
        if kind == GROUP:
            return tag + content + varint(number << 3 | GROUP + 1)
        return tag + varint(len(content), longer[1]) + content
    if kind == VARINT:
        return tag + varint(content, longer[1])
    size = 8 if kind == FIXED64 else 4
    return tag + (content & (1 << 8 * size) - 1).to_bytes(size, "little")


def sealed(fields: list[Field], longer: tuple[int, int, int] = (-1, 0, 0)) -> bytes:
    """An envelope of these fields, and its checksum; one of the fields is longer than it has to be."""
    body = b"".join(
        field_of(one.number, one.kind, one.content, longer[1:] if at == longer[0] else (0, 0))
        for at, one in enumerate(fields)
    )
    body += b"\x7d"
    return body + crc32(body).to_bytes(4, "little")


def swallowing(fields: list[Field]) -> bytes:
    """The bytes of an envelope whose last field before the checksum has a size that includes it."""
    *others, last = fields
    assert isinstance(last.content, bytes)
    body = b"".join(field_of(other.number, other.kind, other.content) for other in others)
    body += varint(last.number << 3 | BYTES) + varint(len(last.content) + 5) + last.content + b"\x7d"
    return body + crc32(body).to_bytes(4, "little")


def carried(record: Record) -> Record:
    """The record with its chain in headers, if that can be."""
    value = record.data or b""
    fields = [field for field in reference.fields_of(value) if field.number != 15]
    payload = [one.content for one in fields if one.number == 7 and isinstance(one.content, bytes)]
    kept = [one for one in fields if one.number != 7]
    data = payload[0] if payload else None if any(one.number == DELETED for one in fields) else b""
    return Record(data, (sealed(kept),))


def changed(random: Random, record: Record, other: Record) -> Record:
    """The record with one thing changed, or a few. Raises Malformed where there is nothing to be parsed."""
    if random.random() < 0.04:
        return _moved(random, record)
    value = (record.chains[0] if record.chains else record.data) or b""
    if random.random() < 0.06:
        found = _bytes(random, value)
    else:
        fields = [field for field in reference.fields_of(value) if field.number != 15]
        theirs = (other.chains[0] if other.chains else other.data) or b""
        longer = (-1, 0, 0)
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            fields = _altered(random, fields, theirs)
        if random.random() < 0.1 and fields:
            longer = (random.randrange(len(fields)), random.randrange(2), random.choice((0, 1, 1, 2, 8)))
        ends = random.random() < 0.02 and bool(fields) and fields[-1].kind == BYTES
        found = swallowing(fields) if ends else sealed(fields, longer)
        if random.random() < 0.04:
            found = _broken(random, found)
    if record.chains:
        return Record(record.data, (found, *record.chains[1:]))
    return Record(found)


def _moved(random: Random, record: Record) -> Record:
    """The chain elsewhere, twice, or nowhere."""
    way = random.randrange(6)
    if way == 0:
        return carried(record)
    if way == 1 and record.chains:
        return Record(record.data, (*record.chains[:1], random.choice((None, b"", record.chains[0]))))
    if way == 2:
        return Record(None, record.chains)
    if way == 3:
        return Record(random.choice((b"", b"\x0dSQE\xffx", b"plain")), record.chains)
    if way == 4:
        return Record(record.data, random.choice(((None,), (b"",), (b"\x0dSQ",))))
    return Record(record.chains[0] if record.chains else None)


def _altered(random: Random, fields: list[Field], theirs: bytes) -> list[Field]:
    """Fields with one of them changed, added or removed."""
    if not fields:
        return [Field(1, FIXED32, 0xFF455153, 0, 0)]
    at = random.randrange(len(fields))
    one, found, way = fields[at], list(fields), random.randrange(13)
    if way == 0:
        del found[at]
    elif way == 1:
        found.insert(random.randrange(at, len(found)) + 1, one)
    elif way == 2:
        to = random.randrange(len(found))
        found[at], found[to] = found[to], found[at]
    elif way == 3:
        added = _added(random)
        found.insert(random.choice((len(found), _place(found, added.number))), added)
    elif way == 4:
        found[at] = one._replace(
            number=random.choice((one.number, 2, 3, 9, 12, 13, 16, 2**29 - 1)),
            kind=random.choice((0, 1, 2, 5)),
        )
        found[at] = _of_its_kind(random, found[at])
    elif way == 5:
        theirs_fields = [each for each in reference.fields_of(theirs) if each.number != 15]
        if theirs_fields:
            other = random.choice(theirs_fields)
            found = [each for each in found if each.number != other.number]
            found.insert(_place(found, other.number), other)
    elif way in (6, 7) and any(each.number == 2 for each in found):
        found = _another_chain(random, found)
    else:
        found[at] = _of_its_kind(random, one)
    return found


def _place(fields: list[Field], number: int) -> int:
    return next((at for at, one in enumerate(fields) if one.number > number), len(fields))


def _added(random: Random) -> Field:
    number = random.choice((4, 5, 8, MORE, 12, DELETED, DELETED, 14, 16, 99))
    if number == DELETED:
        if random.random() < 0.5:
            return Field(number, VARINT, random.choice((0, 0, 1, 2**32)), 0, 0)
        return Field(
            number, BYTES, random.choice((b"", b"\x00", b"\x00\x01", b"\x01", b"\x80\x00", b"\x80")), 0, 0
        )
    if number in (MORE, 5, 12):
        return Field(number, BYTES, random.choice((b"", b"\n\x01d", bytes(12), bytes(16))), 0, 0)
    if number == 99 and random.random() < 0.5:
        return Field(number, GROUP, random.choice((b"", b"\x08\x01", b"\x1a\x01x", b"\x0b\x0c")), 0, 0)
    return Field(number, VARINT, random.choice(NUMBERS), 0, 0)


def _of_its_kind(random: Random, one: Field) -> Field:  # noqa: PLR0911 - one way each
    """A field with another content of its wire type."""
    if one.kind in (VARINT, FIXED64, FIXED32):
        before = one.content if isinstance(one.content, int) else 0
        return one._replace(
            content=random.choice((*NUMBERS, before + 1, before - 1, before ^ 1 << random.randrange(64)))
            % 2**64
        )
    content = one.content if isinstance(one.content, bytes) else b""
    if one.number == 6 and random.random() < 0.7:
        return one._replace(content=random.choice(TYPES))
    way = random.randrange(6)
    if way == 0:
        return one._replace(content=content[: random.randrange(len(content) + 1)])
    if way == 1:
        size = random.choice(SIZES)
        return one._replace(content=(content + bytes(size))[:size])
    if way == 2 and content:
        return one._replace(content=_bytes(random, content))
    if way == 3 and len(content) >= 4:  # the last number of a position
        return one._replace(content=content[:-4] + random.choice((0, 1, 2, 9, 2**32 - 1)).to_bytes(4))
    if way == 4 and len(content) >= 12:  # its root
        epoch, offset = random.choice((0, 1, 2**31, 2**31 + 1)), random.choice((0, 7, 2**63 - 1, 2**63))
        return one._replace(content=epoch.to_bytes(4) + offset.to_bytes(8) + content[12:])
    return one._replace(content=random.choice((b"", b"x", b"\n\x01e", random.randbytes(16))))


def _another_chain(random: Random, fields: list[Field]) -> list[Field]:
    """The chain with a link changed; often lane and position that fit it, so that nothing else is wrong."""
    at = next(index for index, one in enumerate(fields) if one.number == 2)
    chain = fields[at].content
    if not isinstance(chain, bytes):
        return fields
    parts = [field.content for field in reference.fields_of(chain) if isinstance(field.content, bytes)]
    if not parts:
        return fields
    which = random.randrange(len(parts))
    link = list(reference.fields_of(parts[which]))
    way = random.randrange(5)
    if way == 0:
        parts.insert(which, parts[which])
    elif way == 1 and len(parts) > 1:
        del parts[which]
    elif way == 2 and link:
        parts[which] = b"".join(
            field_of(*one[:3]) for one in link if one is not link[-1] or random.random() < 0.5
        )
    elif link:
        index = random.randrange(len(link))
        one = link[index]
        link[index] = (
            one._replace(content=random.choice(TOPICS)) if one.number == 1 else _of_its_kind(random, one)
        )
        parts[which] = b"".join(field_of(*one[:3]) for one in link)
    found = list(fields)
    found[at] = fields[at]._replace(content=b"".join(field_of(1, BYTES, part) for part in parts))
    if random.random() < 0.8:
        try:
            links = reference.links_in(b"".join(field_of(1, BYTES, part) for part in parts))
            lane, position = reference.lane_of(links), reference.position_of(links)
        except (Malformed, OverflowError):
            return found
        fitting: dict[int, int | bytes] = {10: lane, 11: position}
        found = [one._replace(content=fitting.get(one.number, one.content)) for one in found]
    return found


def _broken(random: Random, value: bytes) -> bytes:
    """Cut off, longer, or damaged after it was sealed."""
    way = random.randrange(3)
    if way == 0:
        return value[: random.randrange(len(value))]
    if way == 1:
        return value + random.choice((b"x", b"\x00" * 5, value))
    return _bytes(random, value)


def _bytes(random: Random, data: bytes) -> bytes:
    """Any bytes changed."""
    found = bytearray(data or b"\x00")
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(found))
        way = random.randrange(4)
        if way == 0:
            found[at] ^= 1 << random.randrange(8)
        elif way == 1:
            found[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif way == 2:
            found[at:at] = random.randbytes(random.randrange(1, 5))
        else:
            del found[at : at + random.randrange(1, 9)]
            found = found or bytearray(b"\x00")
    return bytes(found)


def _reordered(random: Random, records: list[Record]) -> None:
    at, to = random.randrange(len(records)), random.randrange(len(records))
    way = random.randrange(3)
    if way == 0:
        records[at], records[to] = records[to], records[at]
    elif way == 1 and len(records) < MOST_RECORDS:
        one = records[at]
        records.insert(to, Record(one.data, one.chains))
    elif len(records) > 1:
        del records[at]
