"""The idea: a message carries the coordinates of every message it came from.

A service that adds things up is wrong as soon as one message counts twice. Kafka delivers again
after every crash, and a service upstream that crashes *publishes* again, at new offsets. So the
offset of the message at hand proves nothing. The offset of the message that caused it does:

    robot.raw            robot.fastenings           line.totals
    partition 2    ──►   partition 0          ──►   ...
    offset 7             offset 31 (again: 34)

Both deliveries, 31 and 34, carry the same link: "robot.raw, partition 2, offset 7, made the first
of 2". Four words name the rest:

* A **link** is one message passed through: where it was read, and what was made of it.
* The **chain** is the links, root first.
* The **lane** is what all messages on one path have in common. It is where the message at hand was read,
  and every link without what changes from message to message: offset, leader epoch, ordinal and `of`.
  Order is kept along a lane, and nowhere else.
* The **position** is the place on the lane: the root's leader epoch and offset, then the ordinal of
  every link. All are big-endian, so comparing its bytes compares places:

    epoch + 1   offset              ordinal     ordinal
    00000001    0000000000000007    00000000    00000001

So a message is a replay if its position is not beyond the last one seen on its lane. To know it, only a
number and a few bytes are compared:

    >>> from dataclasses import replace
    >>> link = Link("robot.raw", bytes(16), 2, offset=7, output="standard/robot.fastenings", of=2)
    >>> first, second = Chain((link,)), Chain((replace(link, ordinal=1),))
    >>> first.lane() == second.lane(), first.position() < second.position()
    (True, True)

Source: the "source topic chain" of KUKA Connect. Theirs compared the root's offset alone. Lanes,
ordinals, leader epochs and topic ids make it exact for fan-out and for several writers into one topic.
So they do for topics that are truncated or created again.

**Leader epochs** are stored plus one everywhere in this library. 0 means that the record has none (old
message formats). `stored_epoch` makes one from what a client reports.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING

from sqe_chain.errors import ChainTooLong, OutOfBounds

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINKS = 32
"""Links in a chain; a loop of services ends here."""
MAX_TOPIC = 249
"""Characters of a topic name (Kafka's own limit)."""
MAX_OUTPUT = 512
"""Bytes of an output's name, in UTF-8."""
MAX_OFFSET = 2**63 - 1
MAX_PARTITION = 2**31 - 1
MAX_SHARD = 2**31 - 1
MAX_EPOCH = 2**31
"""Largest leader epoch, stored plus one."""
MAX_OF = 2**32 - 1
"""Envelopes made from one message by one output and shard; ordinals are below."""
TOPIC_ID_LENGTH = 16
ROOT_LENGTH = 12
"""Bytes at the start of a position, for the root: leader epoch (4), offset (8)."""
ORDINAL_LENGTH = 4
"""Bytes of a position for every link."""
MAX_POSITION_LENGTH = ROOT_LENGTH + ORDINAL_LENGTH * MAX_LINKS

_TOPIC = re.compile(rf"[a-zA-Z0-9._-]{{1,{MAX_TOPIC}}}")
_NO_TOPICS = frozenset((".", ".."))
_ROOT = Struct(">IQ")
_UINT32 = Struct(">I")
_LANES = 4_096
"""Lanes whose hashes are cached: a service meets the same few again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Where one message is stored in Kafka.

    Attributes:
        topic: name of the topic.
        topic_id: Kafka's UUID of it, 16 bytes: a topic created again is another topic.
        partition: partition number.
        offset: offset in the partition.
        leader_epoch: leader epoch of the record's batch plus one, 0 for none.
    """

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int = 0

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class Link:
    """One message passed through on the way, and what was made of it.

    Attributes:
        topic: topic it was read from.
        topic_id: Kafka's UUID of that topic, 16 bytes.
        partition: partition it was read from.
        offset: its offset.
        leader_epoch: leader epoch of its batch plus one, 0 for none.
        output: permanent name of what published, "flow/output".
        shard: the state partition that published; None for what no keyed stage precedes.
        ordinal: which of the envelopes made from it by this output and shard, from 0.
        of: how many those are.
    """

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int = 0
    output: str = ""
    shard: int | None = None
    ordinal: int = 0
    of: int = 1

    def __str__(self) -> str:
        """As error texts and `peek` show it."""
        shard = "" if self.shard is None else f"#{self.shard}"
        made = f"{self.output}{shard} {self.ordinal + 1}/{self.of}"
        return f"{self.topic}[{self.partition}]@{self.offset} > {made}"

    def to_json(self) -> dict[str, object]:
        """The link for programs: the id as hexadecimal digits, the leader epoch as clients report it (None: none)."""
        epoch = self.leader_epoch - 1 if self.leader_epoch else None
        return asdict(self) | {"topic_id": self.topic_id.hex(), "leader_epoch": epoch}


@dataclass(frozen=True, slots=True)
class Chain:
    """The links of one message, root first. Empty: nothing republished it yet.

    Raises:
        ChainTooLong: more than 32 links.
    """

    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is probably a loop of services."""
        if len(self.links) > MAX_LINKS:
            message = (
                f"a chain of {len(self.links)} links, at most {MAX_LINKS} are allowed: "
                "probably services republish in a loop; see which topics repeat in "
                f"{', '.join(link.topic for link in self.links[-MAX_LINKS:])}"
            )
            raise ChainTooLong(message)

    def __len__(self) -> int:
        return len(self.links)

    def __iter__(self) -> Iterator[Link]:
        return iter(self.links)

    def __str__(self) -> str:
        """The path of the message, one arrow per hop."""
        return " -> ".join(map(str, self.links)) or "(origin)"

    @property
    def root(self) -> Link | None:
        """The message that caused all others; None when the chain is empty (then it is its own root)."""
        return self.links[0] if self.links else None

    def append(self, link: Link) -> Chain:
        """The chain of a message made from this one: one link longer. Raises ChainTooLong."""
        return Chain((*self.links, link))

    def lane(self) -> int:
        """The lane as its writer states it: without the partition it is read from (see `read_lane`)."""
        lane = 0
        for link in self.links:
            inner = read_lane(lane, link.topic, link.topic_id, link.partition)
            lane = written_lane(inner, link.output, link.shard)
        return lane

    def position(self) -> bytes:
        """The place on the lane; b"" for an empty chain."""
        if not self.links:
            return b""
        position = root_position(self.links[0].leader_epoch, self.links[0].offset)
        for link in self.links:
            position = next_position(position, link.ordinal)
        return position


def b64(*fields: bytes) -> int:
    """BLAKE2b with 8 bytes of digest over the fields, each preceded by its length.

    Lengths are 4 bytes big-endian. The digest is read as an unsigned little-endian number, so that
    protobuf's fixed64 writes exactly the digest's bytes.

    >>> hex(b64(b"a", b"bc")) != hex(b64(b"ab", b"c"))
    True
    """
    return int.from_bytes(_digest(8, fields), "little")


@lru_cache(_LANES)
def read_lane(lane: int, topic: str, topic_id: bytes, partition: int) -> int:
    """The lane of a message as its reader sees it. Marks are kept per such lane.

    Args:
        lane: as stated by the writer; 0 for an empty chain and for messages without an envelope.
        topic: where the message was read.
        topic_id: its UUID, 16 bytes.
        partition: where the message was read.
    """
    return b64(lane.to_bytes(8, "little"), topic.encode(), topic_id, _UINT32.pack(partition))


@lru_cache(_LANES)
def written_lane(lane: int, output: str, shard: int | None) -> int:
    """The lane that a republished envelope states.

    Args:
        lane: the `read_lane` of its input.
        output: permanent name of the flow and its output.
        shard: the state partition that publishes, or None.
    """
    return b64(lane.to_bytes(8, "little"), output.encode(), b"" if shard is None else _UINT32.pack(shard))


def path_hash(chain: Chain, topic: str, topic_id: bytes, partition: int) -> int:
    """The lane as its reader sees it, without the ids of the topics after the root.

    Two lanes with the same path differ only in the id of a topic after the root: it was created again.
    Computed like the lane, with empty topic ids after the root.
    """
    path = 0
    for index, link in enumerate(chain):
        inner = read_lane(path, link.topic, b"" if index else link.topic_id, link.partition)
        path = written_lane(inner, link.output, link.shard)
    return read_lane(path, topic, b"" if chain else topic_id, partition)


def root_position(leader_epoch: int, offset: int) -> bytes:
    """The position of a message that is its own root: 12 bytes.

    Args:
        leader_epoch: of its batch, plus one; 0 for none.
        offset: its offset.

    >>> root_position(1, 7).hex()
    '000000010000000000000007'
    """
    return _ROOT.pack(leader_epoch, offset)


def next_position(position: bytes, ordinal: int) -> bytes:
    """The position of the ordinal-th envelope made from the message at a position."""
    return position + _UINT32.pack(ordinal)


def event_id(lane: int, position: bytes) -> bytes:
    """The id of a republished message, the same in every replay: 16 bytes.

    BLAKE2b with 16 bytes of digest over the stated lane and the position, hashed like `b64`.
    """
    return _digest(16, (lane.to_bytes(8, "little"), position))


def stored_epoch(leader_epoch: int | None) -> int:
    """What is stored for a leader epoch as clients report it: plus one; 0 for None and negatives."""
    return 0 if leader_epoch is None or leader_epoch < 0 else leader_epoch + 1


def check_link(link: Link) -> None:
    """Refuse a link outside the format's bounds.

    Raises:
        OutOfBounds: names the field, what was found and what is allowed.
    """
    if not _TOPIC.fullmatch(link.topic) or link.topic in _NO_TOPICS:
        allowed = f"1 to {MAX_TOPIC} letters, digits, '.', '_' or '-', but not '.' or '..'"
        _refuse(link, "topic", link.topic[:300], allowed)
    if len(link.topic_id) != TOPIC_ID_LENGTH:
        _refuse(link, "topic id", f"{len(link.topic_id)} bytes", f"{TOPIC_ID_LENGTH} bytes")
    if not 1 <= len(link.output.encode()) <= MAX_OUTPUT:
        _refuse(link, "output", f"{len(link.output.encode())} bytes", f"1 to {MAX_OUTPUT} bytes")
    bounds = (
        ("partition", link.partition, MAX_PARTITION),
        ("offset", link.offset, MAX_OFFSET),
        ("leader epoch", link.leader_epoch, MAX_EPOCH),
        ("shard", link.shard or 0, MAX_SHARD),
        ("of", link.of, MAX_OF),
        ("ordinal", link.ordinal, link.of - 1),
    )
    for field, value, largest in bounds:
        if not 0 <= value <= largest:
            _refuse(link, field, value, f"0 to {largest}")


def _refuse(link: Link, field: str, value: object, allowed: str) -> None:
    raise OutOfBounds(
        f"{field} of a link is {value!r}, allowed is {allowed}: "
        f"the writer of output {link.output[:MAX_OUTPUT]!r} does not follow the format"
    )


def _digest(length: int, fields: tuple[bytes, ...]) -> bytes:
    return blake2b(
        b"".join(part for field in fields for part in (_UINT32.pack(len(field)), field)), digest_size=length
    ).digest()
