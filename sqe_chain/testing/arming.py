"""What can be armed: crashes, outages, and others at work while a run stands still."""

from __future__ import annotations

from collections.abc import Callable

from sqe_chain.errors import Unavailable
from sqe_chain.protocol.surroundings import When
from sqe_chain.testing.faults import Armed, Crash, Port, Script


class Arming:
    """The faults of a service, said in words.

    Calls of ports are counted from now on: whoever arms something says how many are passed first. What is armed is
    for the run that is or will be alive; who is called while it stands still does not set it off.

    Attributes:
        script: what shall happen, what was written, what the service told.
    """

    script: Script

    def crash(self, *, step: int, when: When = "before", after_passes: int = 0) -> None:
        """Crash at a numbered step. Called again for the same one: crash there again, after that.

        Args:
            step: 1 claim, 2 recover, 3 process, 4 seal, 5 publish, 6 persist (once a level), 7 commit.
            when: before or after it.
            after_passes: how often it is passed first.
        """
        self.script.steps.setdefault((step, when), []).append(after_passes)

    def crash_at_write(self, number: int, when: When = "before") -> None:
        """Crash before the n-th write from now (0 is the next), or after it, with the reply lost."""
        self.script.writes.add((len(self.script.written) + number, when))

    def crash_at_call(
        self, number: int, when: When = "before", *, of: Port | None = None, writes: bool = False
    ) -> None:
        """Crash at the n-th call from now (0 is the next): reads count too, and the blocks of a read.

        Args:
            number: calls that are passed first.
            when: before the call, or after it: its reply is lost.
            of: count calls of the broker, or of the store, only.
            writes: count only calls that write.
        """
        self.script.armed.append(Armed(_die, of, when, writes, number))

    def outage(
        self,
        of: Port | None = None,
        *,
        at: int = 0,
        when: When = "before",
        calls: int = 1,
        writes: bool = False,
    ) -> None:
        """Broker or store do not answer; the same run tries again.

        Args:
            of: who; by default whoever is called.
            at: such calls that are passed first.
            when: before the call has an effect, or after: only the reply is lost.
            calls: how many calls in a row are not answered.
            writes: count only calls that write.
        """
        self.script.armed.append(Armed(_no_answer, of, when, writes, at, calls))

    def meanwhile(
        self,
        action: Callable[[], object],
        *,
        of: Port | None = None,
        at: int = 0,
        when: When = "before",
        writes: bool = False,
    ) -> None:
        """The run stands still at a call to come; what happens meanwhile is up to the action.

        The action may start and run this service again, or others. Then the run goes on: as a zombie, if another
        one has claimed the flow.

        Args:
            action: what happens.
            of: who is called; by default anyone.
            at: such calls that are passed first.
            when: before the call, or after it has taken effect.
            writes: count only calls that write.
        """
        self.script.armed.append(Armed(action, of, when, writes, at))

    def cancel(self) -> None:
        """Take back every crash, outage and interruption that was armed and has not happened."""
        self.script.cancel()


def _die() -> None:
    raise Crash("at this call")


def _no_answer() -> None:
    raise Unavailable("no answer at this call")
