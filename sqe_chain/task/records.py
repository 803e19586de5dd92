"""The records of a block on their way into the flow: which of them are taken, what failed, and their origins, made when asked for.

`Records` is the block, `Deciding` the rule of marks: for runs of ordinary records at once, for all others one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from sqe_chain.chain import root_position, stored_epoch
from sqe_chain.envelope.carrier import find_head, is_chained
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.message import EnvelopeHead, check_timestamp, payloads_of
from sqe_chain.errors import EmptyValue, EnvelopeError, ServiceStopped, WrongPayloadType
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import Origin, TopicIdPartition, new_origin
from sqe_chain.flow.functions import functions_in
from sqe_chain.flow.nodes import SourceNode
from sqe_chain.flow.units import number as path_element
from sqe_chain.ports import Message
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.inputs import BlockInputs, Given, Inputs, stretches
from sqe_chain.task.reached import wants_key

if TYPE_CHECKING:
    from sqe_chain.envelope.block import Block

_FIRST: Final = path_element(0)
# Both numbers change the cost alone: `tests/lab/fuzzing` compares all ways of deciding, record by record.
WORTHWHILE = 20
"""Records of a block; for fewer of them columns cost more than they save."""
WORTHWHILE_RUN = 50
"""Records that are decided about as a run; for fewer of them it costs more than it saves."""


class Records:
    """The records of one block of one input partition. A record's number is its index in the block.

    `Deciding.decide` fills it; what is empty before is so of records about which nothing is decided yet.

    Attributes:
        messages: the records; never changed.
        block: the same by columns; None: they are looked at one by one.
        heads: number -> envelope (None where there is none), of records that were looked at without columns, or whose run marks
            refused. Of all others `head` parses it when it is asked for.
        inputs: of each payload that is taken, the number of its record; ascending. A record of several payloads comes several times.
            Invariant: `inputs`, `payloads`, `keys` and `paths` have one entry for each payload.
        payloads: the payloads.
        keys: the keys of their records; None also where no operator asks for keys.
        paths: their paths.
        closely: numbers of records that were looked at by themselves. Columns may be wrong about them, so they go by their origins.
        failures: number -> why the record is skipped. Grows until the block is worked through. Its
            payloads may still be among `inputs`.
        trial: number -> why a record is retried alone: stages try it and take it back. Its payloads stay in `inputs`.
        given_ms: number -> the event time that the source's function gave; empty where it has none.
        orders_ms: number -> place in the order of times. Empty in flows without stages that go by event time; else it has
            all records of the block, before any of them is decided about.
    """

    __slots__ = (
        "_origins",
        "_read_lane",
        "_tp",
        "block",
        "closely",
        "failures",
        "given_ms",
        "heads",
        "inputs",
        "keys",
        "messages",
        "orders_ms",
        "paths",
        "payloads",
        "trial",
    )

    def __init__(
        self,
        tp: TopicIdPartition,
        messages: Sequence[Message],
        block: Block | None,
        read_lane: Callable[[int], int],
    ) -> None:
        self._tp, self._read_lane = tp, read_lane
        self.messages, self.block = messages, block
        self.heads: dict[int, EnvelopeHead | None] = {}
        self.inputs: list[int] = []
        self.payloads: list[Any] = []
        self.keys: list[bytes | None] = []
        self.paths: list[bytes] = []
        self.closely = set[int]()
        self.failures: dict[int, Exception | Exclusion] = {}
        self.trial: dict[int, Exclusion] = {}
        self.given_ms: dict[int, int] = {}
        self.orders_ms: dict[int, int] = {}
        # Made when asked for. `give_time` and `place` take out what they change, or stages would get the old time.
        self._origins: dict[int, Origin] = {}

    @property
    def size(self) -> int:
        """Bytes of all values."""
        if self.block is not None:
            return self.block.size
        return sum([len(message.value() or b"") for message in self.messages])

    def head(self, number: int) -> EnvelopeHead | None:
        """The envelope of a record; None if it has none."""
        if number in self.heads or self.block is None:
            return self.heads.get(number)
        return self.block.head(number)

    def origin(self, number: int) -> Origin:
        """The origin of a record: the same object each time, until `place` has been called."""
        origin = self._origins.get(number)
        if origin is None:
            message, head = self.messages[number], self.head(number)
            offset, epoch = message.offset(), stored_epoch(message.leader_epoch())
            lane, position = (0, b"") if head is None else (head.lane, head.position)
            position = position or root_position(epoch, offset)
            order_ms = self.orders_ms.get(number, -1)
            origin = new_origin(
                (self._tp, offset, epoch, self._read_lane(lane), position, head, message, None, order_ms)
            )
            if number in self.given_ms:
                origin = origin.at(self.given_ms[number])
            self._origins[number] = origin
        return origin

    def inputs_of(self, numbers: Sequence[int]) -> Given:
        """Inputs of what some records gave: those that columns are right for together, all others by their origins.

        Args:
            numbers: of each thing, the number of its record; those of one record follow each other.
        """
        # Columns have the time of the envelope or record. Where a function of the user gave another one, they are wrong.
        apart = self.closely | self.given_ms.keys()
        given: Given = []
        for begin, end, is_apart in stretches(numbers, apart):
            own = numbers[begin:end]
            if is_apart or self.block is None:
                given.append((begin, end, *Inputs.numbered(own, self.origin)))
            else:
                block = BlockInputs(self._tp, self.block, self._read_lane, self.orders_ms)
                given.append((begin, end, own, block))
        return given

    def unreadable(self, number: int, epoch: int) -> None:
        """Note a record whose envelope cannot be read, so that nobody knows its lane."""
        message = self.messages[number]
        self._origins[number] = Origin(self._tp, message.offset(), epoch, 0, b"", None, message)

    def give_time(self, number: int, timestamp_ms: int) -> None:
        """Give a record the event time that the source's function has found."""
        self.given_ms[number] = timestamp_ms
        self._origins.pop(number, None)

    def place(self, orders_ms: dict[int, int]) -> None:
        """Set where records belong in the order of times."""
        self.orders_ms = orders_ms
        self._origins.clear()

    def times_of(self, numbers: Sequence[int]) -> list[int]:
        """Event times of some records."""
        closely = self.closely | self.given_ms.keys()
        if self.block is None:
            return [self.origin(number).timestamp_ms for number in numbers]
        times_ms: list[int] = self.block.times_ms.tolist()
        return [
            self.origin(number).timestamp_ms if number in closely else times_ms[number] for number in numbers
        ]

    def places_of(self, numbers: Sequence[int]) -> list[tuple[int, bytes]]:
        """Lane and position of some records."""
        if self.block is None or not self.closely.isdisjoint(numbers):
            origins = map(self.origin, numbers)
            return [(origin.lane, origin.position) for origin in origins]
        at = self.block.indexes(numbers)
        lanes = map(self._read_lane, self.block.lanes[at].tolist())
        return list(zip(lanes, self.block.positions(at), strict=True))

    def take_run(self, begin: int, end: int, payloads: Sequence[bytes], keys: Sequence[bytes | None]) -> None:
        """Take a run of ordinary records."""
        self.inputs += range(begin, end)
        self.paths += [_FIRST] * (end - begin)
        self.payloads += payloads
        self.keys += keys

    def forget(self, numbers: Collection[int]) -> None:
        """Forget the payloads of some records, which have failed."""
        kept = [index for index, number in enumerate(self.inputs) if number not in numbers]
        self.inputs = [self.inputs[index] for index in kept]
        self.payloads = [self.payloads[index] for index in kept]
        self.keys = [self.keys[index] for index in kept]
        self.paths = [self.paths[index] for index in kept]


