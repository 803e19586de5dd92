"""Inputs that failed and are processed later: in plans, and in the steps of a run.

With `poison="park"` a plan has all records that wait after it. So parking a record, and counting it later, is sealed with the marks
of the inputs: whatever crashes, a record waits, or it counts. A batch that releases records reads nothing. It processes what the
plan before has, and its own plan has only the offsets.

Dead-letter records are released by such a batch, too. Its own plan has them, and publishes to their topic what it decides. So the
plan decides, by its seal, and the topic shows it to everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, Self

from sqe_chain.errors import ConfigurationError, PoisonError, TooManyParked
from sqe_chain.features.decided import Decided, Place, name_after, place_of, places_in, plain_places
from sqe_chain.features.decision import BatchDecision, Taken
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.observing import BatchObserver
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Notice
from sqe_chain.plans.look import Infos
from sqe_chain.plans.plan import Plan, PlannedRange, Section
from sqe_chain.plans.results import BatchResult
from sqe_chain.ports import Output, TopicPartition
from sqe_chain.task.failed_log import DecisionKind, suffix_of
from sqe_chain.task.parking import ParkedKeys, ParkedRecord, Releasing
from sqe_chain.task.results import Report

# What waits is written with every plan, and with every batch again: these bound that, whatever fails.
MAX_RECORDS: Final = 1_000
"""Records of one input partition that wait at most: each plan has all of them."""
MAX_BYTES: Final = 1 << 20
"""Bytes of their keys, values and headers."""
RELEASED_TOGETHER: Final = 1_000
"""Records of one batch that releases: its plan can list all of them if they fail again."""
MAX_DISCARDED: Final = 10_000
"""Records of a flow that may be discarded: each plan lists where they were read."""


Selects = Callable[[ParkedRecord], bool]


@dataclass(frozen=True, slots=True)
class Parking(Section):
    """What waits after a plan.

    Attributes:
        records: by topic, id of the topic, partition and offset.
        released: where the records were read that the plan processes.
        discarded: where the records were read that never count. A flow that is folded again skips them.
        counted: of each partition the last record that was released ever. Receivers know the outputs under other names, so
            they are not published again.
        skipped: where records were read that are in the dead-letter topic and were not released. They stay skipped when the flow is
            folded again.
        decided: what the plan decides about dead-letter records; None: nothing.
        disordered: since the states were folded, records were released: these count after later ones.
    """

    name: ClassVar[str] = "parked"
    records: tuple[ParkedRecord, ...] = ()
    released: tuple[Place, ...] = ()
    discarded: tuple[Place, ...] = ()
    counted: tuple[Place, ...] = ()
    skipped: tuple[Place, ...] = ()
    decided: Decided | None = None
    disordered: bool = False

    def remedy(self, size: int) -> tuple[str, str] | None:
        """While records wait, the policy stays."""
        if self.decided is not None:
            return (
                f"{len(self.decided.records)} dead-letter records in {size} bytes",
                "Release fewer of them at once",
            )
        if not self.records:
            return None
        advice = "Release or discard parked records first: sqe-chain failed release or discard"
        return f"{len(self.records)} parked records in {size} bytes", advice

    def carried(self, last: Plan, plan: Plan) -> Parking:  # noqa: ARG002 - see `Section`
        """All that waits. What was discarded of another topic of the same name is of no use any more."""
        return self.left(plan.ranges)

    def left(self, ranges: Iterable[PlannedRange]) -> Parking:
        """What is left after the plan's own batch."""
        kept = {(planned.topic, planned.topic_id, planned.partition) for planned in ranges}
        discarded, counted, skipped = (
            tuple(place for place in places if place[:3] in kept)
            for places in (self.discarded, self.counted, self.skipped)
        )
        return Parking(self.records, (), discarded, counted, skipped, disordered=self.disordered)

    def waiting(self, ranges: Iterable[PlannedRange]) -> ParkedKeys:
        """What tasks get that read these ranges."""
        keys: dict[TopicPartition, dict[bytes, int]] = {}
        begins = {
            (planned.topic, planned.topic_id, planned.partition): planned.begin
            for planned in ranges
            if planned.reads
        }
        for record in self.records:
            key = record.record_key
            if key is not None and place_of(record)[:3] in begins:
                keys.setdefault(record.tp, {}).setdefault(key, record.offset())
        again = _offsets_from(begins, map(place_of, self.records))
        return ParkedKeys(keys, again, _offsets_from(begins, (*self.discarded, *self.skipped)))

    def releasing(self, before: Plan, places: Iterable[Place]) -> Releasing:
        """The batch that processes some of the records; the same in a redo.

        Args:
            before: the plan that has this section.
            places: where the records were read.
        """
        chosen = frozenset(places)
        records = tuple(record for record in self.records if place_of(record) in chosen)
        return Releasing(records, suffix_of(name_after(before.plan_id, chosen)))

    def without(self, places: Iterable[Place], *, discarded: bool = False) -> Parking:
        """The same without some records.

        Args:
            places: where they were read.
            discarded: they never count.
        """
        gone = set(places)
        records = tuple(record for record in self.records if place_of(record) not in gone)
        known = tuple(sorted({*self.discarded, *gone})) if discarded else self.discarded
        return replace(self, records=records, released=(), discarded=known, decided=None)

    def counting(self, places: Iterable[Place]) -> tuple[Place, ...]:
        """See `counted`, once these records count, too."""
        return tuple(sorted({place[:3]: place for place in sorted([*self.counted, *places])}.values()))

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {name: plain_places(own) for name in _PLACES if (own := getattr(self, name))}
        if self.records:
            plain["records"] = [record.to_json() for record in self.records]
        if self.decided is not None:
            plain["decided"] = self.decided.to_json()
        if self.disordered:
            plain["disordered"] = True
        return plain

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        records = tuple(ParkedRecord.from_json(record) for record in raw.get("records", ()))
        decided = Decided.from_json(raw["decided"]) if "decided" in raw else None
        places = {name: places_in(raw.get(name, ())) for name in _PLACES}
        return cls(records, **places, decided=decided, disordered=raw.get("disordered", False))


