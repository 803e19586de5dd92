"""Several live runs, of which exactly one moves at a time, from point to point, as the test says.

Each run has a thread of its own that stands still at every point (`points.py`). So an older run may act
between any two requests of a newer one, which a pause and a wake-up alone cannot show.
"""

from __future__ import annotations

import random
import threading

from sqe_chain.errors import Superseded
from sqe_chain.testing import Crash
from tests.support.checked_pipeline import Ledger
from tests.support.fault_points import Points
from tests.support.random_schedules import ledger_of


class Puppet:
    """A run in a thread: `advance` lets it pass points.

    Attributes:
        alive: it has not ended yet.
        error: what it ended with; None when it has caught up.
    """

    def __init__(self, found: Ledger, points: PuppetPoints) -> None:
        self._found = found
        self._go = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self._dies = False
        self.alive = True
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        points.puppets[self._thread] = self
        self._thread.start()
        self._stands.acquire()

    def advance(self, points: int) -> None:
        """Let it pass so many points, or until it ends."""
        for _ in range(points):
            if not self.alive:
                return
            self._go.release()
            self._stands.acquire()

    def kill(self) -> None:
        """It dies at the point where it stands."""
        self._dies = True
        self.advance(1)

    def stand(self) -> None:
        """At a point, in its own thread."""
        self._stands.release()
        self._go.acquire()
        if self._dies:
            raise Crash("killed")

    def _run(self) -> None:
        self._stands.release()
        self._go.acquire()
        try:
            service = self._found.service.start()
            while service.batch():
                pass
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error
        self.alive = False
        self._stands.release()


class PuppetPoints(Points):
    """Points at which puppets stand still; the test's own thread does not."""

    def __init__(self) -> None:
        super().__init__()
        self.puppets: dict[threading.Thread, Puppet] = {}

    def point(self, name: str) -> None:
        super().point(name)
        puppet = self.puppets.get(threading.current_thread())
        if puppet is not None:
            puppet.stand()


def run_interleaved(seed: int, *, acts: int = 40) -> Ledger:
    """One schedule of up to three live runs.

    Raises:
        AssertionError: an invariant does not hold, or a run stopped though nothing was wrong.
    """
    draw = random.Random(seed)
    found = ledger_of(draw, seed)
    points = PuppetPoints()
    points.look = found.look
    found.points = found.service.script = points
    found.service.log.points = found.service.stores[""].points = points  # type: ignore[attr-defined]
    poison = 0.0 if found.flow.poison == "stop" else 0.1
    puppets: list[Puppet] = []
    for _ in range(acts):
        if draw.random() < 0.3:
            found.feed(draw.randrange(4), poison)
            found.republish(draw.choice([None, None, 1, 4]))
        if len(puppets) < 3 and (not puppets or draw.random() < 0.3):
            puppets.append(Puppet(found, points))
        puppet = draw.choice(puppets)
        puppet.advance(draw.choice([1, 2, 5, 20, 60]))
        if draw.random() < 0.1:
            puppet.kill()
        puppets = [puppet for puppet in puppets if not ended(puppet)]
    for puppet in puppets:
        puppet.kill()
        ended(puppet)
    found.service.service = None
    found.republish()
    found.run()
    found.check()
    return found


def ended(puppet: Puppet) -> bool:
    """Whether it has ended, as it may."""
    if not puppet.alive and puppet.error is not None and not isinstance(puppet.error, Crash | Superseded):
        raise AssertionError(f"a run ended with {puppet.error!r}") from puppet.error
    return not puppet.alive
