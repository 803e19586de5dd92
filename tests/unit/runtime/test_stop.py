"""Goal: a service ends when it is asked to, and only then. Method: requests, signals and heartbeats, with short times."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from sqe_chain.errors import Unavailable
from sqe_chain.plans.events import PERSIST, PROCESS, PUBLISH, Notice, Waiting
from sqe_chain.runtime.stop import ATTEMPT_MS, SLOW_MS, Heartbeat, ServiceClock, Stop, signals

LONG_S = 60.0


def test_the_first_reason_is_kept_and_every_wait_ends() -> None:
    stop = Stop()
    assert not stop.wait(0.001)

    def request() -> None:
        stop.request("SIGTERM")
        stop.request("again")

    threading.Timer(0.05, request).start()
    assert stop.wait(LONG_S)
    assert stop.wait(LONG_S)
    assert stop.reason == "SIGTERM"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_wakes_the_service_and_handlers_are_given_back(number: signal.Signals) -> None:
    stop, before = Stop(), signal.getsignal(number)
    with signals(stop, lambda: None):
        threading.Timer(0.05, lambda: os.kill(os.getpid(), number)).start()
        assert stop.wait(LONG_S)
        os.kill(os.getpid(), signal.SIGTERM)  # again: no more than the first
    assert stop.reason == number.name
    assert signal.getsignal(number) is before


def test_handlers_can_be_set_again_after_somebody_else_has_set_theirs() -> None:
    stop = Stop()
    with signals(stop, lambda: None) as handle_again:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        handle_again()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(LONG_S)


def test_a_loop_is_quiet_while_it_neither_waits_nor_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour's interval is no reason to be restarted, an hour within one step is."""
    now = [0]
    monkeypatch.setattr(ServiceClock, "ticks_ms", lambda _: now[0])
    stop = Stop()
    clock = ServiceClock(stop)
    seen: list[int] = []

    def wait(seconds: float) -> bool:
        now[0] += int(seconds * 1_000)
        seen.append(clock.quiet_ms())
        return False

    monkeypatch.setattr(stop, "wait", wait)
    now[0] += 7
    assert clock.quiet_ms() == 7
    clock.wait(3_600_000)
    assert seen == [0]
    assert clock.quiet_ms() == 0
    moves: list[Callable[[], None]] = [lambda: clock.step(3, "before"), lambda: clock.event(Notice("news"))]
    for move in moves:
        now[0] += 3_600_000
        assert clock.quiet_ms() == 3_600_000
        move()
        assert clock.quiet_ms() == 0


def test_a_lost_claim_ends_the_service_as_superseded() -> None:
    stop = Stop()
    with Heartbeat(lambda: False, stop, lambda error: pytest.fail(str(error)), seconds=0.001):
        assert stop.wait(LONG_S)
    assert stop.superseded


def test_a_store_that_is_away_is_reported_once_and_does_not_end_the_service() -> None:
    outcomes = iter([Unavailable("1"), Unavailable("2"), True, Unavailable("3"), True])
    reported: list[str] = []
    done = threading.Event()

    def renew_claim() -> bool:
        outcome = next(outcomes, None)
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is None:
            done.set()
        return True

    stop = Stop()
    with Heartbeat(renew_claim, stop, lambda error: reported.append(str(error)), seconds=0.001):
        assert done.wait(LONG_S)
    assert reported == ["1", "3"]
    assert not stop.requested


def test_patience_ends_for_one_absence_and_begins_again_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ServiceClock(Stop(), give_up_ms=1_000)
    now = [0]
    monkeypatch.setattr(clock, "ticks_ms", lambda: now[0])
    clock.event(Waiting("commit", "no broker", 100))
    assert not clock.wait(0)
    now[0] = 900
    clock.event(Waiting("commit", "no broker", 200))
    assert not clock.wait(0)
    clock.event(Waiting("commit", "no broker", 100))  # another difficulty
    now[0] = 1_800
    assert not clock.wait(0)
    now[0] = 1_900
    assert clock.wait(0)
    clock.step(3, "before")
    assert not clock.wait(0)


@pytest.mark.parametrize(("worked_ms", "patience_ms"), [(0, 20_000), (3_600_000, 20_000)])
def test_patience_begins_with_the_attempt_that_failed_first(
    monkeypatch: pytest.MonkeyPatch, worked_ms: int, patience_ms: int
) -> None:
    """An attempt takes ten seconds before anybody hears of it; a long batch before it is no absence."""
    clock, now = ServiceClock(Stop(), give_up_ms=30_000), [0]
    monkeypatch.setattr(clock, "ticks_ms", lambda: now[0])
    clock.step(3, "before")
    now[0] = worked_ms + ATTEMPT_MS
    clock.event(Waiting("commit", "no broker", 100))
    now[0] += patience_ms - 1
    assert not clock.wait(0)
    now[0] += 1
    assert clock.wait(0)


def test_a_service_waits_without_limit_by_default() -> None:
    clock = ServiceClock(Stop())
    clock.event(Waiting("commit", "no broker", 100))
    assert not clock.wait(1)


def test_a_step_that_waits_for_servers_is_called_slow_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000]
    monkeypatch.setattr(ServiceClock, "ticks_ms", lambda _: now[0])
    clock = ServiceClock(Stop())
    clock.step(PROCESS, "before")
    now[0] += 60_000
    assert not clock.slow_step()  # user code may take its time
    clock.step(PUBLISH, "before")
    now[0] += SLOW_MS - 1
    assert not clock.slow_step()
    now[0] += 1
    assert clock.slow_step() == "publishing"
    assert not clock.slow_step()
    clock.step(PERSIST, "before")
    clock.step(PERSIST, "after")
    now[0] += 60_000
    assert not clock.slow_step()