class Deciding:
    """Decides about the records of one input partition.

    Attributes:
        marks: of the partition; they move.

    Args:
        flow: the flow.
        node: the source.
        tp: the partition.
        marks: of the partition; they move.
        skipped: offset -> why a record is skipped, known before this attempt.
        retried_alone: those are retried alone.
        read_lane: lane as envelopes state it -> the lane that marks use.
        released: the records have waited: marks know them since they were read.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        node: SourceNode,
        tp: TopicIdPartition,
        marks: PartitionMarks,
        skipped: Mapping[int, Exclusion],
        read_lane: Callable[[int], int],
        *,
        retried_alone: bool,
        released: bool = False,
    ) -> None:
        self._node, self._tp, self.marks = node, tp, marks
        self._undecodable_offset = marks.undecodable_offset
        self._skipped, self._read_lane, self._trial = skipped, read_lane, retried_alone
        self._released = released
        self._flow = flow
        self._codec = flow.codec_of[tp.topic]

    @cached_property
    def _wants_key(self) -> bool:
        own = any(
            function.takes_context for function in functions_in(self._node)
        )  # decoder and time see the key, too
        read = self._codec is not None and self._codec.wants_key
        return own or read or wants_key(self._flow, self._flow.children[self._node.index])

    def records_of(self, messages: Sequence[Message]) -> Records:
        """A block, by columns if it is long enough."""
        node, block = self._node, None
        if len(messages) >= WORTHWHILE and has_columns() and not self._released:
            from sqe_chain.envelope.block import EnvelopeBlock, RawBlock  # noqa: PLC0415 - needs numpy

            codec = self._codec
            type_name = codec.type_name.encode() if codec is not None else None
            block = RawBlock(messages) if node.raw else EnvelopeBlock(messages, type_name)
        return Records(self._tp, messages, block, self._read_lane)

    def head_of(self, records: Records, number: int) -> EnvelopeHead | None:
        """The envelope of a record about which nothing is decided yet; None if it has none.

        Raises:
            EnvelopeError: it cannot be read.
        """
        message = records.messages[number]
        if self._node.raw or (message.value() is None and not is_chained(message)):
            return None
        if records.block is not None and records.block.ordinary[number]:
            return records.block.head(number)
        return find_head(message.value(), message.headers())

    def has_taken(self, records: Records, number: int) -> bool:
        """Whether a record, which is read again, was taken before, or skipped unread."""
        message = records.messages[number]
        try:
            head = None if self._node.raw else self.head_of(records, number)
            return self.marks.has(head, message.offset(), stored_epoch(message.leader_epoch()))
        except EnvelopeError:
            # Its lane cannot be read, so its place in the partition is all that there is to compare.
            return message.offset() <= self._undecodable_offset

    def decide(self, records: Records) -> int:
        """Decide about each record, in order: it is taken, or a replay, or skipped.

        Returns:
            How many were replays.
        """
        replays = begin = 0
        if records.block is None:
            for number in range(len(records.messages)):
                replays += self._decide_closely(records, number)
            return replays
        special: list[int] = (~records.block.ordinary).nonzero()[0].tolist()
        if self._skipped:
            known = {
                number for number, message in enumerate(records.messages) if message.offset() in self._skipped
            }
            special = sorted(known.union(special))
        # Stretches of ordinary records, each ended by a special one; the last one ends with the block.
        for end in (*special, len(records.messages)):
            if end > begin:
                replays += self._decide_ordinary(records, records.block, begin, end)
            if end < len(records.messages):
                replays += self._decide_closely(records, end)
            begin = end + 1
        return replays

    def _decide_ordinary(self, records: Records, block: Block, begin: int, end: int) -> int:
        """Ordinary records: as a run if the marks allow that, else one by one."""
        if end - begin >= WORTHWHILE_RUN:
            from sqe_chain.envelope.runs import accept_run  # noqa: PLC0415 - needs numpy

            # All of them or none: where one record of the run is not plainly new, marks are as before, and each
            # decides alone.
            if accept_run(self.marks, block, begin, end):
                self._take_run(records, block, begin, end)
                return 0
        marks, replays = self.marks, 0
        since = begin
        for number in range(begin, end):
            message, head = records.messages[number], block.head(number)
            records.heads[number] = head
            offset, epoch = message.offset(), stored_epoch(message.leader_epoch())
            try:
                fresh = marks.accept_raw(offset, epoch) if head is None else marks.accept(head, offset, epoch)
            except EnvelopeError as error:
                self._take_run(records, block, since, number)
                self._unreadable(records, number, epoch, error)
                since = number + 1
                continue
            except ServiceStopped:
                self._take_run(
                    records, block, since, number
                )  # what lies before it is worked through, and may fail
                raise
            if not fresh:
                replays += 1
                self._take_run(records, block, since, number)
                since = number + 1
        self._take_run(records, block, since, end)
        return replays

    def _take_run(self, records: Records, block: Block, begin: int, end: int) -> None:
        if begin < end:
            keys = block.keys(begin, end) if self._wants_key else [None] * (end - begin)
            records.take_run(begin, end, block.payloads(begin, end), keys)

    def _decide_closely(self, records: Records, number: int) -> int:
        """A record about which something may be out of the ordinary. Returns 1 for a replay, else 0."""
        node, message = self._node, records.messages[number]
        value, offset, epoch = message.value(), message.offset(), stored_epoch(message.leader_epoch())
        headers, chained = message.headers(), is_chained(message)
        if value is None and not chained and node.nulls == "skip":
            return 0
        head = None
        if node.raw or (value is None and not chained and node.nulls == "decode"):
            if chained:
                raise ServiceStopped(
                    f"{self._tp.topic}[{self._tp.partition}]@{offset}: an envelope, or a chain in headers, on a topic "
                    "that was declared raw. Its chain would be lost. Declare the source without raw=True"
                )
            # Marks have known a released record since it was first read, and would take it for a replay.
            fresh = self._released or self.marks.accept_raw(offset, epoch)
        else:
            try:
                head = records.heads.get(number) or find_head(value, headers)
                fresh = self._released or self.marks.accept(head, offset, epoch)
            except EnvelopeError as error:
                self._unreadable(records, number, epoch, error)
                return 0
        records.heads[number] = head
        records.closely.add(number)
        if not fresh:
            return 1
        known = self._skipped.get(offset)
        if known is not None and not self._trial:
            records.failures[number] = known
            return 0
        if known is not None:
            records.trial[number] = known
        try:
            key, payloads = self.payloads(message, head)
        except Exception as error:  # noqa: BLE001 - the policy decides
            records.failures[number] = error
            return 0
        for index, payload in payloads:
            records.inputs.append(number)
            records.payloads.append(payload)
            records.keys.append(key)
            records.paths.append(path_element(index))
        return 0

    def payloads(
        self, message: Message, head: EnvelopeHead | None
    ) -> tuple[bytes | None, list[tuple[int, bytes | None]]]:
        """The key of a record, and its payloads with their indexes."""
        node = self._node
        if head is None and (node.timestamp is None or node.no_timestamp == "record"):
            check_timestamp(message.timestamp()[1])  # of an envelope it is checked with all the rest
        payloads: Sequence[bytes | None] = [message.value()]
        key = message.key()
        if head is not None:
            payloads, key = payloads_of(head), head.key if head.HasField("key") else message.key()
            if self._codec is not None and not self._codec.reads(head.type):
                raise WrongPayloadType(
                    f"the payload is a {head.type}, the source at {node.declared_at} takes {self._codec.type_name}"
                )
        checked = [
            (index, payload)
            for index, payload in enumerate(payloads)
            if payload is not None or node.nulls == "decode"
        ]
        if len(checked) < len(payloads) and node.nulls != "skip":
            raise EmptyValue(
                "a null value; declare the source with nulls='skip', or a decoder and nulls='decode'"
            )
        return key, checked

    def _unreadable(self, records: Records, number: int, epoch: int, error: EnvelopeError) -> None:
        offset = records.messages[number].offset()
        # It may have been any lane's: a gap that the next message of one shows is excused by it.
        if not self._released:
            self.marks.undecodable(offset)
        records.unreadable(number, epoch)
        records.failures[number] = self._skipped.get(offset, error)


@cache
def has_columns() -> bool:
    """Whether blocks can be looked at by columns, for which numpy is needed; record by record gives the same without it."""
    return find_spec("numpy") is not None
