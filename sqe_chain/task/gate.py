"""Event time of the inputs of one partition: what they show of it, and which of them a batch takes.

`SourceTimes` finds times, lanes and watermarks of records, and moves event time by them. `Gate` is before the first operator
of a flow that goes by event time: it decides what a batch takes.

A batch takes what lies up to the frontier (`sqe_chain.task.event_times`), as whole inputs. What lies beyond it has no
effect at all: no output, no state, no dead-letter record. It waits where it is, in Kafka, and is read again when its time has come.
Marks show what of it was taken, as for every replay, because the inputs of a lane are taken in their order.

An input's *place* in the order of times is its time, but never before the place of its predecessor on the lane. A late input
has its place just before the frontier of the batch before. So consecutive batches take consecutive pieces of one order, wherever batches end.

One from a clock that ran ahead takes the place of the next one on its lane, which shows that it was wrong. Where none comes, it
waits until event time gets there. But it does not wait without end, because everything after it would be read again with it.

Source: MillWheel's low watermarks; that what waits stays in the log is ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqe_chain.chain import root_position, stored_epoch
from sqe_chain.envelope.carrier import find_head, is_chained
from sqe_chain.envelope.head import MAX_TIMESTAMP_MS
from sqe_chain.envelope.message import EnvelopeHead, parse_chain
from sqe_chain.envelope.revisions import family_of
from sqe_chain.errors import EnvelopeError, PoisonError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import Context
from sqe_chain.flow.event_time import event_ms
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.nodes import SourceNode
from sqe_chain.ports import Message
from sqe_chain.stages.clock import JumpGuard
from sqe_chain.task.event_times import (
    ORIGIN,
    EventTimes,
    Frontier,
    Hop,
    WaitingRange,
    right_times,
    with_route,
)
from sqe_chain.task.records import Deciding, Records
from sqe_chain.task.roots import is_moment, names_no_topic
from sqe_chain.task.routes import routes_in

if TYPE_CHECKING:
    from sqe_chain.envelope.columns import Ints

HOLD_OFFSETS: Final = 10_000
"""After this number of offsets, one that is ahead of all others and was not confirmed is believed to come from a wrong clock."""
# Until then each batch reads again all that lies behind it. More would cost more in each batch, fewer would believe less of a lane
# that is merely slow to write its next record.


class TimeFacts(NamedTuple):
    """What the gate knows of the messages of a partition, side by side.

    Attributes:
        offsets: their offsets.
        times_ms: their event times; None: not known, so they go with the one before them on the lane.
        lanes: their lanes as envelopes state them; None: not known, so they go at once.
        stated_ms: the watermarks that they bear; 0 for none.
    """

    offsets: Sequence[int]
    times_ms: Sequence[int | None]
    lanes: Sequence[int | None]
    stated_ms: Sequence[int]

    @classmethod
    def joined(cls, several: Iterable[TimeFacts]) -> TimeFacts:
        """Those of one run of messages after the other."""
        columns = [list(chain.from_iterable(column)) for column in zip(*several, strict=True)]
        return cls(*columns) if columns else cls((), (), (), ())


@dataclass(frozen=True, slots=True)
class Gate:
    """Decides for one partition.

    Args:
        topic: its topic.
        partition: its number.
        before: the frontier of the batch before; None: nothing was taken yet.
        until: that of this batch.
        guard: see `guard_of`.
        last: see `Taking.last`.
    """

    topic: str
    partition: int
    before: Frontier | None
    until: Frontier | None
    guard: JumpGuard | None
    last: Frontier | None = None
    _least_ms: int = field(init=False)
    _limit_ms: int = field(init=False)

    def __post_init__(self) -> None:
        # What is earlier than the frontier is late, and waits for nothing.
        least_ms = -(1 << 63) if self.before is None else self.before.at_ms - 1
        object.__setattr__(self, "_least_ms", least_ms)
        limit_ms = -(1 << 63) if self.until is None else self.until.limit_ms(self.topic, self.partition)
        object.__setattr__(self, "_limit_ms", limit_ms)

    @property
    def late_ms(self) -> int:
        """The place of a late input: just before the frontier of the batch before."""
        return self._least_ms

    @property
    def limit_ms(self) -> int:
        """The last place that the batch takes."""
        return self._limit_ms

    def take(self, facts: TimeFacts, times: EventTimes, known: Container[int] = ()) -> dict[int, int]:
        """Decide about messages that were read, and note in `times` what waits.

        Args:
            facts: of the messages, in the order of their offsets.
            times: event time of the partition; what it has of inputs that wait holds for those that were not read again.
            known: indexes of those that an earlier batch has taken.

        Returns:
            Index of each message that is taken -> its place.
        """
        rows: dict[int, list[int]] = {}
        taken: dict[int, int] = {}
        waits: dict[int, int] = {}
        for index, lane in enumerate(facts.lanes):
            if index in known:
                continue
            if lane is None:
                taken[index] = self._least_ms
            else:
                rows.setdefault(lane, []).append(index)
        for lane, row in rows.items():
            before_ms = times.lanes.get(lane)
            places = self._places(facts, row, before_ms)
            for index, place_ms in zip(row, places, strict=True):
                # What comes on a lane after one that waits, and was not read again, waits with it.
                due = place_ms <= self._limit_ms and before_ms is None
                (taken if due else waits)[index] = place_ms
            if row[-1] in waits:
                times.lanes[lane] = places[-1]
        if waits:
            before = times.waiting or WaitingRange(1 << 63, 1 << 63, 0)
            first = min(before.offset, facts.offsets[min(waits)])
            least_ms = min(before.least_ms, *waits.values())
            times.waiting = WaitingRange(first, least_ms, before.inputs + len(waits))
        return taken

    def are_late(self, facts: TimeFacts, taken: Iterable[int], reached_ms: int | None) -> bool:
        """Whether any message is taken after what it belongs before, or would be if batches ended elsewhere.

        Args:
            facts: of the messages.
            taken: indexes of those that are taken.
            reached_ms: the latest time of what nobody republished, before the batch: on that lane none belongs before it.
        """
        after = self.last is not None and (self.topic, self.partition) < self.last[1:]
        late_ms = -(1 << 63) if self.last is None else self.last.at_ms - (not after)
        in_order = reached_ms is not None and reached_ms > late_ms
        if in_order and not any(facts.lanes):
            return False
        for index in taken:
            at_ms, stated_ms = facts.times_ms[index], facts.stated_ms[index]
            if at_ms is None or (in_order and facts.lanes[index] == 0):
                continue
            if at_ms <= late_ms or (stated_ms and at_ms < stated_ms):
                return True
        return False

    def _places(self, facts: TimeFacts, row: Sequence[int], before_ms: int | None) -> list[int]:
        """The places of messages of one lane, after the place of the last one that waits and was not read again."""
        given = [facts.times_ms[index] for index in row]
        timed = [at_ms for at_ms in given if at_ms is not None]
        right = iter(right_times(timed if before_ms is None else [before_ms, *timed], self.guard))
        last_ms = self._least_ms if before_ms is None else max(next(right), self._least_ms)
        places = []
        for at_ms in given:
            if at_ms is not None:
                last_ms = max(next(right), last_ms)
            places.append(last_ms)
        if self.guard is not None and before_ms is None and self.until is not None:
            self._release(facts, row, places, self.guard)
        return places

    def _release(self, facts: TimeFacts, row: Sequence[int], places: list[int], guard: JumpGuard) -> None:
        """Release what is far ahead at the end of a lane. Much must have come after it, and all of that far behind it."""
        at, last = len(places), facts.offsets[-1]
        while at and places[at - 1] > self._limit_ms + guard.max_jump_ms:
            at -= 1
        if at == len(places) or last - facts.offsets[row[at]] <= HOLD_OFFSETS:
            return
        later_ms = max(
            (time_ms for time_ms in facts.times_ms[row[-1] + 1 :] if time_ms is not None), default=places[-1]
        )
        for index in range(at, len(places)):
            if places[index] - later_ms > guard.max_jump_ms:
                places[index] = places[index - 1] if index else self._least_ms


class Shown(NamedTuple):
    """What records of one lane show of event time; only a lane is in the order of its times.

    Attributes:
        writer: the name of the lane's writer.
        times_ms: their known times, in their order.
        stated_ms: the highest watermark that they bear; 0: none.
        latest_ms: the latest of the times, where these come by columns: all of a block, near to each other. None: one by one.
    """

    writer: str
    times_ms: Sequence[int] | Ints
    stated_ms: int
    latest_ms: int | None = None


class SourceTimes:
    """Follows event time.

    Attributes:
        times: event time of the partition; it moves.
        guard: see `guard_of`.
        late: whether any input was taken late; see `Gate.are_late`.

    Args:
        times: see above.
        node: the source.
        guard: see `guard_of`.
        since: first offset that was not read before.
        at_end: the range ends where the partition does.
    """

    def __init__(
        self, times: EventTimes, node: SourceNode, guard: JumpGuard | None, since: int, *, at_end: bool
    ) -> None:
        self.times, self._node, self.guard, self.late = times, node, guard, False
        self._since, self._at_end = since, at_end
        # Lane as envelopes state it -> its writer. Invariant: it has all lanes that `facts` has given, for `shown_by` to find.
        self._writers = {0: ORIGIN}

    def facts(self, records: Records, given_ms: Mapping[int, int] | None) -> TimeFacts:
        """What is known of records before it is decided whether they are new.

        Args:
            records: the records.
            given_ms: the times that the source's function gave, where it has one: others have none.
        """
        messages, block = records.messages, records.block
        count = len(messages)
        lanes: list[int | None] = [None] * count
        times_ms: list[int | None] = [None] * count
        stated_ms = [0] * count
        special: list[int] | range = range(count)
        if block is None:
            offsets = [message.offset() for message in messages]
        else:
            (lanes, times_ms, stated_ms), offsets = block.times(), block.offsets.tolist()  # type: ignore[assignment]
            special = (~block.ordinary).nonzero()[0].tolist()
        heads: dict[int, EnvelopeHead] = {}
        for number in special:
            lanes[number], times_ms[number], stated_ms[number] = self._closely(
                messages[number], number, heads
            )
        # In the order of their first records, as if these came one by one.
        for lane in lanes[:1] if lanes.count(lanes[0]) == count else dict.fromkeys(lanes):
            if lane is None or lane in self._writers:
                continue
            first = lanes.index(lane)
            head = heads.get(first) or records.head(first)
            if head is None or not self._introduce(head, messages[first]):
                lanes = [None if known == lane else known for known in lanes]
        if given_ms is not None:
            times_ms = [given_ms.get(number) for number in range(count)]
        if self._node.static:  # its messages have no times, so times that envelopes state are not theirs
            stated_ms = [0] * count
        return TimeFacts(offsets, times_ms, lanes, stated_ms)

    def shown(self, records: Records, deciding: Deciding) -> list[Shown]:
        """What records show of event time, before it is decided whether they are new; their source has no function for times."""
        shown = self._shown_by_columns(records)
        if shown is None:
            (facts,) = self._without_replays([records], [self.facts(records, None)], deciding)
            shown = self.shown_by(facts)
        return shown

    def shown_by(self, facts: TimeFacts) -> list[Shown]:
        """What records with these facts show of event time: only those that were read for the first time show anything."""
        if not facts.offsets or facts.offsets[-1] < self._since:
            return []
        if facts.offsets[0] < self._since:
            rows = zip(*facts, strict=True)
            facts = TimeFacts(*zip(*[row for row in rows if row[0] >= self._since], strict=True))
        return [Shown(self._writers[lane], *own) for lane, own in _by_lane(facts).items()]

    def observe(self, shown: Iterable[Shown]) -> None:
        """Move event time by records, whatever becomes of them."""
        times, guard = self.times, self.guard
        for name, own_ms, stated_ms, latest_ms in shown:
            known_ms: Any = own_ms
            if latest_ms is not None:
                is_enough = stated_ms or times.follows(name, latest_ms, guard)
                known_ms = (latest_ms,) if is_enough else known_ms.tolist()
            times.observe(name, known_ms, stated_ms, guard=guard, at_end=self._at_end)

    def take(
        self,
        read: Sequence[Records],
        gate: Gate,
        deciding: Deciding,
        given_times: Callable[[Records], Mapping[int, int] | None],
    ) -> Iterator[Records]:
        """What a batch takes of a range, block by block, each record with its place; what waits is noted in `times`.

        Args:
            read: all of the range, block by block.
            gate: that of the partition.
            deciding: what decides about its records.
            given_times: gives the times that the source's function gives; None: it has none.
        """
        facts = self._without_replays(
            read, [self.facts(records, given_times(records)) for records in read], deciding
        )
        reached_ms, joined = self.times.watermark_of(ORIGIN), TimeFacts.joined(facts)
        # Event time moves by all that was read, whether it is taken or waits.
        for own in facts:
            self.observe(self.shown_by(own))
        places, begin = gate.take(joined, self.times, self._taken_before(read, deciding)), 0
        self.late = gate.are_late(joined, places, reached_ms)
        for records in read:
            end = begin + len(records.messages)
            numbers = [number for number in range(end - begin) if begin + number in places]
            if numbers:
                if len(numbers) < end - begin:
                    records = deciding.records_of([records.messages[number] for number in numbers])  # noqa: PLW2901
                records.place({at: places[begin + number] for at, number in enumerate(numbers)})
                yield records
            begin = end

    def _taken_before(self, read: Sequence[Records], deciding: Deciding) -> set[int]:
        """Indexes of what is read again, and was taken before or skipped unread: of what did not wait."""
        known, begin = set[int](), 0
        for records in read:
            for number, message in enumerate(records.messages):
                if message.offset() >= self._since:
                    return known
                if deciding.has_taken(records, number):
                    known.add(begin + number)
            begin += len(records.messages)
        return known

    def _without_replays(
        self, read: Sequence[Records], facts: list[TimeFacts], deciding: Deciding
    ) -> list[TimeFacts]:
        """Without the times of replays, where these could show clocks to be wrong that were right.

        They come late, so they prove nothing about the order of a lane.

        Args:
            read: the records, block by block.
            facts: what is known of them.
            deciding: what decides about them.
        """
        if self.guard is None:
            return facts
        times_ms: list[Any] = list(chain.from_iterable([own.times_ms for own in facts]))
        if None in times_ms:
            times_ms = [at_ms for at_ms in times_ms if at_ms is not None]
        if not times_ms or max(times_ms) - min(times_ms) <= self.guard.max_jump_ms:
            return facts
        reached = {lane: mark.position for lane, mark in deciding.marks}
        kept: list[TimeFacts] = []
        for records, own in zip(read, facts, strict=True):
            kept_ms: list[int | None] = list(own.times_ms)
            for number, lane in enumerate(own.lanes):
                if lane is None:
                    continue
                message, head = records.messages[number], deciding.head_of(records, number)
                position = b"" if head is None else head.position
                position = position or root_position(stored_epoch(message.leader_epoch()), message.offset())
                if position <= reached.get(lane, b""):
                    kept_ms[number] = None
                else:
                    reached[lane] = position
            kept.append(own._replace(times_ms=kept_ms))
        return kept

    def _shown_by_columns(self, records: Records) -> list[Shown] | None:
        """The same for a block of ordinary records that are read for the first time, and near enough in time that no clock was wrong.

        None: they must be looked at one by one.
        """
        block = records.block
        if block is None or self._node.static or not block.ordinary.all():
            return None
        if records.messages[0].offset() < self._since:
            return None
        # Replays come late, but the times of all of them together show no clock to be wrong.
        if self.guard is not None and block.times_ms.max() - block.times_ms.min() > self.guard.max_jump_ms:
            return None
        shown: list[Shown] = []
        for lane, first, own_ms, latest_ms, stated_ms in block.by_lane():
            if lane not in self._writers:
                head = block.head(first)
                if head is None or not self._introduce(head, block.messages[first]):
                    return None
            shown.append(Shown(self._writers[lane], own_ms, stated_ms, latest_ms))
        return shown

    def _closely(
        self, message: Message, number: int, heads: dict[int, EnvelopeHead]
    ) -> tuple[int | None, int | None, int]:
        """Lane, time and watermark of a record that is out of the ordinary; its envelope is among `heads`."""
        at_ms = message.timestamp()[1]
        known_ms = at_ms if -1 <= at_ms <= MAX_TIMESTAMP_MS else None
        if self._node.raw or (message.value() is None and not is_chained(message)):
            return 0, known_ms, 0
        try:
            head = find_head(message.value(), message.headers())
        except EnvelopeError:
            return None, None, 0
        heads[number] = head
        return head.lane, head.timestamp_ms, head.watermark_ms

    def _introduce(self, head: EnvelopeHead, message: Message) -> bool:
        """Note who writes on an envelope's lane, which is met for the first time; False if its chain names nobody."""
        if self._node.static:
            self._writers[head.lane] = ORIGIN
            return True
        try:
            name, hops = writer_of(head)
        except (EnvelopeError, LookupError):
            return False
        self._writers[head.lane] = name
        # What no input has caused has no way from a topic. Of a moment its records know it, of all else other lanes do.
        read = tuple(hop for hop in hops if not names_no_topic(hop[1]))
        if is_moment(hops[0][1]) and (routes := routes_in(message.headers())):
            read = hops = with_route(routes, read)
        if read == hops or not self.times.knows(name):
            self.times.introduce(name, read)
        return True


