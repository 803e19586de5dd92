"""The input that a unit comes from, and what a user's function may see of it.

KUKA advises "a class you can use as a streaming element", with topic, partition, offset and source topic chain at every
stage. `Context` is that class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final, Literal, NamedTuple, Self

from sqe_chain.chain import Chain, Coordinates, event_id
from sqe_chain.envelope.message import EnvelopeHead, parse_chain
from sqe_chain.errors import PoisonError
from sqe_chain.ports import Headers, Message

Clock = Literal["event", "batch"]
"""What a timer goes by: event time, or the batch's clock (`Context.now_ms`)."""

_NO_TIMERS: Final = (
    " is for the fold and the on_timer of an aggregate with timers: declare aggregate(..., on_timer=...)"
)


class TopicIdPartition(NamedTuple):
    """An input partition: topic, its 16-byte topic id, partition."""

    topic: str
    topic_id: bytes
    partition: int


class Carried(NamedTuple):
    """What is kept of an input through a shuffle, as far as operators after it need it.

    Attributes:
        stated_lane: the lane as its envelope states it.
        chain_bytes: its links so far.
        timestamp_ms: its time.
        key: its key.
        headers: its Kafka headers.
        event_id: its id, 16 bytes.
    """

    stated_lane: int = 0
    chain_bytes: bytes = b""
    timestamp_ms: int = -1
    key: bytes | None = None
    headers: Headers | None = None
    event_id: bytes = b""


class _OriginFields(NamedTuple):
    tp: TopicIdPartition
    offset: int
    epoch: int
    lane: int
    position: bytes
    head: EnvelopeHead | None
    message: Message | None
    carried: Carried | None = None
    order_ms: int = -1


class Origin(_OriginFields):
    """The input that units come from, passed along with them.

    One input may have several: what waited, or came through a shuffle, has another. `same_input` compares.

    A tuple, because one is made for every message (`new_origin` is the fast way to make it).

    Attributes:
        tp: topic, topic id and partition where it was read.
        offset: its offset.
        epoch: leader epoch plus one.
        lane: the lane that marks use; it includes the partition that the message was read from.
        position: its position on the lane.
        head: its envelope; None for a raw message, and after a shuffle.
        message: its record; None after a shuffle.
        carried: what was kept of it through a shuffle; before, None, or the event time that the source gave a raw message.
        order_ms: its place in the order of times: its event time, or a later one of an earlier input on its lane. In flows
            without stages that go by event time: -1.
    """

    __slots__ = ()
    # Of the class, so that a tuple without slots has it. `Due` has no `__slots__`: an object of it has a value of its
    # own.
    cause: str | None = None
    """What has caused the units, where no input has: see `Due`."""

    @property
    def order(self) -> tuple[str, int, int]:
        """Inputs are folded in this order: topic name, partition, offset."""
        return self.tp.topic, self.tp.partition, self.offset

    def same_input(self, other: Origin | None) -> bool:
        """Whether both are one input: read at one place of one topic."""
        return other is not None and self.offset == other.offset and self.tp == other.tp

    @property
    def stated(self) -> tuple[int, bytes, int]:
        """What envelopes made of it state of it: the lane, without the partition it was read from; chain and time, as below."""
        _, _, _, _, _, head, message, carried, _ = self
        if head is not None:
            return head.lane, head.chain, head.timestamp_ms
        if carried is not None:
            return carried[:3]
        return 0, b"", message.timestamp()[1] if message is not None else -1

    @property
    def chain_bytes(self) -> bytes:
        """The serialized links, as the envelope holds them; empty at the origin."""
        return self.stated[1]

    @property
    def timestamp_ms(self) -> int:
        """The event's time; a republished envelope keeps it."""
        return self.stated[2]

    @property
    def key(self) -> bytes | None:
        """The message's key."""
        if self.head is not None and self.head.HasField("key"):
            return self.head.key
        if self.message is not None:
            return self.message.key()
        return self.carried.key if self.carried is not None else None

    @property
    def headers(self) -> Headers | None:
        """The message's Kafka headers."""
        if self.message is not None:
            return self.message.headers()
        return self.carried.headers if self.carried is not None else None

    @property
    def event_id(self) -> bytes:
        """16 bytes; of a republished message derived from lane and position."""
        if self.carried is not None and self.message is None:
            return self.carried.event_id
        if self.head is None:
            return event_id(self.lane, self.position)
        return self.head.event_id or event_id(self.head.lane, self.position)

    def at(self, timestamp_ms: int) -> Origin:
        """The same input with another event time, for an input before any shuffle."""
        if self.head is None:
            return self._replace(carried=Carried(timestamp_ms=timestamp_ms))
        self.head.timestamp_ms = timestamp_ms  # the envelope belongs to this input alone
        return self

    def due(self, cause: str) -> Due:
        """The same input, of units that a window or a timer has caused, as this text names it."""
        origin = Due(self)
        origin.cause = cause
        return origin

    def __str__(self) -> str:
        return f"{self.tp.topic}[{self.tp.partition}]@{self.offset}"

    def pack(self, need: int) -> tuple[object, ...]:
        """The parts that a shuffle keeps beside topic, partition and offset, for a need of NOTHING (0), ENVELOPE (1) or CONTEXT (2)."""
        if need == 0:
            return ()
        tp, _, epoch, lane, position, _, _, _, order_ms = self
        common = (tp.topic_id, epoch, lane, position, order_ms, *self.stated)
        return common if need == 1 else (*common, self.key, self.headers, self.event_id)

    @classmethod
    def unpack(cls, topic: str, partition: int, offset: int, packed: tuple[Any, ...]) -> Origin:
        """Restore the input after the shuffle, from what `pack` returned."""
        topic_id, epoch, lane, position, order_ms = packed[:5] or (b"", 0, 0, b"", -1)
        tp, carried = _place(topic, topic_id, partition), Carried(*packed[5:])
        return new_origin((tp, offset, epoch, lane, position, None, None, carried, order_ms))


