"""Goal: a reader that follows a flow's locations finds all of its states, old or new, whatever crashes, and never half of both.

Method: a reader that knows nothing but the documented record looks at every stage after every single write. The writes are
those of a rebuild, of one that crashes at each write, and of what comes after: a start, or another rebuild.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import Superseded
from tests.support.located import NEW, OLD, Deployment, Reader, flow_of, names


def test_a_reader_finds_old_states_or_new_ones_after_each_write_of_a_rebuild() -> None:
    deployment = Deployment()
    assert deployment.read() == deployment.read("other") == OLD
    other = deployment.of(flow_of(10, state_partitions=3))
    reader = Reader(deployment, other)
    other.rebuild()
    assert deployment.read() == deployment.read("other") == NEW
    assert all(
        {stage: OLD[stage]} in seen and {stage: NEW[stage]} in seen
        for (_, stage), seen in reader.seen.items()
    )
    assert {one.state_partitions for one in deployment.locations().stages.values()} == {3}


def test_the_record_holds_what_a_reader_has_to_know() -> None:
    deployment = Deployment()
    locations = deployment.locations()
    letters, everything = locations.stages["letters"], locations.stages["all"]
    assert (letters.flow, letters.state_partitions, letters.buckets) == ("notes", 2, 2)
    assert (letters.kind, letters.type_name, letters.view, letters.store) == (
        *("aggregate", "google.protobuf.Int64Value", "json", ""),
    )
    assert (everything.view, everything.store) == (None, "other")


def test_a_rewind_keeps_the_name_too() -> None:
    deployment = Deployment()
    before = deployment.locations()
    deployment.found.rebuild({("words", 0): 1, ("words", 1): 1})
    assert deployment.locations().stages["letters"].flow != before.stages["letters"].flow
    assert deployment.read()["all"] == {b"all": 2}
    deployment.found.run_until_caught_up()
    assert deployment.read() == OLD


def test_a_stage_that_moves_to_another_store_is_found_there() -> None:
    deployment = Deployment()
    deployment.of(flow_of(10, elsewhere="")).rebuild()
    assert deployment.locations().stages["all"].store == ""
    assert deployment.read() == deployment.read("other") == NEW


def sleep_before_locations(deployment: Deployment, action: Callable[[], object]) -> None:
    """A start that is paused right before it writes locations; the action runs meanwhile."""
    sleeper = deployment.of(flow_of())
    sleeper.start()
    count = next(n for n, what in enumerate(sleeper.script.written) if what.startswith("locations"))
    sleeper = deployment.of(flow_of())
    sleeper.meanwhile(action, of="store", at=count, writes=True)
    sleeper.start()


def test_a_run_that_slept_moves_nothing_back() -> None:
    deployment = Deployment()
    with pytest.raises(Superseded):
        sleep_before_locations(deployment, deployment.of(flow_of(10)).rebuild)
    assert deployment.read() == deployment.read("other") == NEW


def test_a_store_that_lost_its_homes_still_knows_which_epochs_were_given_out() -> None:
    """Else the flow, begun again with small epochs, could not write its locations any more."""
    deployment = Deployment()
    for _ in range(3):
        deployment.found.restart()
    before = deployment.locations()
    for store in deployment.stores.values():
        copy = store.copy_all()
        store.restore_all()
        for flow, locations in copy.locations.items():
            store.set_locations(flow, locations)
    deployment.found.log.delete_group("notes")
    deployment.found.restart()
    assert deployment.locations().epoch > before.epoch
    deployment.found.run_until_caught_up()
    assert deployment.read() == OLD


def test_an_import_records_where_it_has_put_the_states() -> None:
    deployment = Deployment()
    deployment.found.rebuild()
    lines = deployment.found.exported()
    deployment.stores = {name: MemoryStore(f"locations-{next(names)}") for name in ("", "other")}
    deployment.of(flow_of()).imported(lines)
    assert deployment.read() == deployment.read("other") == OLD


def test_a_second_flow_is_not_recorded_before_the_switch() -> None:
    deployment = Deployment()
    deployment.found.rebuild()
    assert {flow for store in deployment.stores.values() for flow in store.copy_all().locations} == {"notes"}
