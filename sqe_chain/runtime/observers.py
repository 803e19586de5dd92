"""Several observers of a service as one; warnings of libraries as events; and a function of the user as an observer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqe_chain.features.events import TableFlushed
from sqe_chain.plans.events import CaughtUp, Event, Notice, Observer, When


class Observers(Observer):
    """Passes steps and events on to several observers.

    Of `CaughtUp` events in a row only the first is passed on: a service without an interval emits ten a second.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._caught_up = False

    def step(self, number: int, when: When) -> None:
        for observer in self._observers:
            observer.step(number, when)

    def event(self, event: Event) -> None:
        caught_up = isinstance(event, CaughtUp)
        if caught_up and self._caught_up:
            return
        self._caught_up = caught_up
        for observer in self._observers:
            observer.event(event)


class Quiet(Observer):
    """Hears nothing: what is done here is of no interest to others."""

    def event(self, event: Event) -> None:
        del event


OnFlush = Callable[[TableFlushed], object]
"""Called in the service's thread. What it raises ends the service, as a crash at that moment would."""


class FlushListener(Observer):
    """Calls a function of the user when the rows of a batch are durably in a table."""

    def __init__(self, on_flush: OnFlush) -> None:
        self._on_flush = on_flush

    def event(self, event: Event) -> None:
        if isinstance(event, TableFlushed):
            self._on_flush(event)


class _ToObserver(logging.Handler):
    """Turns log records of libraries into notices."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(logging.WARNING)
        self._observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        self._observer.event(Notice(record.getMessage(), record.name))


@contextmanager
def forward_warnings(observer: Observer) -> Iterator[None]:
    """While in the context, turn warnings that libraries log into notices for this observer."""
    handler, root = _ToObserver(observer), logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
