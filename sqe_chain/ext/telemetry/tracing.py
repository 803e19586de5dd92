"""Spans of a service: one for each batch, and in it one for each numbered step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import time_ns
from types import TracebackType
from typing import Self

from opentelemetry.sdk.trace import TracerProvider

from sqe_chain.ext.telemetry.exporting import provider_of
from sqe_chain.ext.telemetry.links import GivenIds, create_spans, link_records
from sqe_chain.ext.telemetry.spans import BATCH, START, Open, Spans, add_event, end, fail, set_all
from sqe_chain.features.events import TracesSeen
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.events import (
    CLAIM,
    COMMIT,
    PROCESS,
    PUBLISH,
    RECOVER,
    CaughtUp,
    Claimed,
    Committed,
    Event,
    Failed,
    Observer,
    Persisted,
    Published,
    Recovered,
    Sealed,
    Waiting,
    When,
)


class Tracing(Observer):
    """Makes spans of the steps and events of a service. A context: at its end all spans are exported.

    Steps 1 and 2 lie in a span `start`; steps 3 to 7 in the span of their batch. A plan that recovery redoes lies in the
    step `recover`. An error that ends the service is recorded on each span that is under way.

    In a flow with `traces=True`, the span of a batch has links to the traces of its records. Each output that was made of
    several records has a span of its own, with links to theirs.

    Args:
        provider: gives the provider of spans for a service's name and what gives ids; by default one that the environment
            variables OTEL_* set.

    Raises:
        ConfigurationError: the environment names an exporter that is not installed.
    """

    def __init__(
        self, flow: CompiledFlow, provider: Callable[[str, GivenIds], TracerProvider] = provider_of
    ) -> None:
        self._ids = GivenIds()
        self._provider = provider(flow.declared_name, self._ids)
        self._spans = Spans(self._provider.get_tracer("sqe_chain"), flow)
        self._flow = flow
        self._open: list[Open] = []
        self._committing: deque[Open] = deque()
        self._batches = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what is under way, and export everything."""
        for opened in (*reversed(self._open), *self._committing):
            if error is None:
                end(opened)
            else:
                fail(opened, error)
        self._open.clear()
        self._committing.clear()
        self._provider.shutdown()

    def step(self, number: int, when: When) -> None:
        if when == "after":
            self._end_step(number)
            return
        if self._open and self._open[-1].number in (PROCESS, number):  # it was given up, and begins again
            end(self._open.pop())
        if not self._open:
            self._open.append(self._begin(number))
        self._open.append(self._spans.begin_step(number, self._open[-1]))

    def event(self, event: Event) -> None:
        match event:
            case Committed():
                if self._committing:
                    self._end_batch(self._committing.popleft(), event)
            case Sealed():
                for opened in self._open:
                    set_all(opened, {"sqe_chain.plan.number": event.plan, "sqe_chain.plan.id": event.id})
                    opened.log_fields["plan"] = event.plan
            case CaughtUp():
                if self._open and self._open[0].name == BATCH:  # nothing was left of it when it began again
                    self._end_all()
            case _:
                for opened in self._open[-1:]:
                    self._note(event, opened)

    def log_fields(self, event: Event) -> Mapping[str, object]:
        """What a structured log line of an event has of the span in which it happens: ids, batch, plan and step."""
        # Other threads report events, too, while spans begin and end.
        opened = [*self._committing][:1] if isinstance(event, Committed) else self._open[-1:]
        return opened[0].log_fields if opened else {}

    def _begin(self, number: int) -> Open:
        if number in (CLAIM, RECOVER):
            return self._spans.begin_start()
        self._batches += 1
        return self._spans.begin_batch(self._batches, reads=number == PUBLISH)

    def _end_step(self, number: int) -> None:
        """End a step, and what it is the last step of."""
        while self._open and self._open[-1].number:
            opened = self._open.pop()
            end(opened)
            if opened.number == number:
                break
        if len(self._open) != 1:
            return
        outer = self._open[0]
        outer.reads |= number == PROCESS or (number == PUBLISH and not self._flow.keeps_plans)
        if outer.name == START and number == RECOVER:
            self._end_all()
        elif outer.name == BATCH and number == COMMIT:
            outer.end_ns = time_ns()
            self._open.clear()
            if outer.reads:  # the counts come when the commit is acknowledged
                self._committing.append(outer)
            else:
                end(outer)

    def _end_all(self) -> None:
        while self._open:
            end(self._open.pop())

    def _end_batch(self, batch: Open, event: Committed) -> None:
        counts = {
            "messaging.batch.message_count": event.inputs,
            "sqe_chain.plan.number": event.plan,
            "sqe_chain.replays": event.replays,
            "sqe_chain.skipped": event.excluded,
            "sqe_chain.outputs": event.outputs,
            "sqe_chain.lag": event.lag,
            "sqe_chain.held": event.held,
        }
        set_all(batch, counts)
        end(batch)

    def _note(self, event: Event, step: Open) -> None:
        """Note on the span of a step what has happened in it."""
        match event:
            case Published():
                counts = {"messaging.batch.message_count": event.outputs, "sqe_chain.plan.number": event.plan}
                set_all(step, counts)
            case Persisted():
                set_all(step, {"sqe_chain.plan.number": event.plan, "sqe_chain.states": event.rows})
                stages = [stage.name for stage in self._flow.levels[event.level - 1]]
                set_all(step, {"sqe_chain.level": event.level, "sqe_chain.stages": stages})
            case Claimed():
                set_all(step, {"sqe_chain.claim.epoch": event.epoch})
            case Recovered():
                set_all(step, {"sqe_chain.plans.redone": [*map(str, event.redone or ())]})
            case TracesSeen():
                link_records(self._open[0] if self._open[0].name == BATCH else step, event.report)
                create_spans(self._spans, self._ids, step, event.report.outputs)
            case Waiting():
                add_event(
                    step, "waiting", {"sqe_chain.waits_to": event.what, "sqe_chain.reason": event.reason}
                )
            case Failed():
                add_event(
                    step, "failed", {"sqe_chain.attempt": event.attempt, "sqe_chain.inputs": event.inputs}
                )
