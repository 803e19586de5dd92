"""Goal: a service's process never collects again what its start has left. Method: the observer hears a start, in this process."""

from __future__ import annotations

import gc

from sqe_chain.cli.run import StartedObjects
from sqe_chain.plans.events import Notice, Ready


def test_what_a_start_leaves_is_not_collected_again() -> None:
    observer, left = StartedObjects(), [[]]  # type: ignore[var-annotated]
    before = gc.get_freeze_count()
    observer.event(Notice("before it is ready"))
    assert gc.get_freeze_count() == before
    try:
        observer.event(Ready(0))
        assert gc.get_freeze_count() > before
        assert not any(kept is left for kept in gc.get_objects())
    finally:
        gc.unfreeze()
