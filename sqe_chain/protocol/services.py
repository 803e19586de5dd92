"""All features: what hangs on the steps of a run."""

from __future__ import annotations

from typing import Final

from sqe_chain.features.closing import ClosingWindows
from sqe_chain.features.dead_letter_commits import DeadLetterCommits
from sqe_chain.features.file_inputs import FileInputs
from sqe_chain.features.lanes import LateInputs
from sqe_chain.features.parking import ParkingInputs
from sqe_chain.features.rebuilding import AfterRebuild
from sqe_chain.features.reporting import Dropping
from sqe_chain.features.ticking import Ticking
from sqe_chain.features.timing import Timing
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.feature import Features
from sqe_chain.protocol.aggregation import StagedService
from sqe_chain.protocol.republish import Republisher

FEATURES: Final = (
    FileInputs,
    ClosingWindows,
    AfterRebuild,
    LateInputs,
    ParkingInputs,
    Timing,
    Ticking,
    Dropping,
    DeadLetterCommits,
)
"""In this order they are asked: closed windows and rebuilds decide first what the next batch reads, then event time, then timers."""


def features_of(env: Environment) -> Features:
    """The features of a run."""
    return Features([kind(env) for kind in FEATURES])


def aggregation_of(env: Environment) -> StagedService:
    """A run of a flow that keeps plans."""
    return StagedService(env, features_of(env))


def service_of(env: Environment) -> StagedService | Republisher:
    """A run of any flow."""
    return aggregation_of(env) if env.flow.keeps_plans else Republisher(env, features_of(env))
