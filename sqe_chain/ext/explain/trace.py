"""Which root records made a value: the trace of a key, and of many keys at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sqe_chain.envelope.carrier import find_head, lane_and_position
from sqe_chain.envelope.partitioner import cell_of
from sqe_chain.errors import (
    ConfigurationError,
    EnvelopeError,
    Unavailable,
)
from sqe_chain.ext.explain.narrowing import Focus, lets_keys_go_alone, partitions_of_keys
from sqe_chain.ext.explain.reading import Pass
from sqe_chain.ext.explain.recording import Contribution, Place, Recorder
from sqe_chain.ext.explain.replaying import Missing, Replay
from sqe_chain.features.decided import Place as FailedPlace
from sqe_chain.features.parking import Parking
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.stored import StoredState
from sqe_chain.operations.failed import FailedRecord
from sqe_chain.operations.skipped_again import find_released
from sqe_chain.operations.undecided import find_undecided
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.failed_logs import failed_logs
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.stored_plans import plan_of_a_run, read_plan
from sqe_chain.ports import Header, Location, Range, StateStore, TopicPartition
from sqe_chain.ports.store import lost_part
from sqe_chain.runtime.states import location_of, states_in_row
from sqe_chain.task.failed_log import FailedLog
from sqe_chain.task.roots import moment_name

_ATTEMPTS, _PAUSE_S = 20, 0.05
"""How often states are read again because a batch was persisted meanwhile, and the pause before."""


@dataclass(frozen=True, slots=True)
class _IgnoredReplay:
    """A record that the flow ignored: it repeats the original, which was counted."""

    place: Place
    original: Place


@dataclass(frozen=True, slots=True)
class StoredValues:
    """States of keys, all of one plan.

    Attributes:
        states: in the order of key and window.
    """

    plan: Plan
    states: tuple[StoredState, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """What made the states of some keys of a stage.

    Attributes:
        stored: what the store has.
        replayed: what the records give.
        contributions: the units that reached the keys, in the order in which the stage took them.
        replays: records that repeat one of these and were ignored.
        missing: records that the topics no longer have. Then nothing can be compared.
        before: the plan of the export with whose states the replay began; None: it began where the flow began.
        trusted: the keys' states in that export, which nobody has checked.
        arrived: the watched keys that any record had.
        disordered: records were released, which count after later ones; see `sqe_chain.features.parking.Parking`.
        any_key: these may have changed states of keys that they have not reached.
        undecided: what the flow could not process, and may count later; only if the trace has the records.
    """

    stage: StageNode
    stored: StoredValues
    replayed: tuple[StoredState, ...]
    contributions: tuple[Contribution, ...]
    replays: tuple[_IgnoredReplay, ...]
    missing: tuple[Missing, ...]
    before: Plan | None = None
    trusted: tuple[StoredState, ...] = ()
    arrived: frozenset[bytes] = frozenset()
    disordered: bool = False
    any_key: bool = False
    undecided: tuple[FailedRecord, ...] = ()

    @property
    def equal(self) -> bool | None:
        """Whether the stored states are what the records give; None: it is not known."""
        if self.missing or (self.not_known and not self.different):
            return None
        return not self.different

    @property
    def different(self) -> tuple[bytes, ...]:
        """The keys whose stored states are not what the records give, in whatever order the flow has counted them."""
        return tuple(key for key in self.unequal if not self.doubt(key))

    @property
    def not_known(self) -> tuple[bytes, ...]:
        """The keys whose stored states may be right although they are not what the records give: see `doubt`."""
        return tuple(key for key in self.unequal if self.doubt(key))

    def doubt(self, key: bytes) -> str:
        """Why another state of a key may be right, as a sentence: the replay counts in another order. Empty: there is no reason.

        Reliable only if the trace has the records.
        """
        if not self.disordered:  # or the states were folded again since
            return ""
        own = len({unit.place for unit in self.contributions if unit.key == key and unit.released})
        if not own and not self.any_key:
            return ""
        records = f"{own} records of this key were" if own > 1 else "1 record of this key was"
        released = records if own else "records of this flow were"
        return (
            f"the stored state is another one, but {released} released, and counted later than here. If the state depends on the order "
            "of records, it may be right. A rebuild counts each at its place"
        )

    @property
    def unequal(self) -> tuple[bytes, ...]:
        """The keys whose stored states are not what the records give in the order of the topics."""
        stored, replayed = self._as_json(self.stored.states), self._as_json(self.replayed)
        return tuple(
            sorted(key for key in {*stored, *replayed} if stored.get(key, []) != replayed.get(key, []))
        )

    def first_difference(self, key: bytes) -> str:
        """From which record on the stored state of a key differs from what the records give, as a sentence."""
        counted = [unit for unit in self.contributions if unit.key == key and not unit.refused]
        stored = self._as_json(self.stored.states).get(key, [])
        if not counted:
            return self._without_records()
        if not stored:
            return f"the store has no state; the first record is {name_of(counted[0].place)}"
        if any(unit.state is None for unit in counted):
            return f"the records from {name_of(counted[0].place)} to {name_of(counted[-1].place)} give another state"
        wanted = stored[0][-1]
        for unit, after in zip(reversed(counted[:-1]), reversed(counted[1:]), strict=True):
            if exactly(unit.state) == wanted:
                return f"the stored state is that after {name_of(unit.place)}; {name_of(after.place)} is the first record that it lacks"
        before = self._as_json(self.trusted).get(key, [])
        if self.before is not None and before and before[0][-1] == wanted:
            return f"the stored state is that of plan {self.before.number}; {name_of(counted[0].place)} is the first record that it lacks"
        return f"the stored state is that after none of the {len(counted)} records; the first is {name_of(counted[0].place)}"

    def _without_records(self) -> str:
        """Why a state differs that no record has reached."""
        if self.before is None:
            return "no record has this key, and the store has a state"
        return f"no record has reached this key since plan {self.before.number}, and the store has another state than the export"

    def _as_json(self, states: Sequence[StoredState]) -> dict[bytes, list[tuple[object, ...]]]:
        codec = self.stage.codec
        if codec is None:
            return {}
        by_key: dict[bytes, list[tuple[object, ...]]] = {}
        for state in states:
            if state.state is not None:
                shown = exactly(codec.to_json(state.state))
                by_key.setdefault(state.key, []).append((state.span, state.final, shown))
        return by_key


def trace(
    env: Environment,
    stage: StageNode,
    keys: Sequence[bytes],
    *,
    since: Path | None = None,
    reading: Pass | None = None,
    with_records: bool = True,
    watched: Callable[[bytes], bool] | None = None,
    failed: Sequence[FailedLog] | None = None,
) -> Trace:
    """Find out which records made the states of keys. Reads topics and store; changes nothing.

    The flow may run meanwhile. The states are compared as of one plan, and the topics are read up to its end.

    Args:
        env: the flow and its ports.
        stage: a stage that keeps states by key.
        keys: the keys.
        since: a file of `sqe-chain export`: trust its states, and read only what came after them.
        reading: counts the records, from 0 in each pass, and may end the trace early; None: nobody wants to know.
        with_records: also list the records, and those that were ignored as replays; the key's partitions are then read twice. Without, a
            state may differ because inputs were skipped under another policy than that of now.
        watched: which other keys are noted if records have them; see `Trace.arrived`.
        failed: what the flow's dead-letter topic knows; None: it is read.

    Raises:
        ConfigurationError: the stage keeps no states by key, the flow has not run, or it cannot be replayed.
        ServiceStopped: a topic is not what it was.
        StoreInconsistent: the store has lost a cell, or states of one.
    """
    check_traceable(stage)
    stored = read_states(env.ports.stores, env.flow.name, stage, keys)
    asked = _Question(
        env,
        stage,
        frozenset(keys),
        stored,
        failed_logs(env) if failed is None else failed,
        since,
        reading or Pass(),
        with_records=with_records,
        watched=watched,
    )
    # What waits for event time in one stage waits in all.
    alone = lets_keys_go_alone(env.flow, stage)
    narrowed = alone and not env.flow.by_time
    first = env.flow.depths[stage.index] == 1 and since is None
    partitions = partitions_of_keys(env.flow, stored.plan, keys) if first and watched is None else None
    focus = Focus({stage.name: asked.keys}, stage.name, partitions) if narrowed else None
    result = asked.answer(focus, alone=alone)
    # Under another policy of earlier days, inputs may have been skipped that fail elsewhere in the flow. An accusation waits for that.
    if narrowed and with_records and result.unequal and not result.missing:
        result = asked.answer(None, alone=alone)
    return result


@dataclass(frozen=True, slots=True)
class _Question:
    """What a trace is asked; for the fields see `trace`."""

    env: Environment
    stage: StageNode
    keys: frozenset[bytes]
    stored: StoredValues
    failed: Sequence[FailedLog]
    since: Path | None
    reading: Pass
    with_records: bool
    watched: Callable[[bytes], bool] | None

    def answer(self, focus: Focus | None, *, alone: bool) -> Trace:
        """Replay and compare."""
        env, stage, stored, with_records = self.env, self.stage, self.stored, self.with_records
        watched = None if self.watched is None else (stage.name, self.watched)
        recorder = Recorder(self.keys, keeps=with_records, watched=watched)
        with Replay(
            env,
            stored.plan,
            recorder,
            alone=frozenset({stage.name} if alone else ()),
            focus=focus,
            since=self.since,
            reading=self.reading,
            failed=self.failed,
        ) as replay:
            replay.run()
            states = tuple(replay.states(stage, self.keys))
        before, disordered = replay.before, Parking.of(stored.plan).disordered
        released = find_released(self.failed)
        contributions = _contributions(recorder, stage, released)
        result = Trace(
            stage,
            stored,
            states,
            contributions,
            self._replays(contributions, replay) if with_records else (),
            replay.missing,
            arrived=frozenset(recorder.arrived),
            disordered=disordered,
            any_key=disordered and _may_change_any_key(env, stage, stored.plan, released, replay),
            undecided=find_undecided(env.flow, env.ports.log, env.ports.home, self.failed)
            if with_records
            else (),
        )
        if before is None:
            return result
        return replace(result, before=before.plan, trusted=before.states[stage.name])

    def _replays(self, contributions: Sequence[Contribution], replay: Replay) -> tuple[_IgnoredReplay, ...]:
        """The records that repeat one which was counted."""
        before = replay.before
        begun = self.stored.plan.layout.starts if before is None else before.plan.next_offsets()
        spans = _spans(self.env, self.stored.plan, contributions, begun, replay.missing)
        self.reading.begin(sum(span.stop - span.start for span in spans))
        by_position = {(unit.lane, unit.position): unit.place for unit in contributions}
        replays = list[_IgnoredReplay]()
        for span in spans:
            for place, lane, position in positions(self.env, span, self.reading):
                original = by_position.get((lane, position))
                if original is not None and original != place:
                    replays.append(_IgnoredReplay(place, original))
        return tuple(replays)


def _contributions(
    recorder: Recorder, stage: StageNode, released: frozenset[FailedPlace]
) -> tuple[Contribution, ...]:
    """What has reached the keys at a stage; what was released is marked so."""
    late = {(topic, partition, offset) for topic, _, partition, offset in released}
    return tuple(
        replace(unit, released=True) if unit.place in late else unit
        for unit in recorder.contributions()
        if unit.stage == stage.name
    )


def _may_change_any_key(
    env: Environment, stage: StageNode, plan: Plan, released: frozenset[FailedPlace], replay: Replay
) -> bool:
    """Whether releases may have changed states of keys that the released records have not reached.

    A stage before may give other values for later records. Event time moves at a place and not at a release. After an export a
    released record may have no row. Of parked records nothing is known.
    """
    parked = not set(Parking.of(plan).counted) <= released
    behind = env.flow.depths[stage.index] > 1 or env.flow.by_time or stage.traits.ticks
    return parked or behind or replay.before is not None


def check_traceable(stage: StageNode) -> None:
    """Check that a stage keeps states by key.

    Raises:
        ConfigurationError: it is a filter, or writes a table.
    """
    if stage.codec is None or stage.traits.spread != "key":
        raise ConfigurationError(
            f"stage {stage.name!r} ({stage.traits.method}) keeps no states by key. Expected an aggregate, windows or a "
            "join. Use `sqe-chain why-not` for a record that it dropped"
        )


def read_states(
    stores: Mapping[str, StateStore], flow: str, stage: StageNode, keys: Sequence[bytes]
) -> StoredValues:
    """The stored states of keys, all as of one plan. The store "" is the metadata store.

    Raises:
        ConfigurationError: the flow or the stage has not run.
        StoreInconsistent: the store has lost a cell, or states of one.
        Unavailable: a batch was being persisted all the time.
    """
    wanted, store = frozenset(keys), stores[stage.store or ""]
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE_S if attempt else 0)
        last, where = plan_of_a_run(stores[""], flow), location_of(stores[""], flow, stage.name)
        cells = sorted({cell_of(key, where.state_partitions, where.buckets) for key in keys})
        before = check_cells(stores[""], flow, stage.name, store, where, cells)
        states = [
            state
            for cell in cells
            for row, content in _rows(store, where.flow, stage, cell, wanted)
            for state in states_in_row(stage, flow, row, content)
            if state.key in wanted
        ]
        after = store.headers(where.flow, stage.name, cells)
        # Each plan moves the headers of all cells, so at rest they agree, and none has begun another one.
        reached = {(-1, "") if header is None else (header.number, header.begun_id) for header in after}
        number, begun_id = min(reached, default=(-1, ""))
        if before != after or len(reached) > 1 or begun_id:
            continue
        plan = last if number < 0 else read_plan(stores[""], flow, number)
        if plan is not None:
            return StoredValues(plan, tuple(sorted(states, key=lambda state: (state.key, state.span))))
    raise Unavailable(
        f"stage {stage.name!r} of flow {flow!r} is being written: a plan is persisted in part. Ask again. If no service of the "
        "flow runs, start it: it finishes the plan"
    )


def check_cells(
    home: StateStore, flow: str, stage: str, store: StateStore, where: Location, cells: Sequence[int]
) -> list[Header]:
    """The headers of cells of a stage that has run; each has one, and all the states that writes have left.

    Args:
        home: the metadata store.
        flow: the flow's name.
        stage: the stage's name.
        store: what holds its states.
        where: where they are.
        cells: which of them.

    Raises:
        StoreInconsistent: the store has lost one, or states beside it.
        Unavailable: a rebuild has moved them meanwhile.
    """
    headers = list[Header]()
    for cell, header in zip(cells, store.headers(where.flow, stage, cells), strict=True):
        part = f"{where.flow}/{stage}/{cell}"
        if header is None and location_of(home, flow, stage) != where:
            raise Unavailable(f"flow {flow!r} was rebuilt while this read stage {stage!r}. Read it again")
        if header is None:
            raise lost_part(part)
        header.check_whole(part)
        headers.append(header)
    return headers


def _rows(
    store: StateStore, flow: str, stage: StageNode, cell: int, keys: frozenset[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Rows of a cell that may have states of these keys."""
    if not stage.traits.states_by_key:
        yield from store.scan(flow, stage.name, cell)
        return
    ordered = sorted(keys)
    _, contents, _ = store.read(flow, stage.name, cell, ordered)
    for key, content in zip(ordered, contents, strict=True):
        if content is not None:
            yield key, content


