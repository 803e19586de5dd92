"""Who watches the batches of a run."""

from __future__ import annotations

from sqe_chain.features.closing import ClosingReports
from sqe_chain.features.dead_letter_commits import DeadLetterCommits
from sqe_chain.features.file_inputs import FileReports
from sqe_chain.features.observing import BatchObserver
from sqe_chain.features.parking import ParkingReports
from sqe_chain.features.reporting import Dropping
from sqe_chain.features.revising import RevisionReports
from sqe_chain.features.waiting import HoldingReports
from sqe_chain.plans.environment import Environment


def observers_of(env: Environment) -> tuple[BatchObserver, ...]:
    """Those that the flow has something for."""
    flow = env.flow
    observers: list[BatchObserver] = []
    if flow.file_sources:
        observers.append(FileReports(env))
    if any(stage.traits.windowed for stage in flow.stages):
        observers.append(ClosingReports(env))
    if flow.poison == "park":
        observers.append(ParkingReports(env))
    if flow.timed:
        observers.append(HoldingReports(env))
    if flow.stages:
        observers.append(Dropping(env))
        observers.append(RevisionReports(env))
    if flow.dead_letters and env.role.refold is None:
        observers.append(DeadLetterCommits(env))
    return tuple(observers)
