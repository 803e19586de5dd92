"""Nothing is looked at before everything is reported, republished and counted; and waiting is bounded."""

from __future__ import annotations

import pytest

from services import simulate
from services.fastening import standard, totals
from services.reports import reports
from services.settled import wait_until_settled
from sqe_chain.testing import Rehearsal


def test_waits_for_the_reports_then_for_each_service() -> None:
    republisher = Rehearsal(standard, partitions={simulate.TOPIC: simulate.PARTITIONS})
    log = republisher.log
    counter = Rehearsal(totals, log=log)
    done: list[str] = []

    def next_one(_seconds: float) -> None:
        if not done:
            simulate.produce(log.writer(), reports(7, 200), simulate.Leash(), messages=200)
        elif done[-1] == "reported":
            republisher.run_until_caught_up()
        else:
            counter.run_until_caught_up()
        done.append(["reported", "republished", "counted"][len(done)])

    wait_until_settled(log, 200, 60, next_one)

    assert done == ["reported", "republished", "counted"]


def test_a_wait_that_takes_too_long_names_what_is_missing() -> None:
    log = Rehearsal(standard, partitions={simulate.TOPIC: simulate.PARTITIONS}).log
    with pytest.raises(TimeoutError, match="0 of 200 reports are produced"):
        wait_until_settled(log, 200, 0, lambda _: None)
    simulate.produce(log.writer(), reports(7, 200), simulate.Leash(), messages=200)
    with pytest.raises(TimeoutError, match="fastening-standard has a lag of 200 messages"):
        wait_until_settled(log, 200, 0, lambda _: None)
