"""A simulator: whole chains of services under random faults, from one seed, checked after every write."""

from sqe_chain.testing.invariants import INVARIANTS, Violation
from tests.lab.reference.world import World
from tests.lab.simulator.run import Simulation, replay, simulate
from tests.lab.simulator.schedule import Schedule
from tests.lab.simulator.schedule_generator import drawn

__all__ = ["INVARIANTS", "Schedule", "Simulation", "Violation", "World", "drawn", "replay", "simulate"]
