"""Faults that a test can inject: crashes, outages, and pauses in which other runs work."""

from __future__ import annotations

from collections.abc import Callable

from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.plans.events import STEPS, When
from sqe_chain.testing.faults import Crash, FaultScript, InjectedFault, Port
from sqe_chain.testing.faulty_ports import methods_of


class Arming:
    """Inject faults into a service.

    Calls of ports are counted from now on; each fault has the number of calls that pass before it happens. Faults are
    for the service's own run, present or next; calls that other runs make while it is paused do not trigger them.
    A fault that could never happen raises ConfigurationError.

    Attributes:
        script: the faults to come, and what the service has written and reported.
    """

    script: FaultScript

    def crash(self, *, step: int, when: When = "before", after_passes: int = 0) -> None:
        """Crash at a numbered step. Calling it again for the same step adds another crash there.

        Args:
            step: 1 claim, 2 recover, 3 process, 4 seal, 5 publish, 6 persist (once a level), 7 commit.
            when: before or after it.
            after_passes: how often the step passes before the crash.
        """
        if step not in STEPS:
            raise ConfigurationError(f"step={step!r}. Expected one of {', '.join(map(str, STEPS))}")
        self.script.steps.setdefault((step, when), []).append(after_passes)

    def crash_at_write(self, number: int, when: When = "before") -> None:
        """Crash before the n-th write from now (0 is the next), or after it, so that its reply is lost."""
        self.script.writes.add((len(self.script.written) + number, when))

    def crash_at_call(
        self,
        number: int,
        when: When = "before",
        *,
        of: Port | None = None,
        writes: bool = False,
        method: str = "",
    ) -> None:
        """Crash at the n-th call from now (0 is the next). Reads count too, and so does each block of a read.

        Args:
            number: calls that pass before the crash.
            when: before the call, or after it, so that its reply is lost.
            of: count calls of the broker, of the store, or of tables, only.
            writes: count only calls that write.
            method: count only calls of this method of a port, such as ``read``; ``publish`` is one record.
        """
        self._inject(InjectedFault(_crash, of, when, writes, number, method=method))

    def outage(
        self,
        of: Port | None = None,
        *,
        at: int = 0,
        when: When = "before",
        calls: int = 1,
        writes: bool = False,
        method: str = "",
    ) -> None:
        """Broker, store or table does not answer; the same run retries.

        Args:
            of: broker, store or table; by default whichever is called.
            at: such calls that pass before the outage.
            when: before the call takes effect, or after it, so that only the reply is lost.
            calls: how many consecutive calls get no answer.
            writes: count only calls that write.
            method: count only calls of this method of a port, such as ``read``; ``publish`` is one record.
        """
        self._inject(InjectedFault(_raise_unavailable, of, when, writes, at, calls, method))

    def meanwhile(
        self,
        action: Callable[[], object],
        *,
        of: Port | None = None,
        at: int = 0,
        when: When = "before",
        writes: bool = False,
        method: str = "",
    ) -> None:
        """Pause the run at a future call, and do something else in the meantime.

        The action may start another run of this service, or run other services. Then the paused run continues: as a
        zombie if another run has claimed the flow.

        Args:
            action: called while the run is paused.
            of: broker, store or table; by default whichever is called.
            at: such calls that pass before the pause.
            when: before the call, or after it has taken effect.
            writes: count only calls that write.
            method: count only calls of this method of a port, such as ``read``; ``publish`` is one record.
        """
        self._inject(InjectedFault(action, of, when, writes, at, method=method))

    def _inject(self, fault: InjectedFault) -> None:
        known = methods_of(fault.of)
        if not known:
            raise ConfigurationError(f"of={fault.of!r}. Expected 'broker', 'store', 'table' or None")
        if fault.method and fault.method not in known:
            raise ConfigurationError(f"method={fault.method!r}. Expected one of {', '.join(sorted(known))}")
        self.script.injected.append(fault)

    def cancel(self) -> None:
        """Cancel every injected crash, outage and pause that has not happened yet."""
        self.script.cancel()


def _crash() -> None:
    raise Crash("at this call")


def _raise_unavailable() -> None:
    raise Unavailable("no answer at this call")
