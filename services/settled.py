"""Waits until all reports are in Kafka, and both services have committed all of their inputs."""

from __future__ import annotations

import time
from collections.abc import Callable

from services import simulate
from services.demo.positions import standing, topic_end
from services.fastening import standard, totals
from sqe_chain.ports import Log

_LOOK_S = 0.5


def wait_until_settled(
    log: Log, messages: int, timeout_s: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Return when this many reports are produced and neither service has a lag.

    Raises:
        TimeoutError: it took longer; the text names what is missing.
        Unavailable: the broker does not answer.
    """
    deadline = time.monotonic() + timeout_s
    while missing := _missing(log, messages):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not settled within {timeout_s:g} s: {missing}")
        sleep(_LOOK_S)


def _missing(log: Log, messages: int) -> str:
    """What is not done yet. In this order: once a step is done, the input of the next one is complete."""
    produced = topic_end(log, simulate.TOPIC)
    if produced < messages:
        return f"{produced:,} of {messages:,} reports are produced"
    for flow in (standard, totals):
        lag = standing(log, flow).lag
        if lag:
            return f"{flow.name} has a lag of {lag:,} messages"
    return ""