def writer_of(head: EnvelopeHead) -> tuple[str, tuple[Hop, ...]]:
    """The name of the writer of a republished message, and the republishers that it has passed."""
    links = parse_chain(head.chain).links
    # A released or republished state has a name of its own at the end of the output's, a revision its number. The writer is the
    # same. A second one would hold event time up without end, because the first one writes no more.
    name, _ = family_of(links[-1].output)
    return name, tuple((link.output.partition("/")[0], link.topic) for link in links)


def _by_lane(facts: TimeFacts) -> dict[int, tuple[Sequence[int], int]]:
    """The known times of each known lane, in their order, and the highest watermark that is stated there."""
    _, times_ms, lanes, stated_ms = facts
    if lanes.count(lanes[0]) == len(lanes):
        times_of: dict[int | None, Sequence[int | None]] = {lanes[0]: times_ms}
        highest_ms: dict[int | None, int] = {lanes[0]: max(stated_ms)}
    else:
        known_of = defaultdict[int | None, list[int | None]](list)
        for lane, at_ms in zip(lanes, times_ms, strict=True):
            known_of[lane].append(at_ms)
        times_of, highest_ms = {**known_of}, dict.fromkeys(known_of, 0)
        if any(stated_ms):
            for lane, stated in zip(lanes, stated_ms, strict=True):
                highest_ms[lane] = max(highest_ms[lane], stated)
    unknown = None in times_ms
    return {
        lane: ([at_ms for at_ms in own if at_ms is not None] if unknown else own, highest_ms[lane])  # type: ignore[misc] # none is None
        for lane, own in times_of.items()
        if lane is not None
    }


