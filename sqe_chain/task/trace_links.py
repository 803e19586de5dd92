"""Which traces the outputs of stages come from, in flows that are declared with `traces=True`.

A value that a filter passes on stays in the trace of its record. A value that a stage makes of the records of a key
begins a trace of its own. It has links to the traces of the records of this batch. Nothing of it is stored: headers
follow from the records of the batch and the output's position. So a plan that is redone publishes the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqe_chain.envelope.trace_context import (
    TRACEPARENT,
    TRACESTATE,
    TraceContext,
    trace_context,
)
from sqe_chain.flow.compiled import takes_times
from sqe_chain.flow.context import Origin, TopicIdPartition
from sqe_chain.flow.nodes import StageNode
from sqe_chain.flow.units import Push, UnitRun
from sqe_chain.ports import Headers
from sqe_chain.task.collector import Made
from sqe_chain.task.records import Records
from sqe_chain.task.trace_report import (
    MOST_LINKS,
    Note,
    Order,
    OwnTrace,
    Place,
    RowTraces,
    TraceReport,
)


@dataclass(slots=True)
class BlockTraces:
    """The spans of the records in the block that is being read.

    Attributes:
        report: of the task.
        contexts: number of a record -> its place and span.
    """

    report: TraceReport = field(default_factory=TraceReport)
    contexts: dict[int, tuple[Order, TraceContext]] = field(default_factory=dict)

    def read(self, records: Records, tp: TopicIdPartition) -> None:
        """Note the spans of the records that were taken of a block."""
        self.contexts.clear()
        given = [message.headers() for message in records.messages]
        if not any(given):
            return
        for number in dict.fromkeys(records.inputs):
            headers = given[number]
            context = trace_context(headers) if headers else None
            if context is not None:
                order = tp.topic, tp.partition, records.messages[number].offset()
                self.contexts[number] = order, context
                self.report.see(context)


@dataclass(slots=True)
class _KeyTraces:
    """The traces of the records of one key.

    Attributes:
        links: the first `MOST_LINKS` spans -> place of the first record with each.
        others: places of records with other spans.
    """

    links: dict[TraceContext, Order] = field(default_factory=dict)
    others: list[Order] = field(default_factory=list)

    def count(self, order: Order, context: TraceContext) -> None:
        """Note a record; records come in the order of their places."""
        if context in self.links:
            return
        if len(self.links) < MOST_LINKS:
            self.links[context] = order
        else:
            self.others.append(order)

    def until(self, order: Order | None) -> OwnTrace | None:
        """What an output is made of that has seen the records up to a place.

        Args:
            order: the place; None: all of the batch.
        """
        links = tuple(context for context, at in self.links.items() if order is None or at <= order)
        dropped = len(self.others) if order is None else bisect_right(self.others, order)
        return OwnTrace(links, dropped) if links else None


class CountedTraces:
    """The traces of the records that the stages of a level count, in one state partition and batch.

    Args:
        made: payloads on their way into outputs.
        block: spans of the block that is being read, where stages get its records without a shuffle.
        candidates: topic, partition and offset of candidates for failure, which are not counted.
    """

    def __init__(self, made: Sequence[Made], block: BlockTraces | None, candidates: frozenset[Order]) -> None:
        self.report = TraceReport()
        self._made = made
        self._block = None if block is None else block.contexts
        self._candidates = candidates
        self._keys: dict[tuple[int, Any], _KeyTraces] = {}
        self._notes: list[Note] = []

    def count(self, stage: int, units: UnitRun) -> None:
        """Note the traces of units that a stage takes next."""
        block = self._block
        if block is not None:
            for key, number in zip(units.keys, units.numbers, strict=True):
                if number in block:
                    self._count(stage, key, *block[number])
            return
        for key, _, _, _, origin in units:
            headers = origin.headers
            context = trace_context(headers) if headers else None
            if context is not None:
                self._count(stage, key, origin.order, context)

    def noting(self, stage: StageNode, push: Push, *, of_batch: bool = False) -> Push:
        """The same, noting how the payloads are traced that it makes.

        Args:
            stage: gives the values.
            push: takes them.
            of_batch: each value is made of all records of the batch, as `changes()` gives them.
        """
        traits = stage.traits
        makes_values = traits.states_by_key or traits.gives_outputs
        whole = of_batch or takes_times(stage)

        def noting(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
            begin = len(self._made)
            push(value, key, path, origin)
            count = len(self._made) - begin
            if not count:
                return
            note: Note = None
            if makes_values:
                counted = self._keys.get((stage.index, key))
                note = None if counted is None else counted.until(None if whole else origin.order)
            elif origin.headers:
                note = [header for header in origin.headers if header[0] in (TRACEPARENT, TRACESTATE)]
            del self._notes[begin:]  # of payloads whose operators have failed
            self._notes += [None] * (begin - len(self._notes)) + [note] * count

        return noting

    def rows(self, made: slice, numbers: Sequence[int]) -> RowTraces:
        """How payloads are traced that are gathered together.

        Args:
            made: which of all.
            numbers: of each, the number of its input.
        """
        notes: dict[Place, OwnTrace | Headers] = {}
        for (output, key, _, _), number, note in zip(
            self._made[made], numbers, self._notes[made], strict=False
        ):
            if not note:
                continue
            place = number, output, key
            before = notes.get(place)
            both = isinstance(before, OwnTrace) and isinstance(note, OwnTrace)
            notes[place] = before.joined(note) if both else note  # type: ignore[union-attr, arg-type]
        return RowTraces(notes)

    def gathered(self, end: int, rows: Sequence[RowTraces]) -> None:
        """Payloads are gathered, and forgotten."""
        del self._notes[:end]
        for traced in rows:
            self.report.made([*traced.outputs.values()])
            self.report.dropped_outputs += traced.dropped

    def _count(self, stage: int, key: object, order: Order, context: TraceContext) -> None:
        if order in self._candidates:
            return
        counted = self._keys.get((stage, key))
        if counted is None:
            counted = self._keys[stage, key] = _KeyTraces()
        counted.count(order, context)