class Due(Origin):
    """An input under which units go out that it has not caused: a window closed, a timer fired, or a batch ended.

    It gives them their place, lane and time. If one of them fails, no input is to blame.
    """

    def __new__(cls, origin: Origin) -> Self:
        # A tuple of the nine fields already; the generated `__new__` would ask for each by itself.
        return tuple.__new__(cls, origin)


# A unit that comes out of a shuffle needs one, and a task has few input partitions.
_place: Final = lru_cache(4_096)(TopicIdPartition)
new_origin: Callable[
    [tuple[TopicIdPartition, int, int, int, bytes, EnvelopeHead | None, Message | None, Carried | None, int]],
    Origin,
] = partial(tuple.__new__, Origin)
"""Makes an `Origin` from a tuple of its fields, three times as fast as calling the class."""


class Context:
    """What a user's function may know of the input that a value comes from.

    Attributes:
        key: the unit's key at this node; None when it has none.
        now_ms: the batch's clock, milliseconds since 1970; the same in every attempt at a batch.
        state_deleted: whether `delete_state` was called.
    """

    __slots__ = ("_origin", "key", "now_ms", "state_deleted")

    def __init__(self, origin: Origin, key: bytes | None, now_ms: int) -> None:
        self._origin = origin
        self.key = key
        self.now_ms = now_ms
        self.state_deleted = False

    @property
    def topic(self) -> str:
        """Topic of the input."""
        return self._origin.tp.topic

    @property
    def partition(self) -> int:
        """Partition of the input."""
        return self._origin.tp.partition

    @property
    def offset(self) -> int:
        """Offset of the input."""
        return self._origin.offset

    @property
    def headers(self) -> Headers | None:
        """Kafka headers of the input; None when it has none."""
        return self._origin.headers

    @property
    def timestamp_ms(self) -> int:
        """The event's time, milliseconds since 1970."""
        return self._origin.timestamp_ms

    @property
    def event_id(self) -> bytes:
        """Id of the input, 16 bytes: the same in every replay."""
        return self._origin.event_id

    @property
    def chain(self) -> Chain:
        """The source topic chain of the input, root first; empty when nothing republished it."""
        return parse_chain(self._origin.chain_bytes)

    @property
    def root(self) -> Coordinates:
        """The message that caused all others; the input itself when its chain is empty."""
        link, origin = self.chain.root, self._origin
        at, offset, epoch = (
            (origin.tp, origin.offset, origin.epoch)
            if link is None
            else (link, link.offset, link.leader_epoch)
        )
        return Coordinates(
            topic=at.topic, topic_id=at.topic_id, partition=at.partition, offset=offset, leader_epoch=epoch
        )

    @property
    def lane(self) -> int:
        """The lane of the input; it includes the partition that the input was read from."""
        return self._origin.lane

    @property
    def position(self) -> bytes:
        """The position of the input on its lane."""
        return self._origin.position

    def delete_state(self) -> None:
        """In a fold: delete the key's state after this value."""
        self.state_deleted = True

    def set_timer(self, at_ms: int, name: str = "", clock: Clock = "event") -> None:
        """In the fold or the `on_timer` of an aggregate with `on_timer=`: set the key's timer of this name.

        By event time, it fires when that reaches it, before any value of that time or a later one is folded. Set for a
        time that event time has reached, it fires next.

        By the batch's clock (`now_ms`), it fires at the end of a batch whose clock has reached it, though nothing may have
        come. Each attempt at the batch fires the same timers.

        Args:
            at_ms: time, milliseconds since 1970; 0 to 2**48 - 1.
            name: for a key with several timers, up to 120 characters. One of the same name and clock is replaced.
            clock: "event" or "batch".

        Raises:
            PoisonError: it is called elsewhere, or with something else.
        """
        raise PoisonError(f"set_timer({at_ms!r}, {name!r}, {clock!r}){_NO_TIMERS}")

    def delete_timer(self, name: str = "", clock: Clock = "event") -> None:
        """In the same functions: delete the key's timer of this name, if there is one.

        Args:
            name: its name.
            clock: "event" or "batch".

        Raises:
            PoisonError: it is called elsewhere, or with something else.
        """
        raise PoisonError(f"delete_timer({name!r}, {clock!r}){_NO_TIMERS}")