def give_times(
    flow: CompiledFlow,
    source: SourceNode,
    function: DeclaredFunction,
    records: Records,
    values: Sequence[Any],
    now_ms: int,
    failed: Callable[[int, Exception], bool],
) -> None:
    """Give records the event times that the source's function finds in their values: of several times the earliest.

    Where all values have times of their own, it is the input's place and nothing else. Then it is not after the place in the
    envelope: a republisher has given that to all that it made of one input.

    Args:
        flow: the flow.
        source: the source.
        function: its function.
        records: those that have not failed get times.
        values: of their payloads.
        now_ms: the batch's clock for contexts.
        failed: takes the number of a record that has failed, and why.
    """
    call, times_of = function.function, dict[int, set[int]]()
    for number, key, value in zip(records.inputs, records.keys, values, strict=True):
        if number in records.failures:
            continue
        try:
            if function.takes_context:
                given = call(value, Context(records.origin(number), key, now_ms))
            else:
                given = call(value)
            times_of.setdefault(number, set()).add(_event_ms(source, records, number, given))
        except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
            failed(number, error)
    stage = flow.one_time.get(source.index)
    for number, times in times_of.items():
        if number in records.failures:
            continue
        if len(times) > 1 and stage is not None:
            failed(number, _several(stage, records.inputs.count(number), times))
            continue
        head = records.head(number) if source.index in flow.own_times else None
        if head is not None and head.chain:
            times.add(head.timestamp_ms)
        records.give_time(number, min(times))


def _several(stage: str, count: int, times: Collection[int]) -> PoisonError:
    return PoisonError(
        f"its {count} payloads have several event times, {min(times)} to {max(times)} ms, and stage {stage!r} takes them at one. "
        "Expected a time for each. Give the stage time="
    )


def _event_ms(source: SourceNode, records: Records, number: int, given: object) -> int:
    """The event time that the source's function gave, or what stands for it."""
    try:
        return event_ms(given)
    except PoisonError:
        if source.no_timestamp == "poison":
            raise
        return records.origin(number).timestamp_ms
