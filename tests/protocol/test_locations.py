"""Goal: a reader that follows a flow's locations finds all of its states, old or new, whatever crashes, and never half of both.

Method: a reader that knows nothing but the documented record looks at every stage after every single write. The writes are
those of a rebuild, of one that crashes at each write, and of what comes after: a start, or another rebuild.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import Superseded
from sqe_chain.flow import Flow
from sqe_chain.ports import Locations
from sqe_chain.testing import Crash, Rehearsal, Settings
from sqe_chain.testing.faults import PortCall
from tests.support.rebuilding import rebuild_after_a_crash
from tests.support.suites import points
from tests.support.word_flows import first_letter, same_key, word

WORDS = ["ant", "fig", "bee", "ape", "fox", "cow", "auk", "gnu"]
names = itertools.count()


def flow_of(
    weight: int = 1, state_partitions: int = 2, *, third: bool = False, elsewhere: str = "other"
) -> Flow:
    """A flow in two stores. Code of another weight counts otherwise, so old and new states differ."""

    def count(total: Int64Value, value: StringValue) -> list[StringValue]:
        total.value += weight
        return [value]

    flow = Flow("notes", state_partitions=state_partitions)
    letters = flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=Int64Value, fold=count, view="json", buckets=2
    )
    everything = letters.aggregate("all", key=same_key, state=Int64Value, fold=count, store=elsewhere or None)
    if third:
        everything.aggregate("later", key=same_key, state=Int64Value, fold=count)
    return flow


States = dict[str, dict[bytes, int]]


class Deployment:
    """A flow with two stores, and readers from outside."""

    def __init__(self) -> None:
        self.stores = {name: MemoryStore(f"locations-{next(names)}", max_rows=2) for name in ("", "other")}
        self.found = Rehearsal(flow_of(), partitions={"words": 2}, store=self.stores, settings=SETTINGS)
        self.feed(WORDS)

    def feed(self, words: list[str]) -> None:
        for text in words:
            self.found.feed("words", word(text), key=text[0])
        self.found.run_until_caught_up()

    def of(self, flow: Flow) -> Rehearsal:
        """The same broker and stores, other code."""
        return Rehearsal(flow, log=self.found.log, store=self.stores, settings=SETTINGS)

    def read(self, asked: str = "") -> States:
        """All states and views, as a reader finds them who only knows the layout of the stores.

        Args:
            asked: the store that is asked for the locations.
        """
        locations = self.stores[asked].locations("notes")
        assert locations is not None
        found: States = {}
        for stage, one in locations.stages.items():
            store = self.stores[one.store]
            cells = [
                store.copy_part(one.flow, stage, cell) for cell in range(one.state_partitions * one.buckets)
            ]
            rows = {key: state for cell in cells for key, state in cell.states.items()}
            shown = {key for cell in cells for key in cell.views}
            assert shown == (set(rows) if one.view else set())
            found[stage] = {key: Int64Value.FromString(state).value for key, state in rows.items()}
        return found

    def locations(self) -> Locations:
        """The locations, which are the same in all stores."""
        found = self.stores[""].locations("notes")
        assert found is not None
        assert found == self.stores["other"].locations("notes")
        return found


SETTINGS = Settings(max_records=3)


def expected(weight: int) -> States:
    letters = [text[0].encode() for text in WORDS]
    return {
        "letters": {letter: weight * letters.count(letter) for letter in letters},
        "all": {b"all": weight * len(WORDS)},
    }


OLD, NEW = expected(1), expected(10)


class Reader:
    """Looks after each write that took effect: old states or new ones, all of them, and never old after new."""

    def __init__(self, deployment: Deployment, *flows: Rehearsal) -> None:
        self.deployment = deployment
        self.seen: dict[tuple[str, str], list[States]] = {}
        for flow in flows:
            flow.script.watch = self.look

    def look(self, call: PortCall, _: object) -> None:
        if not call.write:
            return
        for asked in ("", "other"):
            found = self.deployment.read(asked)
            for stage in ("letters", "all"):
                seen = self.seen.setdefault((asked, stage), [])
                assert found[stage] in (OLD[stage], NEW[stage])
                assert not (found[stage] == OLD[stage] and {stage: NEW[stage]} in seen), "went back"
                seen.append({stage: found[stage]})


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


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_rebuild_that_crashed_and_is_redone_never_shows_half_of_it(when: str, *, resume: bool) -> None:
    """What a second rebuild deletes first may be what the record still leads to: the crash came before it moved."""
    for at in points(f"half of a rebuild, {when} {resume}"):
        deployment = Deployment()
        deployment.found.rebuild()  # so that the old states are an attempt's, which the second one would delete
        other = deployment.of(flow_of(10))
        Reader(deployment, other)
        other.crash_at_write(at, when)  # type: ignore[arg-type]
        try:
            other.rebuild()
        except Crash:
            rebuild_after_a_crash(other, resume=resume)
            assert deployment.read() == deployment.read("other") == NEW
            continue
        break
    assert at > 20


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_next_start_leads_readers_to_the_states_of_the_flow(when: str) -> None:
    switched = 0
    for at in itertools.count():
        deployment = Deployment()
        other = deployment.of(flow_of(10))
        Reader(deployment, other)
        other.crash_at_write(at, when)  # type: ignore[arg-type]
        try:
            other.rebuild()
        except Crash:
            other.service = None
            other.start()
            current = {key: state.value for key, state in other.states("letters").items()}
            assert deployment.read()["letters"] == deployment.read("other")["letters"] == current
            switched += current == NEW["letters"]
            continue
        break
    assert 3 < switched < at


@pytest.mark.parametrize("when", ["before", "after"])
def test_after_a_crash_at_any_write_of_its_life_a_flow_is_where_its_record_leads(when: str) -> None:
    """Born, grown by a stage, fed: after the next start the record is complete."""
    for at in points(f"a life, {when}"):
        stores = {name: MemoryStore(f"locations-{next(names)}") for name in ("", "other")}
        rehearsal = Rehearsal(flow_of(), store=stores)
        rehearsal.crash_at_write(at, when)  # type: ignore[arg-type]
        rehearsal.feed("words", word("ant"), key="a")
        rehearsal.run_until_caught_up()
        grown = Rehearsal(flow_of(third=True), store=stores, log=rehearsal.log)
        if not rehearsal.crashes:
            grown.crash_at_write(at - len(rehearsal.script.written), when)  # type: ignore[arg-type]
        grown.feed("words", word("ape"), key="a")
        grown.run_until_caught_up()
        for store in stores.values():
            locations = store.locations("notes")
            assert locations is not None
            assert list(locations.stages) == ["letters", "all", "later"]
            assert {stage.flow for stage in locations.stages.values()} == {"notes"}
        if not rehearsal.crashes and not grown.crashes:
            break
    assert at > 20


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
