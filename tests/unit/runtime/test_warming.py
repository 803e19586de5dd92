"""Goal: a warm-up never stops a service, nor holds it up. Method: engines that fail, or never finish."""

from __future__ import annotations

import threading

from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.runtime.service import WarmUp
from sqe_chain.runtime.stop import Stop


class Engine(InProcessEngine):
    """Its warm-up lasts until the test releases it, and may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.begun = threading.Event()
        self.released = threading.Event()

    def warm_up(self) -> None:
        self.begun.set()
        self.released.wait(60)
        if self.error is not None:
            raise self.error


def test_a_batch_waits_until_everything_is_warm() -> None:
    engine, failed = Engine(), list[Exception]()
    with WarmUp(engine, failed.append) as warm:
        assert engine.begun.wait(60), "it runs beside its caller"
        threading.Timer(0.01, engine.released.set).start()
        warm.wait(Stop())
        assert engine.released.is_set()
    assert failed == []


def test_a_warm_up_that_fails_is_reported_and_nothing_else_happens() -> None:
    engine, failed = Engine(error := RuntimeError("no pandas")), list[Exception]()
    engine.released.set()
    with WarmUp(engine, failed.append) as warm:
        warm.wait(Stop())
    assert failed == [error]


def test_a_service_asked_to_stop_does_not_wait_and_later_failures_are_not_reported() -> None:
    engine, failed, stop = Engine(RuntimeError("Spark is gone")), list[Exception](), Stop()
    warm = WarmUp(engine, failed.append)
    with warm:
        stop.request("SIGTERM")
        warm.wait(stop)
        assert not engine.released.is_set()
        threading.Timer(0.05, engine.released.set).start()
    for thread in threading.enumerate():
        if thread.name == "sqe-chain warm-up":
            thread.join(60)
    assert failed == []
