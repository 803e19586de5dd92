"""Goal: a replay gives the states of every key, whatever happened to the services that stored them.

Method: schedules of the simulator run with their faults; then each key is traced. Folds there append to a text, and order across
lanes is not kept, so the words of a state are compared without their order.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.explain.audit import audited_stages
from sqe_chain.ext.explain.trace import trace
from sqe_chain.flow.stored import StoredState
from tests.lab.simulator.run import Simulation
from tests.lab.simulator.schedule_generator import drawn
from tests.support.environments import environment_of
from tests.support.plans import stored_in

SEEDS = range(0, 60, 5)


def words_of(states: tuple[StoredState, ...]) -> Mapping[tuple[object, ...], list[str]]:
    return {(state.key, state.span): sorted(str(state.state).split()) for state in states}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_key_is_explained(seed: int) -> None:
    schedule = drawn(seed)
    if any(step[0] == "change" for step in schedule.steps):
        pytest.skip("its functions change, and a replay calls the new ones")
    simulation = Simulation(schedule)
    simulation.run()
    for service in simulation.services.values():
        env = environment_of(service)
        try:
            stages = audited_stages(env, ())
        except ConfigurationError:
            continue
        for stage in stages:
            stored = {
                state.key
                for cell in env.flow.cells[stage.index]
                for row, content in env.ports.store(stage).scan(
                    stored_in(service, stage.name), stage.name, cell
                )
                for state in stage.stage_kind.states_in(row, content)
            }
            if env.flow.file_sources or any(node.stage_kind.sink for node in env.flow.stages):
                continue  # refused
            result = trace(env, stage, sorted(stored), with_records=False)
            if not result.missing:
                assert words_of(result.stored.states) == words_of(result.replayed)
