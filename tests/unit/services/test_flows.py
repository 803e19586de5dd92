"""The example services end to end in memory: crashed between publishing and commit, and still exact."""

from __future__ import annotations

import pytest

from services import audit, naive, simulate
from services.expected import Expected, expected
from services.fastening import standard, totals
from services.reports import reports
from services.stored import StoredRow
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.testing import Rehearsal

REPORTS = 400


@pytest.fixture
def log(request: pytest.FixtureRequest) -> MemoryLog:
    """A broker of its own, with the reports of the plant."""
    broker = MemoryLog(request.node.nodeid)
    broker.create_topic(simulate.TOPIC, simulate.PARTITIONS)
    simulate.produce(broker.writer(), reports(7, REPORTS), simulate.Leash(), messages=REPORTS)
    return broker


def audited(service: Rehearsal, truth: Expected) -> list[audit.StageAudit]:
    """The audit of what the service has stored."""
    found = []
    parsers = {"per-robot": (truth.robots, audit.read_robot), "per-line": (truth.lines, audit.read_line)}
    for stage, (held, parse) in parsers.items():
        states = [
            StoredRow(0, key, state.SerializeToString()) for key, state in service.states(stage).items()
        ]
        found.append(audit.audit_stage(stage, states, held, parse))
    return found


@pytest.mark.parametrize("step", [3, 4, 5, 6, 7])
def test_totals_are_exact_where_a_plain_consumer_is_wrong(log: MemoryLog, step: int) -> None:
    republisher = Rehearsal(standard, partitions={simulate.TOPIC: simulate.PARTITIONS}, log=log)
    republisher.crash(step=7, when="before")
    republisher.run_until_caught_up()
    service = Rehearsal(totals, partitions={naive.TOPIC: 4}, log=log)
    service.crash(step=step, when="before")
    service.run_until_caught_up()

    truth = expected(reports(7, REPORTS))
    records = list(naive.values(log, naive.TOPIC))
    assert len(records) == 2 * truth.messages, "everything was said twice"
    assert naive.count(records, truth).too_many == truth.events
    assert audit.is_exact(audited(service, truth)), audited(service, truth)
    assert (republisher.crashes, service.crashes) == (1, 1)
