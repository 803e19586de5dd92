"""Schedules of a few messages take the fast path too, as long runs of ordinary ones do in a service."""

from __future__ import annotations

import pytest

from sqe_chain.segment import fast_path


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "WORTHWHILE", 2)
