"""The inputs of what is gathered together: any, by their origins, or a block's, by its columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby, repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from sqe_chain.chain import stored_epoch
from sqe_chain.envelope.template import Source
from sqe_chain.flow.context import Origin, TopicIdPartition, new_origin
from sqe_chain.flow.stage_kind import ENVELOPE
from sqe_chain.ports import Headers

if TYPE_CHECKING:
    from sqe_chain.envelope.block import Block
    from sqe_chain.envelope.run_template import ListedSources
    from sqe_chain.task.trace_report import RowTraces

Lane = tuple[int, int]
"""A lane as marks use it, and as envelopes state it."""
T = TypeVar("T")


class Inputs:
    """Inputs by their numbers.

    Attributes:
        traces: how their payloads are traced; None: they are not, or their headers lead on.
    """

    traces: RowTraces | None = None

    def __init__(self, origins: Sequence[Origin]) -> None:
        self._origins = origins
        self._tps, self._lanes, self._sources = list[TopicIdPartition](), list[Lane](), list[Source]()
        for origin in origins:
            tp, offset, epoch, lane, position, *_ = origin
            stated, chain, time_ms = origin.stated
            self._tps.append(tp)
            self._lanes.append((lane, stated))
            self._sources.append((chain, offset, epoch, position, time_ms))

    @classmethod
    def of(cls, origins: Iterable[Origin]) -> tuple[list[int], Inputs]:
        """The number of the input of each payload, and the inputs.

        Args:
            origins: of the payloads; those of one input follow each other.
        """
        inputs: list[Origin] = []
        numbers: list[int] = []
        last: Origin | None = None
        for origin in origins:
            # Mostly the same object again, and identity is cheaper than comparing places.
            if origin is not last and not origin.same_input(last):
                inputs.append(origin)
            last = origin
            numbers.append(len(inputs) - 1)
        return numbers, cls(inputs)

    @classmethod
    def numbered(cls, numbers: Sequence[int], origin_of: Callable[[int], Origin]) -> tuple[list[int], Inputs]:
        """The same of payloads whose inputs have numbers already."""
        distinct, at = numbered(numbers)
        return at, cls([origin_of(number) for number in distinct])

    def origin(self, number: int) -> Origin:
        """One of them."""
        return self._origins[number]

    def sources(self, numbers: Sequence[int]) -> list[Source]:
        """What envelopes state of some of them: the same object for those of one input."""
        return [self._sources[number] for number in numbers]

    @property
    def rise(self) -> bool:
        """Whether their offsets are known to rise."""
        return False

    def offset(self, number: int) -> int:
        """The offset of one of them."""
        return self._sources[number][1]

    def carried(self, numbers: Sequence[int], need: int) -> list[tuple[Any, ...]]:
        """What a shuffle carries of some of them, see `Origin.pack`: the same object for those of one input."""
        known = {number: self.origin(number).pack(need) for number in dict.fromkeys(numbers)}
        return [known[number] for number in numbers]

    def offsets(self, numbers: Sequence[int]) -> list[int]:
        """The offsets of some of them."""
        return [self._sources[number][1] for number in numbers]

    def headers(self) -> Sequence[Headers | None] | None:
        """The headers of their records; None when none has any."""
        headers = [origin.headers for origin in self._origins]
        return None if headers.count(None) == len(headers) else headers

    def partitions(self, numbers: Sequence[int]) -> Sequence[TopicIdPartition]:
        """Where some of them were read; one place: all of them were read there."""
        tps = self._tps
        return tps[:1] if tps.count(tps[0]) == len(tps) else [tps[number] for number in numbers]

    def at(self, numbers: Sequence[int]) -> Sequence[int]:
        """Some of them, as the following methods take them."""
        return numbers

    def lanes(self, at: Sequence[int]) -> tuple[list[Lane], list[int]]:
        """The lanes of some of them, and for each of them the index of its lane."""
        return numbered([self._lanes[number] for number in at])

    def times_ms(self, at: Sequence[int]) -> list[int]:
        """The event times of some of them."""
        return [self._sources[number][4] for number in at]

    @cached_property
    def columns(self) -> Block | ListedSources:
        """All of them side by side; needs numpy."""
        from sqe_chain.envelope.run_template import ListedSources  # noqa: PLC0415 - needs numpy

        return ListedSources(self._sources)


class BlockInputs(Inputs):
    """The ordinary records of a block, which have their own times.

    Args:
        tp: topic, topic id and partition.
        block: the records.
        lane_of: lane as envelopes state it -> the lane that marks use.
        orders_ms: see `Records`.
    """

    def __init__(
        self,
        tp: TopicIdPartition,
        block: Block,
        lane_of: Callable[[int], int],
        orders_ms: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._tp, self._block, self._lane_of, self._orders_ms = tp, block, lane_of, orders_ms

    def origin(self, number: int) -> Origin:
        block, head = self._block, self._block.head(number)
        message, lane = block.messages[number], self._lane_of(head.lane if head is not None else 0)
        epoch, position = stored_epoch(message.leader_epoch()), block.position(number)
        order_ms = self._orders_ms.get(number, -1)
        return new_origin((self._tp, message.offset(), epoch, lane, position, head, message, None, order_ms))

    def sources(self, numbers: Sequence[int]) -> list[Source]:
        by_number: dict[int, Source] = {}
        for number in dict.fromkeys(numbers):
            origin = self.origin(number)
            _, chain, time_ms = origin.stated
            by_number[number] = chain, origin.offset, origin.epoch, origin.position, time_ms
        return [by_number[number] for number in numbers]

    def carried(self, numbers: Sequence[int], need: int) -> list[tuple[Any, ...]]:
        if need != ENVELOPE:  # nothing of an input, or key and headers too, which columns do not have
            return super().carried(numbers, need)
        distinct = list(dict.fromkeys(numbers))
        block, at = self._block, self.at(distinct)
        lanes, lane_at = self.lanes(at)
        own, stated = zip(*map(lanes.__getitem__, lane_at), strict=True)
        facts = zip(
            repeat(self._tp.topic_id),
            block.epochs[at].tolist(),
            own,
            block.positions(at),
            map(self._orders_ms.get, distinct, repeat(-1)),
            stated,
            block.chains(at),
            self.times_ms(at),
            strict=False,
        )
        if len(distinct) == len(numbers):
            return list(facts)
        known = dict(zip(distinct, facts, strict=True))
        return [known[number] for number in numbers]

    @property
    def rise(self) -> bool:
        return self._block.rise

    def offset(self, number: int) -> int:
        return self._block.messages[number].offset()

    def offsets(self, numbers: Sequence[int]) -> list[int]:
        offsets: list[int] = self._block.offsets[self.at(numbers)].tolist()
        return offsets

    def headers(self) -> Sequence[Headers | None] | None:
        return self._block.headers

    def partitions(self, numbers: Sequence[int]) -> Sequence[TopicIdPartition]:
        del numbers
        return [self._tp]

    def at(self, numbers: Sequence[int]) -> Any:  # noqa: ANN401 - of numpy
        return self._block.indexes(numbers)

    def lanes(self, at: Any) -> tuple[list[Lane], list[int]]:  # noqa: ANN401 - of numpy
        stated, lane_at = numbered(self._block.lanes[at].tolist())
        return [(self._lane_of(lane), lane) for lane in stated], lane_at

    def times_ms(self, at: Any) -> list[int]:  # noqa: ANN401 - of numpy
        times_ms: list[int] = self._block.times_ms[at].tolist()
        return times_ms

    @property
    def columns(self) -> Block:
        return self._block


Given = list[tuple[int, int, Sequence[int], Inputs]]
"""Runs of what some inputs gave: where each begins and ends, the numbers in its inputs, and the inputs."""


def stretches(numbers: Sequence[int], among: Collection[int]) -> list[tuple[int, int, bool]]:
    """Stretches of numbers that are all among others, or all not: where each begins and ends, and whether they are."""
    if numbers and not among:
        return [(0, len(numbers), False)]
    begin, spans = 0, list[tuple[int, int, bool]]()
    for value, same in groupby([number in among for number in numbers]):
        end = begin + len(list(same))
        spans.append((begin, end, value))
        begin = end
    return spans


def numbered(each: Sequence[T]) -> tuple[list[T], list[int]]:
    """The values, each once, and for each place the index of its value."""
    # Mostly one value: `count` runs in C, and no dict is made.
    if each.count(each[0]) == len(each):
        return [each[0]], [0] * len(each)
    known = {value: index for index, value in enumerate(dict.fromkeys(each))}
    return list(known), [known[value] for value in each]
