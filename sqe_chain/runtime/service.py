"""The loop of a service: start, run one batch after the other, release the claim."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Self

from sqe_chain.errors import (
    ChainError,
    EngineLost,
    ServiceStopped,
    StoreInconsistent,
    Superseded,
    Unavailable,
)
from sqe_chain.plans.environment import Engine, Environment
from sqe_chain.plans.events import Notice, Ready
from sqe_chain.protocol.batch import FlowRun
from sqe_chain.protocol.services import service_of
from sqe_chain.runtime.stop import SLOW_MS, Heartbeat, ServiceClock, Stop

IDLE_MS = 100
"""Longest pause before a service without an interval looks for new messages again."""

FIRST_IDLE_MS = 5
"""The first such pause; each further one is twice as long while nothing comes."""

_LOOK_S = 0.05
_END_S = 2.0


class WarmUp:
    """Runs `Engine.warm_up` in a thread, as long as the context lasts.

    `failed` is called in that thread if it fails. That is no reason to stop: where it matters, the first batch meets the same.
    """

    def __init__(self, engine: Engine, failed: Callable[[Exception], None]) -> None:
        self._engine = engine
        self._failed = failed
        self._left = False
        self._thread = threading.Thread(target=self._run, name="sqe-chain warm-up", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End; what is still under way ends with the engine."""
        self._left = True
        self._thread.join(_END_S)

    def wait(self, stop: Stop) -> None:
        """Wait until it has ended, or the service is asked to stop."""
        while self._thread.is_alive() and not stop.requested:
            self._thread.join(_LOOK_S)

    def _run(self) -> None:
        try:
            self._engine.warm_up()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the service
            if not self._left:
                self._failed(error)


@dataclass(frozen=True, slots=True)
class Service:
    """A service and how long it runs.

    Args:
        env: the flow and its ports; `env.observer` must feed `clock`.
        clock: the same as `env.clock`.
        once: end when all messages that were there have been processed.
        close_windows: with `once`: then close all windows.
        warm_up: warm the engine up while the service claims and recovers.
    """

    env: Environment
    clock: ServiceClock
    once: bool = False
    close_windows: bool = False
    warm_up: bool = False

    @property
    def stop(self) -> Stop:
        """The request to end."""
        return self.clock.stop

    def run(self) -> None:
        """Run until asked to stop; first finish the current batch, and release the claim.

        Raises:
            ChainError: why the service had to stop.
        """
        stateful = self.env.flow.keeps_plans
        service = service_of(self.env)
        try:
            with (
                Heartbeat(lambda: self._alive(service), self.stop, self._beat_failed),
                self._warm_up() as warm,
            ):
                service.start()
                if warm is not None:
                    self._wait_until_warm(warm)
                if service.ends:
                    self.stop.request("once")
                # With stages a batch takes much longer than its commit, and `Committed` must not come before it is true.
                with nullcontext() if stateful else self.env.commits.in_background():
                    self._batches(service, stateful=stateful)
        except (Unavailable, EngineLost, ServiceStopped) as error:
            self._judge(error, service)
        finally:
            with suppress(ChainError):  # then the next run waits until the heartbeat has stopped
                service.leave()

    def _batches(self, service: FlowRun, *, stateful: bool) -> None:
        """Run one batch after the other. Without plans a commit may be under way while the next batch is looked for, and at no other time."""
        interval_ms = self.env.settings.interval_ms if stateful else 0
        idle_ms = FIRST_IDLE_MS
        while not self.stop.requested:  # not bounded: this is the service
            began_ms = self.clock.ticks_ms()
            result = service.batch()
            limited = result.worked and result.lag > 0  # the batch was full: the next one follows at once
            if self.once and not limited:
                if stateful and self.env.flow.by_time:
                    service.batch(at_end=True)  # nothing more is expected that others would have to wait for
                if self.close_windows:
                    self._at_end(service, partial(service.batch, at_end=True, final=True))
                if self.env.settings.needs_end:
                    self._at_end(service, service.complete)
                self.stop.request("once")
            elif not limited:
                rest_ms = interval_ms - (self.clock.ticks_ms() - began_ms)
                pause_ms = max(rest_ms, 0 if result.worked else idle_ms)
                idle_ms = FIRST_IDLE_MS if result.worked else min(idle_ms * 2, IDLE_MS)
                if pause_ms > 0:
                    self.env.commits.settle()
                    self.clock.wait(pause_ms)
        self.env.commits.settle()
        if self.stop.superseded:
            raise self._claim_lost(service)

    def _at_end(self, service: FlowRun, last: Callable[[], object]) -> None:
        """Do what comes last, when nothing is left to read or to release: the input is finite."""
        while not self.stop.requested and service.batch(at_end=True).worked:
            pass
        if not self.stop.requested:
            last()

    def _judge(self, error: ChainError, service: FlowRun) -> None:
        """Raise an error, or ignore it if the service was asked to stop while it waited. An open plan is incomplete, so then it is raised."""
        if isinstance(error, Superseded):
            raise error
        if self.stop.superseded:
            raise self._claim_lost(service) from error
        self.env.commits.leave()  # only now is it known whether a plan is open
        waiting = isinstance(error, (Unavailable, EngineLost)) or type(error) is ServiceStopped
        if self.stop.requested and waiting and service.open_plan is None:
            return
        raise error

    def _warm_up(self) -> AbstractContextManager[WarmUp | None]:
        return WarmUp(self.env.engine, self._not_warm) if self.warm_up else nullcontext()

    def _wait_until_warm(self, warm: WarmUp) -> None:
        began_ms = self.clock.ticks_ms()
        warm.wait(self.stop)
        if not self.stop.requested:
            self.env.emit(Ready(self.clock.ticks_ms() - began_ms))

    def _not_warm(self, error: Exception) -> None:
        self.env.emit(Notice(f"the first batch may take longer: its preparation failed: {error}"))

    def _alive(self, service: FlowRun) -> bool:
        """Move the heartbeat on, and report a slow step: clients give servers a minute to answer."""
        slow = self.clock.slow_step()
        if slow:
            text = (
                f"{slow} takes more than {SLOW_MS // 1_000} s: check brokers (all in-sync replicas) and store"
            )
            self.env.emit(Notice(text))
        return service.beat()

    def _claim_lost(self, service: FlowRun) -> ServiceStopped:
        """Why the heartbeat was refused: a newer run, or a store that has lost this run's claim."""
        name = self.env.flow.name
        mine = service.claimed
        try:
            home, _ = self.env.ports.home.home(name)
        except Unavailable as error:
            return Superseded(
                f"flow {name!r}: the store refused the heartbeat of this run, so a newer one has probably claimed the flow. "
                f"The store does not answer now: {error}"
            )
        if mine is not None and (home is None or home.epoch <= mine.epoch):
            return StoreInconsistent(
                f"flow {name!r}: the store holds {home or 'nothing'}. Expected the claim of this run, epoch {mine.epoch}: the store "
                "was emptied or went back in time. Start again: recovery finds out what can be done"
            )
        return Superseded(
            f"flow {name!r}: a newer run has claimed it, and this one no longer changes anything. Only one "
            "run works at a time. Start a second run without --takeover: it waits as a standby"
        )

    def _beat_failed(self, error: Exception) -> None:
        self.env.emit(Notice(f"the heartbeat does not reach the store: {error}"))
