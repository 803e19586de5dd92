"""What a run of a rehearsed flow is made of, for tests of commands and operations that are given it."""

from __future__ import annotations

from sqe_chain.plans.environment import Environment
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal


def environment_of(rehearsal: Rehearsal, settings: Settings | None = None) -> Environment:
    """The environment of a new run."""
    return rehearsal._environment(settings)
