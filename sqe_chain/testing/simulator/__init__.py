"""A simulator: whole chains of services under random faults, from one seed, checked after every write."""

from sqe_chain.testing.simulator.invariants import INVARIANTS, Violation
from sqe_chain.testing.simulator.run import Simulation, replay, simulate
from sqe_chain.testing.simulator.schedule import Schedule
from sqe_chain.testing.simulator.schedule_generator import drawn
from sqe_chain.testing.simulator.world import World

__all__ = ["INVARIANTS", "Schedule", "Simulation", "Violation", "World", "drawn", "replay", "simulate"]