_PLACES: Final = ("released", "discarded", "counted", "skipped")


def _offsets_from(
    begins: Mapping[tuple[str, str, int], int], places: Iterable[Place]
) -> dict[TopicPartition, frozenset[int]]:
    """The offsets of places that lie where something begins, or after it, by topic and partition."""
    again: dict[TopicPartition, set[int]] = {}
    for topic, topic_id, partition, offset in places:
        if offset >= begins.get((topic, topic_id, partition), offset + 1):
            again.setdefault((topic, partition), set()).add(offset)
    return {tp: frozenset(offsets) for tp, offsets in again.items()}


def can_be_released(last: Plan, selects: Selects) -> list[ParkedRecord]:
    """The selected records that a batch can process, in their order.

    Records of one key go together: if one is selected, so are those before and after it. A record whose envelope cannot be
    read never counts, since nobody knows whether it is a replay. What follows it waits until it is discarded. So does what was
    read of a topic that the flow reads no more, or that was created again.
    """
    known = known_partitions(last)
    records = Parking.of(last).records
    chosen = {group_of(record) for record in records if selects(record)}
    stuck = set[tuple[Any, ...]]()
    selected = []
    for record in records:
        group = group_of(record)
        if group not in chosen or group in stuck:
            continue
        if not record.readable or place_of(record)[:3] not in known:
            stuck.add(group)
            continue
        selected.append(record)
    return selected


def group_of(record: ParkedRecord) -> tuple[Any, ...]:
    """What waits together: the records of a key of one partition, or one record without a key. Groups can be sorted."""
    topic, topic_id, partition, offset = record.at
    key = record.record_key
    # Whether there is a key comes before the key: groups are sorted, None and bytes do not compare, and b"" is a key.
    return topic, topic_id, partition, key is None, key or b"", offset if key is None else -1


def known_partitions(last: Plan) -> set[tuple[str, str, int]]:
    """What the flow reads: topic, id of the topic in hexadecimal, partition."""
    return {(planned.topic, planned.topic_id, planned.partition) for planned in last.ranges}


