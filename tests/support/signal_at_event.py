"""Make a service process kill or stop itself at a chosen event, by a signal to its own process group.

The event's log line is written first. A signal from outside would arrive some batches later. This one hits the exact
instruction, and it is still the kernel's SIGKILL or SIGSTOP: no cleanup code runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from sqe_chain.plans.events import Event
from sqe_chain.runtime.lines import Lines


class SignalAtEvent:
    """Sends a signal once these events have happened in this order, possibly with others in between.

    Args:
        events: their names; ``name+field``: such an event with more than 0 in this field.
        number: the signal.
    """

    def __init__(self, events: Sequence[str], number: signal.Signals) -> None:
        self._remaining = list(events)
        self._number = number

    def on_event(self, event: Event) -> None:
        """Handle an event whose line is already in the log."""
        name, _, field = self._remaining[0].partition("+") if self._remaining else ("", "", "")
        if event.name == name and (not field or getattr(event, field) > 0):
            self._remaining.pop(0)
            if not self._remaining:
                os.killpg(0, self._number)  # the harness gave this process a group of its own


def install_signal(text: str) -> None:
    """Install a signal in this process, from ``event,event,...:SIGNAL``."""
    events, _, number = text.partition(":")
    at_event = SignalAtEvent(events.split(","), signal.Signals[number])
    write = Lines.event

    def event(self: Lines, event: Event) -> None:
        write(self, event)
        at_event.on_event(event)

    Lines.event = event  # type: ignore[method-assign]
