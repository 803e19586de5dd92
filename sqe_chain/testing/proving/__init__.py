"""`prove`: a flow of the user, run through every single fault, replays, zombies, and schedules drawn from a seed."""

from sqe_chain.testing.proving.proof import Proof
from sqe_chain.testing.proving.proofs import prove, prove_schedule
from sqe_chain.testing.proving.schedule import Fault, Feed, Schedule
from sqe_chain.testing.proving.suspects import Finding

__all__ = ["Fault", "Feed", "Finding", "Proof", "Schedule", "prove", "prove_schedule"]