def check_policy(flow: CompiledFlow, last: Plan) -> None:
    """Check at a start that the policy is still `park` while something waits.

    Raises:
        ConfigurationError: it is another one.
    """
    waiting = Parking.of(last).records
    if waiting and flow.poison != "park":
        raise ConfigurationError(
            f"flow {flow.name!r}: {len(waiting)} records are parked, the first from {waiting[0]}. Expected "
            f"poison='park' until none is, not {flow.poison!r}: later records of their keys would overtake them. Release or "
            "discard them first: sqe-chain failed"
        )


def decisions(env: Environment, plan: Plan) -> Iterator[Callable[[], int]]:
    """Step 5: what publishes to the dead-letter topic what a plan has decided about records of it.

    Yields:
        What publishes it, and gives the number of records. It is safe to repeat.
    """
    if Parking.name not in plan.sections:
        return
    decided, flow = Parking.of(plan).decided, env.flow
    decision = None if decided is None else decided.decision(flow.declared_name, plan)
    if decided is not None and decision is not None:
        kinds: tuple[DecisionKind, ...] = (
            (decided.kind, "done") if decided.kind == "release" else (decided.kind,)
        )
        records = [
            replace(decision, kind=kind).output(flow.dead_letter_topic, decided.partition) for kind in kinds
        ]
        yield partial(_append, env, records)


def parked_of_gone(last: Plan, planned: PlannedRange) -> str:
    """What is parked of a topic that was created again, as a notice; empty: nothing."""
    count = sum(
        place_of(record)[:3] == (planned.topic, planned.topic_id, planned.partition)
        for record in Parking.of(last).records
    )
    if not count:
        return ""
    return (
        f"{planned.topic}[{planned.partition}] was created again while {count} of its records were parked: they stay parked, and "
        "can only be discarded"
    )


@dataclass(slots=True)
class ReleaseRequest:
    """What the next batch is asked to process, instead of reading. A service never asks; commands about failed records do.

    It stays until it is cleared, so that a batch that is cut again releases the same.

    Attributes:
        places: parked records; empty: none.
        decided: what is decided about dead-letter records, with the records; None: nothing.
    """

    places: tuple[Place, ...] = ()
    decided: Decided | None = None

    def releasing(self, last: Plan) -> Releasing | None:
        """What the batch after a plan processes; None: it is asked for nothing."""
        if self.decided is not None:
            return self.decided.releasing(last.plan_id)
        return Parking.of(last).releasing(last, self.places) if self.places else None


def release_only(
    flow: CompiledFlow, last: Plan, decision: BatchDecision, request: ReleaseRequest
) -> BatchDecision:
    """Step 3: a batch that releases records reads nothing. The same decision, where none are to be released. Pure."""
    releasing = request.releasing(last)
    if releasing is None:
        return decision
    ranges = tuple(replace(planned, stop=planned.start, again=-1) for planned in decision.ranges)
    taken = Taken(EventTime.of(last).frontier) if flow.timed else decision.taken
    return replace(
        decision, ranges=ranges, due=True, releasing=releasing, decided=request.decided, taken=taken
    )


def released_again(plan: Plan, before: Plan, decision: BatchDecision) -> BatchDecision:
    """The same of a sealed plan, for its redo. Pure."""
    parking = Parking.of(plan)
    request = ReleaseRequest(parking.released, parking.decided)
    releasing = request.releasing(before)
    return replace(decision, releasing=releasing, decided=None if releasing is None else parking.decided)


def given_of_parked(before: Plan, decision: BatchDecision) -> ParkedKeys | Releasing:
    """What tasks get: what waits before the batch, or that it releases; each portion has its own records. Pure."""
    if decision.releasing is None:
        return Parking.of(before).waiting(decision.ranges)
    return replace(decision.releasing, records=())


def parked_after(env: Environment, last: Plan, decision: BatchDecision, report: Report) -> Parking:
    """What waits after a batch.

    Raises:
        TooManyParked: more would wait than a plan may have.
        PoisonError: receivers have the outputs of an input that fails now.
    """
    releasing, before = decision.releasing, Parking.of(last)
    # Dead-letter records are in their topic and not in the plan, so nothing of them waits afterwards.
    if decision.decided is not None:
        return _after_decision(before.left(decision.ranges), decision.decided, report)
    released = () if releasing is None else tuple(map(place_of, releasing.records))
    kept = before.without(released)
    records = {place_of(record): record for record in kept.records}
    parked = sorted((record for end in report.ends for record in end.parked), key=place_of)
    # A batch that is repeated as it was sealed parks again what was discarded since.
    known = records.keys() | set(before.discarded)
    new = [record for record in parked if place_of(record) not in known]
    if releasing is None:
        _check_unpublished(env, last, decision, new)
    records |= {place_of(record): record for record in new}
    kept = kept.left(decision.ranges)
    counted = kept.counting(place for place in released if place not in records)
    after = replace(
        kept,
        records=tuple(records[place] for place in sorted(records)),
        released=released,
        counted=counted,
        disordered=kept.disordered or not set(released) <= records.keys(),
    )
    _check_limits(env.flow, after, new)
    return after


