"""The loop of a service: start, one batch after the other, leave."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from sqe_chain.errors import (
    ChainError,
    EngineLost,
    ServiceStopped,
    StoreInconsistent,
    Superseded,
    Unavailable,
)
from sqe_chain.protocol.aggregation import Aggregation
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.events import Notice
from sqe_chain.protocol.republish import Republisher
from sqe_chain.runtime.statistics import SLOW_S, Statistics
from sqe_chain.runtime.stop import Heartbeat, ServiceClock, Stop

IDLE_MS = 100
"""Pause before a service that does not wait for an interval looks again for something new."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service and how long it runs.

    Args:
        env: the flow and its ports; `env.observer` must feed `statistics`.
        clock: the same as `env.clock`.
        stop: when to end.
        statistics: knows how long a step has taken.
        once: end when everything that was there has been processed.
    """

    env: Environment
    clock: ServiceClock
    stop: Stop
    statistics: Statistics
    once: bool = False

    def run(self) -> None:
        """Run until asked to stop; the batch at hand is finished first, and the claim given back.

        Raises:
            ChainError: the service had to stop, by its own name.
        """
        stateful = bool(self.env.flow.stages())
        service = Aggregation(self.env) if stateful else Republisher(self.env)
        try:
            with Heartbeat(lambda: self._alive(service), self.stop, self._beat_failed):
                service.start()
                self._batches(service, stateful=stateful)
        except (Unavailable, EngineLost, ServiceStopped) as error:
            self._judge(error, service)
        finally:
            with suppress(ChainError):  # then the next run waits until the heartbeat has stopped
                service.leave()

    def _batches(self, service: Aggregation | Republisher, *, stateful: bool) -> None:
        """One batch after the other. Catching up, and without stages, without a pause."""
        interval_ms = self.env.settings.interval_ms if stateful else 0
        while not self.stop.requested:  # not bounded: this is the service
            began_ms = self.clock.ticks_ms()
            result = service.batch()
            limited = result.worked and result.lag > 0  # the batch was full: the next one follows at once
            if self.once and not limited:
                self.stop.request("once")
            elif not limited:
                rest_ms = interval_ms - (self.clock.ticks_ms() - began_ms)
                self.clock.wait(max(rest_ms, 0 if result.worked else IDLE_MS))
        if self.stop.superseded:
            raise self._claim_lost(service)

    def _judge(self, error: ChainError, service: Aggregation | Republisher) -> None:
        """Raise an error, or leave it: when the service was asked to stop while it waited, that is a good end.

        Unless a plan is open: the next run will finish it, but until then what it reads is not all published and stored.
        """
        if isinstance(error, Superseded):
            raise error
        if self.stop.superseded:
            raise self._claim_lost(service) from error
        waiting = isinstance(error, (Unavailable, EngineLost)) or type(error) is ServiceStopped
        if self.stop.requested and waiting and service.open_plan is None:
            return
        raise error

    def _alive(self, service: Aggregation | Republisher) -> bool:
        """Move the heartbeat on, and say when a step is slow: clients give servers a minute to answer."""
        slow = self.statistics.slow_step()
        if slow:
            text = f"{slow} takes more than {SLOW_S:g} s: are brokers (all in-sync replicas) and store well?"
            self.env.emit(Notice(text))
        return service.beat()

    def _claim_lost(self, service: Aggregation | Republisher) -> ServiceStopped:
        """Why the heartbeat was refused: a newer run, or a store that has forgotten this one."""
        name = self.env.flow.name
        mine = service.claimed if isinstance(service, Aggregation) else None
        try:
            home, _ = self.env.ports.home.home(name)
        except Unavailable as error:
            return Superseded(
                f"flow {name!r}: the store refused the heartbeat of this run, so a newer one has probably claimed the flow; "
                f"the store cannot be asked now: {error}"
            )
        if mine is not None and (home is None or home.epoch <= mine.epoch):
            return StoreInconsistent(
                f"flow {name!r}: this run has claimed it with epoch {mine.epoch}, but the store holds {home or 'nothing'}: it "
                "was emptied or went back in time; start again, and recovery will find out what can be done"
            )
        return Superseded(
            f"flow {name!r}: a newer run has claimed it, this one changes nothing any more. Only one "
            "run works at a time; start another one without --takeover and it waits as a standby"
        )

    def _beat_failed(self, error: Exception) -> None:
        self.env.emit(Notice(f"the heartbeat does not reach the store: {error}"))
