"""What a service tells while it runs, passed on to everybody who listens."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqe_chain.protocol.events import CaughtUp, Event, Notice
from sqe_chain.protocol.interfaces import Observer, When


class Observers:
    """An observer that tells several others.

    `caught_up` is passed on once, until something else happens: a service without an interval says it ten
    times a second.
    """

    def __init__(self, *hearers: Observer) -> None:
        self._hearers: Sequence[Observer] = hearers
        self._caught_up = False

    def step(self, number: int, when: When) -> None:
        """Pass on."""
        for hearer in self._hearers:
            hearer.step(number, when)

    def event(self, event: Event) -> None:
        """Pass on."""
        caught_up = isinstance(event, CaughtUp)
        if caught_up and self._caught_up:
            return
        self._caught_up = caught_up
        for hearer in self._hearers:
            hearer.event(event)


class _ToObserver(logging.Handler):
    """Passes on what libraries log, as notices."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(logging.WARNING)
        self._observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on."""
        self._observer.event(Notice(record.getMessage(), record.name))


@contextmanager
def logging_to(observer: Observer) -> Iterator[None]:
    """While in the context, warnings that libraries log are told like everything else."""
    handler, root = _ToObserver(observer), logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
