"""Services whose batches, crashes, restarts and rebuilds are drawn, in any order."""

from __future__ import annotations

import random

from sqe_chain.protocol.settings import Settings
from sqe_chain.testing.faults import Crash
from sqe_chain.testing.rehearsal import Rehearsal


class DisturbedServices:
    """What tests of drawn worlds share: one step is a batch, a crash, a restart, a rebuild, or more input.

    Attributes:
        draw: where everything is drawn from.
        everyone: the services, in the order in which records reach them.
    """

    draw: random.Random
    everyone: list[Rehearsal]

    def feed(self) -> bool:
        """Append some input; False: nothing is left."""
        raise NotImplementedError

    def drawn_settings(self) -> Settings:
        """Settings with small or large batches."""
        return Settings(max_records=self.draw.choice([3, 7, 30, 400_000]))

    def batch(self, who: Rehearsal) -> None:
        """One batch of a service, which may crash."""
        try:
            who.batch()
        except Crash:
            who.service = None

    def step(self) -> None:
        """Whatever is drawn."""
        what, who = self.draw.randrange(20), self.draw.choice(self.everyone)
        if what < 12:
            self.batch(who)
        elif what < 14:
            who.service = None
        elif what < 16:
            who.crash_at_write(self.draw.randrange(1, 12), self.draw.choice(["before", "after"]))
            for _ in range(3):
                self.batch(who)
        elif what < 17 and who.events("sealed"):
            try:
                who.rebuild()
            except Crash:
                who.service = None
        else:
            self.feed()

    def catch_up(self) -> None:
        """Run all services without more input, in their order."""
        for service in self.everyone:
            service.run_until_caught_up()
