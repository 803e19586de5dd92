"""The records of a block on their way into the flow: which are taken, what failed, and their origins, made when asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from sqe_chain.chain import root_position, stored_epoch
from sqe_chain.envelope.message import EnvelopeHead
from sqe_chain.flow.context import Origin, TopicIdPartition, new_origin
from sqe_chain.flow.units import number as path_element
from sqe_chain.ports import Message
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.inputs import BlockInputs, Given, Inputs, stretches

if TYPE_CHECKING:
    from sqe_chain.envelope.block import Block

_FIRST: Final = path_element(0)


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
