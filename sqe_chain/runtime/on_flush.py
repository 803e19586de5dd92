"""Tells a function of the user when the rows of a batch are in a table for good."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sqe_chain.protocol.events import Event, TableFlushed
from sqe_chain.protocol.interfaces import Observer, When
from sqe_chain.runtime.launching import ObserverFactory
from sqe_chain.runtime.statistics import Statistics
from sqe_chain.runtime.stop import ServiceClock

OnFlush = Callable[[TableFlushed], object]
"""Called in the service's thread. What it raises ends the service, as a crash at that moment would."""


class _Listener:
    """Implements `protocol.interfaces.Observer`."""

    def __init__(self, on_flush: OnFlush) -> None:
        self._on_flush = on_flush

    def step(self, number: int, when: When) -> None:
        """Ignored."""

    def event(self, event: Event) -> None:
        """Pass on."""
        if isinstance(event, TableFlushed):
            self._on_flush(event)


def listening_to(observers: ObserverFactory, on_flush: OnFlush | None) -> ObserverFactory:
    """Observers, and a function that hears of flushes.

    Args:
        observers: makes the others.
        on_flush: the function; None: there is none.
    """
    if on_flush is None:
        return observers

    @contextmanager
    def found(statistics: Statistics, clock: ServiceClock) -> Iterator[Sequence[Observer]]:
        with observers(statistics, clock) as others:
            yield [*others, _Listener(on_flush)]

    return found