def _spans(
    env: Environment,
    plan: Plan,
    contributions: Sequence[Contribution],
    begun: Mapping[TopicPartition, int],
    missing: Sequence[Missing],
) -> list[Range]:
    """What a flow has read of the partitions in which there may be replays of records."""
    # A raw record is its own root: none repeats another one.
    raw = {topic for source in env.flow.sources if source.raw for topic in source.topics}
    partitions = {unit.place[:2] for unit in contributions if unit.place[0] not in raw}
    begins = {(gap.topic, gap.partition): gap.end for gap in missing}
    infos = env.log.describe({topic for topic, _ in partitions})
    return [
        Range(tp[0], infos[tp[0]].topic_id, tp[1], begins.get(tp, begun.get(tp, 0)), planned.stop)
        for tp, planned in plan.ends().items()
        if tp in partitions
    ]


def positions(env: Environment, span: Range, reading: Pass) -> Iterator[tuple[Place, int, bytes]]:
    """Place, lane and position of each readable record of a part of a partition."""
    source = env.flow.source_of[span.topic]
    raw = source is not None and source.raw
    for block in reading.follow(env.ports.log.read(span)):
        for message in block:
            try:
                head = None if raw else find_head(message.value(), message.headers())
            except EnvelopeError:
                continue
            yield (
                (span.topic, span.partition, message.offset()),
                *lane_and_position(head, message, span.topic_id),
            )


def exactly(state: object) -> str:
    """A state in JSON as text: states are equal if these texts are. In Python 10 equals 10.0, and 1 equals True.

    >>> exactly({"b": 1, "a": 1.0}), exactly({"a": 1.0, "b": True})
    ('{"a": 1.0, "b": 1}', '{"a": 1.0, "b": true}')
    """
    return json.dumps(state, sort_keys=True, default=repr)


def name_of(place: Place) -> str:
    """A place as texts show it: topic[partition]@offset; of what no input has caused, the moment of event time that has.

    >>> name_of(("in", 0, 5)), name_of(("-due.per-hour", 2, 4503599631000000))
    ('in[0]@5', "the moment 3629504 ms of stage 'per-hour' in state partition 2")
    """
    topic, partition, offset = place
    return moment_name(topic, partition, offset) or f"{topic}[{partition}]@{offset}"
