"""What a run of a rehearsed flow is made of, for tests of commands and operations that are given it."""

from __future__ import annotations

from concurrent.futures import Executor

from sqe_chain.plans.environment import Environment
from sqe_chain.plans.settings import Settings
from sqe_chain.protocol.batch import FlowRun
from sqe_chain.testing import Rehearsal


def environment_of(rehearsal: Rehearsal, settings: Settings | None = None) -> Environment:
    """The environment of a new run."""
    return rehearsal._environment(settings)


def send_commits_by(run: FlowRun, executor: Executor) -> None:
    """From now on the run's commits are sent in the background that a test controls."""
    run.env.commits._pool = executor
