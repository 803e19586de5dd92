"""A standby: a run that waits while another one is alive, and takes over when that one has ended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from sqe_chain.errors import Superseded
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.testing.clock import SteppingClock
from sqe_chain.testing.invariants import Violation

if TYPE_CHECKING:
    from tests.lab.simulator.run import Simulation

STEP_MS = 200
"""How long a standby waits between two looks at the claim."""

End = Literal["killed", "given back"]


def run_standby(simulation: Simulation, signs: int, every: int, end: End) -> None:
    """Start another run of `totals`, which has to wait for the present one.

    Args:
        simulation: the simulation.
        signs: how many more signs of life the present run gives: a batch first, then heartbeats.
        every: how many times the standby looks between two of them.
        end: how the present run ends after that.
    """
    totals, clock = simulation.services["totals"], simulation.clock
    present = totals.service
    if (present is None or not present.beat()) and not simulation.attempt("totals", totals.start):
        return
    present, totals.service = totals.service, None
    if not isinstance(present, StagedService):
        raise AssertionError("totals has stages")  # noqa: TRY004 - ours, no user can cause it
    if not signs and end == "given back":
        present.leave()
    other = _OtherRun(present, clock, signs, every, end)
    settings = totals.settings.asking(takeover=False)
    clock.while_waiting = other.look
    try:
        started = simulation.attempt("totals", partial(totals.start, settings))
    finally:
        clock.while_waiting = None
    simulation.fired[f"standby, the other run {'killed' if end == 'killed' else 'gave its claim back'}"] += 1
    if not started:
        raise Violation("rest", f"a standby has not taken over after {other.looked} looks")
    waited, least = other.looked - other.seen, settings.standby_ms // STEP_MS if end == "killed" else 0
    if not least <= waited <= least + 1:
        raise Violation("sound", f"a standby took over after {waited} looks without a sign of life: {least}")


@dataclass(slots=True)
class _OtherRun:
    """The run that a standby waits for.

    Attributes:
        run: it.
        clock: of the standby.
        signs: how many more signs of life it gives.
        every: how many times the standby looks between two of them.
        end: how it ends.
        looked: how many times the standby has looked.
        seen: at which of these there was the last sign of life.
    """

    run: StagedService
    clock: SteppingClock
    signs: int
    every: int
    end: End
    looked: int = 0
    seen: int = 0

    def look(self) -> None:
        """The standby waits; meanwhile the run may give a sign of life.

        Raises:
            Violation: the standby has taken over from a run that was alive.
        """
        self.looked += 1
        if not self.signs or self.looked % self.every:
            return
        first = not self.seen
        self.clock.while_waiting, self.clock.waits = None, 0
        try:
            alive = (first and self.run.batch().worked) or self.run.beat()
        except Superseded:
            alive = False
        self.clock.while_waiting = self.look
        if not alive:
            raise Violation(
                "one writer", f"a standby claimed at look {self.looked}, and the other run was alive"
            )
        self.signs, self.seen = self.signs - 1, self.looked
        if not self.signs and self.end == "given back":
            self.run.leave()