def _check_unpublished(
    env: Environment, last: Plan, decision: BatchDecision, new: Iterable[ParkedRecord]
) -> None:
    behind = Rebuilding.of(last)
    sealed = {(exclusion.topic, exclusion.partition, exclusion.offset) for exclusion in decision.sealed or ()}
    for record in new:
        until = max(limits.get(record.tp, 0) for limits in (behind.silent_until, behind.published_until))
        repeated = decision.sealed is not None and (*record.tp, record.offset()) not in sealed
        if env.role.refold is not None or repeated or record.offset() < until:
            raise PoisonError(
                f"flow {env.flow.name!r}: {record} cannot be processed ({record.error}: {record.text}). It was counted before, so "
                "receivers have its outputs, and it cannot be parked. Expected code that processes it. Fix the code, then fold again"
            ).at(*record.tp, record.offset())


def _check_limits(flow: CompiledFlow, after: Parking, new: Iterable[ParkedRecord]) -> None:
    counts: dict[tuple[str, int], tuple[int, int]] = {}
    for record in after.records:
        count, size = counts.get(record.tp, (0, 0))
        counts[record.tp] = count + 1, size + record.size
    for record in new:
        count, size = counts[record.tp]
        if count > MAX_RECORDS or size > MAX_BYTES:
            raise TooManyParked(
                f"flow {flow.name!r}: {record.topic()}[{record.partition()}]: {count} parked records of {size} bytes. Expected "
                f"at most {MAX_RECORDS} records and {MAX_BYTES} bytes. {record} would wait ({record.error}: {record.text}). Nothing of "
                "this batch was counted. Fix the code and run `sqe-chain failed release`, or `sqe-chain failed discard`"
            ).at(*record.tp, record.offset())


class ParkingReports(BatchObserver):
    """Reports how many records are parked, and the first of them."""

    def result(self, result: BatchResult, plan: Plan, infos: Infos) -> BatchResult:  # noqa: ARG002 - see `BatchObserver`
        return replace(result, parked=len(Parking.of(plan).records))

    def committed(self, plan: Plan, decision: BatchDecision, report: Report, result: BatchResult) -> None:  # noqa: ARG002 - see `BatchObserver`
        new = [record for end in report.ends for record in end.parked]
        # The first of them waits behind none, so it has failed itself.
        if new and len(new) == len(Parking.of(plan).records) and decision.releasing is None:
            failed = min(new, key=place_of)
            self.env.emit(
                Notice(
                    f"{failed} cannot be processed ({failed.error}: {failed.text}): it is parked, and what follows it of the same key "
                    "waits behind it; see sqe-chain failed list"
                )
            )


def _after_decision(kept: Parking, decided: Decided, report: Report) -> Parking:
    """What a plan has that decides about dead-letter records, after their batch."""
    failed = {place_of(record) for end in report.ends for record in end.parked}
    tried = {place_of(record) for record in decided.records}
    counted = kept.counting(tried - failed)
    skipped = tuple(place for place in kept.skipped if place not in tried - failed)
    own = replace(decided, failed=tuple(sorted(failed)))
    disordered = kept.disordered or not tried <= failed
    return replace(
        kept,
        released=tuple(sorted(tried)),
        counted=counted,
        skipped=skipped,
        decided=own,
        disordered=disordered,
    )


def _append(env: Environment, records: Sequence[Output]) -> int:
    """Publish records, acknowledged when this returns; gives their number."""
    writer = env.ports.log.writer()
    try:
        writer.write(records)
        writer.flush()
    finally:
        writer.close()
    return len(records)
