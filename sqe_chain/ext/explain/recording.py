"""A kind of stage that does what another one does, and records which inputs reach chosen keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sqe_chain.codecs import Codec
from sqe_chain.flow.context import Context, Origin
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.stage_kind import (
    CONTEXT,
    MATCHED,
    UNMATCHED,
    LiveState,
    StageKind,
    StageTask,
    StageTraits,
    StageWork,
)
from sqe_chain.flow.state_table import StateTable
from sqe_chain.flow.stored import StoredState
from sqe_chain.flow.units import Push, Unit, UnitRun, unpack_key_and_id
from sqe_chain.ports import Sink

Place = tuple[str, int, int]
"""Topic, partition and offset of an input."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """One unit that reached a recorded key.

    Attributes:
        place: where its input was read.
        root: where the message that caused it was read.
        chain: the links of its input, root first, as `Chain` shows them.
        lane: the lane of its input.
        position: the position of its input on the lane.
        timestamp_ms: its event time, milliseconds since 1970.
        plan: number of the replayed batch, as the replay counts them.
        refused: why the stage did not count it; empty: it did.
        state: the key's state after it, as JSON; None: the stage has none by key, or deleted it.
        released: its input failed first, and counts since it was released: later than here.
    """

    stage: str
    key: bytes
    place: Place
    root: Place
    chain: str
    lane: int
    position: bytes
    timestamp_ms: int
    plan: int
    refused: str = ""
    state: object = None
    released: bool = False


@dataclass(slots=True)
class Recorder:
    """What is recorded while a flow is replayed.

    Args:
        keys: record units of these keys; None: of all.
        place: record only units of this input; None: of all.
        keeps: whether what is recorded is kept; False: the keys are only chosen.
        watched: name of a stage, and the keys whose arrival there is noted; None: of no stage.

    Attributes:
        arrived: the watched keys that units had.
        by_plan: number of a batch -> what was recorded in its last attempt.
    """

    keys: frozenset[bytes] | None = None
    place: Place | None = None
    keeps: bool = True
    watched: tuple[str, Callable[[bytes], bool]] | None = None
    arrived: set[bytes] = field(default_factory=set)
    by_plan: dict[int, list[Contribution]] = field(default_factory=dict)

    def begin(self, plan: int) -> None:
        """An attempt at a batch begins: what an earlier attempt recorded is dropped."""
        self.by_plan.pop(plan, None)

    def takes(self, key: bytes | None, origin: Callable[[], Origin]) -> bool:
        """Whether a unit is recorded."""
        if self.keys is not None and key not in self.keys:
            return False
        return self.place is None or origin().order == self.place

    def watch(self, stage: str, keys: Iterable[bytes | None]) -> None:
        """Note keys that have come to a stage."""
        if self.watched is not None and self.watched[0] == stage:
            wants = self.watched[1]
            new = {key for key in keys if key is not None}.difference(self.arrived)
            self.arrived.update(filter(wants, new))

    def add(self, contribution: Contribution) -> None:
        """Record a unit."""
        if self.keeps:
            self.by_plan.setdefault(contribution.plan, []).append(contribution)

    def contributions(self) -> list[Contribution]:
        """All that was recorded, batch by batch, each in the order in which the stage took it."""
        return [unit for plan in sorted(self.by_plan) for unit in self.by_plan[plan]]


@dataclass(frozen=True)
class RecordingKind(StageKind):
    """Does what another kind does, and records it.

    Args:
        recorder: takes what is recorded; the reader of the records has it too, so the flow runs in one process.
        alone: only recorded keys are processed: the stage lets no other key change what these get.
    """

    inner: StageKind
    recorder: Recorder
    alone: bool = False

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the inner kind."""
        return self.inner.name

    @property
    def traits(self) -> StageTraits:
        return replace(self.inner.traits, needs=CONTEXT)

    @property
    def functions(self) -> tuple[DeclaredFunction, ...]:
        return self.inner.functions

    @property
    def codec(self) -> Codec[Any] | None:
        return self.inner.codec

    @property
    def sink(self) -> Sink | None:
        return self.inner.sink

    def start(self, task: StageTask) -> StageWork:
        return _RecordingWork(self, self.inner.start(task), task)

    def states_in(self, row: bytes, content: bytes) -> Iterable[StoredState]:
        return self.inner.states_in(row, content)

    @property
    def state_table(self) -> StateTable | None:
        return self.inner.state_table

    def shown_in(self, row: bytes, content: bytes) -> Mapping[str, object] | None:
        return self.inner.shown_in(row, content)


class _RecordingWork(StageWork):
    """The work of a `RecordingKind`: each method of `StageWork` is the inner one's."""

    def __init__(self, kind: RecordingKind, inner: StageWork, task: StageTask) -> None:
        self._kind, self._inner, self._task = kind, inner, task
        self._by_id = kind.inner.traits.spread == "id"

    def apply(self, units: Sequence[Unit]) -> None:
        run, recorder, begin = UnitRun.of(units), self._kind.recorder, 0
        recorder.watch(self._task.name, run.keys)
        for index, packed in enumerate(run.keys):
            key = unpack_key_and_id(packed)[0] if self._by_id and packed is not None else packed
            if not recorder.takes(key, partial(run.origin, index)):
                continue
            if not self._kind.alone and begin < index:
                self._inner.apply(run[begin:index])
            if recorder.keeps:
                self._record(run, index, key)
            else:
                self._inner.apply(run[index : index + 1])
            begin = index + 1
        if not self._kind.alone and begin < len(run):
            self._inner.apply(run[begin:])

    def _record(self, run: UnitRun, index: int, key: bytes | None) -> None:
        """Apply one unit, and record what became of it."""
        task, origin = self._task, run.origin(index)
        before = task.counts.copy()
        self._inner.apply(run[index : index + 1])
        refused = [
            reason
            for (stage, reason), count in task.counts.items()
            if stage == task.name and count > before[stage, reason] and reason not in (MATCHED, UNMATCHED)
        ]
        context = Context(origin, key, task.now_ms)
        self._kind.recorder.add(
            Contribution(
                stage=task.name,
                key=key or b"",
                place=origin.order,
                root=(context.root.topic, context.root.partition, context.root.offset),
                chain=str(context.chain),
                lane=origin.lane,
                position=origin.position,
                timestamp_ms=origin.timestamp_ms,
                plan=task.number,
                refused=", ".join(refused),
                state=self._state_of(key),
            )
        )

    def _state_of(self, key: bytes | None) -> object:
        """The key's state now, as JSON; None: it has none, or it cannot be asked for by key."""
        live = getattr(self._inner, "entries", {}).get(key)
        codec = self._kind.codec
        if codec is None or not isinstance(live, LiveState) or live.deleted:
            return None
        return codec.to_json(live.state)

    def finish(self) -> None:
        self._inner.finish()

    def reach(self) -> None:
        self._inner.reach()

    @property
    def due_ms(self) -> int | None:
        return self._inner.due_ms

    @property
    def missed(self) -> int:
        return self._inner.missed

    def tick(self, origin: Origin, clock_ms: int) -> None:
        self._inner.tick(origin, clock_ms)

    @property
    def timer_ms(self) -> int | None:
        return self._inner.timer_ms

    def close_windows(self, origin: Origin) -> None:
        self._inner.close_windows(origin)

    def push_changes(self, push: Push) -> None:
        self._inner.push_changes(push)
