"""Schedules of a few records are read by columns and in runs too, as long blocks of ordinary ones are in a service."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqe_chain.task.records.WORTHWHILE", 2)
    monkeypatch.setattr("sqe_chain.task.records.WORTHWHILE_RUN", 2)
    monkeypatch.setattr("sqe_chain.stages.deduplicate.WORTHWHILE", 2)
