"""A trap: a service process that stops or dies at a chosen event, by a signal to its own process group.

The event's line is written before. Signals sent from outside come some batches later; this one comes at the
very instruction, yet it is the kernel's SIGKILL or SIGSTOP: nothing of the process runs on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

from sqe_chain.runtime.lines import Lines


class Trap:
    """Springs when events have come in this order, others between them.

    Args:
        events: names, the last one springs.
        number: the signal.
    """

    def __init__(self, events: Sequence[str], number: signal.Signals) -> None:
        self._left = list(events)
        self._number = number

    def hear(self, name: str) -> None:
        """Note an event; its line stands in the log already."""
        if self._left and self._left[0] == name:
            self._left.pop(0)
            if not self._left:
                os.killpg(0, self._number)  # the harness gave this process a group of its own


def set_trap(text: str) -> None:
    """Set a trap in this process, from ``event,event,...:SIGNAL``."""
    events, _, number = text.partition(":")
    trap = Trap(events.split(","), signal.Signals[number])
    write = Lines.event

    def event(self: Lines, name: str, fields: Mapping[str, object]) -> None:
        write(self, name, fields)
        trap.hear(name)

    Lines.event = event  # type: ignore[method-assign]
