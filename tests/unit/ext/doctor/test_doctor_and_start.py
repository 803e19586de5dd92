"""Goal: where the doctor finds no error, a start comes to its first batch and finishes it.

Method: a table of broken deployments in memory; doctor and start are asked about each, and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import ChainError, ConfigurationError, Unavailable
from sqe_chain.ext.doctor.command import status_of
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.environment import Environment, Ports
from sqe_chain.plans.events import Event, Observer
from sqe_chain.plans.settings import Settings
from sqe_chain.protocol.services import service_of
from tests.support.doctor_world import OF_MACHINES, DurableStore, World, doubled, totals
from tests.support.table_flows import table_flow
from tests.unit.ext.doctor.test_doctor import AT_A_REPUBLISHER, PLANTED, killed_after_the_seal

Break = Callable[[World], object]


class _Deaf(Observer):
    def event(self, event: Event) -> None:
        pass


class _Impatient:
    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return self._world.service.clock.now_ms() + self._world.later_ms

    def wait(self, milliseconds: int) -> bool:
        assert milliseconds > 0
        return True


def start_error(world: World) -> str:
    """What a start and one batch end with; empty: nothing."""
    log, stores = world.service.log, {"": world.store}
    ports = Ports(log, stores)
    env = Environment(
        flow=world.flow,
        ports=ports,
        engine=InProcessEngine(world.flow, log, ports.store),
        observer=_Deaf(),
        clock=_Impatient(world),
        new_run_id=lambda: "started",
        settings=Settings().asking(takeover=True),
    )
    try:
        service = service_of(env)
        service.start()
        service.batch()
    except ChainError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def doctor_errors(world: World) -> list[str]:
    return [finding.check for finding in world.diagnose() if finding.severity == "error"]


def refuse(error: ChainError) -> Callable[..., NoReturn]:
    def call(*_: object, **__: object) -> NoReturn:
        raise error

    return call


def begins_in_the_middle(world: World) -> None:
    world.service.log.truncate_before("numbers", 0, 2)


def has_no_topic(world: World) -> None:
    for topic in ("numbers", "sums", world.flow.dead_letter_topic):
        world.service.log.delete(topic, keep_commits=True)


def breaks_the_store(call: str, error: ChainError) -> Break:
    return lambda world: setattr(world.store, call, refuse(error))


def breaks_the_log(call: str, error: ChainError) -> Break:
    return lambda world: setattr(world.service.log, call, refuse(error))


NOPERM = ConfigurationError("NOPERM this user has no permissions")
READONLY = Unavailable("READONLY You can't write against a read only replica")
GROUP = ConfigurationError("GROUP_AUTHORIZATION_FAILED")

ANYWHERE: dict[str, Break] = {
    "no topic": has_no_topic,
    "no right to read commits": breaks_the_log("committed", GROUP),
    "no right to look at the log": breaks_the_log("bounds", ConfigurationError("TOPIC_AUTHORIZATION_FAILED")),
    "no right to describe": breaks_the_log("describe", ConfigurationError("TOPIC_AUTHORIZATION_FAILED")),
}
OF_STORES: dict[str, Break] = {
    f"{call}: {error}": breaks_the_store(call, error)
    for call in ("home", "set_home", "headers", "write", "read", "set_locations", "locations", "plan")
    for error in (NOPERM, READONLY)
}
"""Calls of a store that a start or its first batch makes."""


@pytest.fixture
def worlds() -> Iterator[Callable[[World], World]]:
    made: list[World] = []

    def keep(world: World) -> World:
        made.append(world)
        world.alive = False
        return world

    yield keep
    for world in made:
        world.service.log.clear()


def new(flow: CompiledFlow) -> World:
    """A flow that has never run, whose input has records."""
    world = World.make(flow)
    world.service.log.delete_group(flow.declared_name)
    world.store = type(world.store)(f"{flow.name}-new-{id(world)}")
    return world


FLOWS: dict[str, Callable[[], World]] = {
    "new, with stages": lambda: new(totals()),
    "with stages": lambda: World.make(totals()),
    "killed in a plan": lambda: killed_after_the_seal(totals()),
    "raw, killed in a plan": lambda: killed_after_the_seal(totals(raw=True)),
    "without stages": lambda: World.make(doubled()),
}


def agree(world: World) -> tuple[list[str], str]:
    """What the doctor finds, then what a start ends with; the doctor comes first, and must leave all as it is."""
    found = doctor_errors(world)
    error = start_error(world)
    assert found or not error, error
    return found, error


@pytest.mark.parametrize("flow", FLOWS)
def test_where_nothing_is_broken_both_are_content(flow: str, worlds: Callable[[World], World]) -> None:
    assert agree(worlds(FLOWS[flow]())) == ([], "")


@pytest.mark.parametrize("broken", [*ANYWHERE, "begins in the middle"])
@pytest.mark.parametrize("flow", FLOWS)
def test_the_doctor_finds_what_stops_a_start(
    flow: str, broken: str, worlds: Callable[[World], World]
) -> None:
    world = worlds(FLOWS[flow]())
    ({**ANYWHERE, "begins in the middle": begins_in_the_middle}[broken])(world)
    found, error = agree(world)
    assert bool(found) == bool(error), (found, error)


@pytest.mark.parametrize("broken", OF_STORES)
@pytest.mark.parametrize("flow", [name for name in FLOWS if name != "without stages"])
def test_the_doctor_finds_what_a_store_refuses(
    flow: str, broken: str, worlds: Callable[[World], World]
) -> None:
    world = worlds(FLOWS[flow]())
    OF_STORES[broken](world)
    found, _ = agree(world)
    assert found


@pytest.mark.parametrize("broken", [name for name in PLANTED if name not in OF_MACHINES])
def test_what_was_planted_stops_no_start_behind_the_doctors_back(
    broken: str, worlds: Callable[[World], World]
) -> None:
    world = worlds(World.make(totals()))
    PLANTED[broken](world)
    agree(world)


@pytest.mark.parametrize("broken", AT_A_REPUBLISHER)
def test_the_same_of_a_flow_without_stages(broken: str, worlds: Callable[[World], World]) -> None:
    world = worlds(World.make(doubled()))
    AT_A_REPUBLISHER[broken](world)
    agree(world)


def trebled() -> CompiledFlow:
    def treble(value: Int64Value) -> Int64Value:
        return Int64Value(value=3 * value.value)

    flow = Flow("doubled", poison="dead_letter")
    flow.source("numbers", Int64Value).map(treble).to("sums", partitions=1)
    return flow.compile()


def test_a_batch_that_other_code_has_begun_is_found(worlds: Callable[[World], World]) -> None:
    world = worlds(World.make(doubled()))
    world.service.feed("numbers", Int64Value(value=7), partition=0, timestamp_ms=1_000)
    world.service.crash(step=7)
    world.service.run_until_crash()
    world.flow = trebled()
    ends = world.service.log.bounds([("sums", 0)])
    found, error = agree(world)
    assert found == ["PlanMismatch"]
    assert error.startswith("PlanMismatch")
    assert world.service.log.bounds([("sums", 0)]) == ends


def test_the_doctor_changes_nothing(worlds: Callable[[World], World]) -> None:
    """Neither where a start would finish a plan, nor where it would begin one."""
    for make in FLOWS.values():
        world = worlds(make())
        log, store = world.service.log, world.store
        tps = [("numbers", 0), ("numbers", 1), ("sums", 0)]
        group = world.flow.declared_name
        before = content_of(store), log.bounds(tps), log.committed(group, tps)
        assert doctor_errors(world) == []
        assert (content_of(store), log.bounds(tps), log.committed(group, tps)) == before
        assert store.flows() in ([], [world.flow.name])


def content_of(store: DurableStore) -> list[object]:
    """All that is stored; a copy also has the names of what was deleted."""
    copied = store.copy_all()
    homes = {flow: copy for flow, copy in copied.homes.items() if copy.home is not None or copy.plans}
    parts = {cell: copy for cell, copy in copied.parts.items() if copy.header is not None or copy.states}
    return [homes, parts, copied.locations]


def reports(world: World, allowed: Mapping[str, Collection[str] | None]) -> None:
    """Give the log in memory a login with these rights; of topics that are not named it has all. "group": of the group."""
    whole = {"READ", "WRITE"}

    def on_topics(topics: Iterable[str]) -> dict[str, Collection[str] | None]:
        return {topic: allowed.get(topic, whole) for topic in topics}

    def in_group(_group: str) -> Collection[str] | None:
        return allowed.get("group", whole)

    log: Any = world.service.log
    log.allowed, log.allowed_in_group = on_topics, in_group


LACKING: dict[str, tuple[Callable[[], World], str, set[str]]] = {
    "input": (lambda: World.make(totals()), "numbers", {"WRITE"}),
    "output": (lambda: World.make(totals()), "sums", {"READ"}),
    "dead-letter records": (lambda: World.make(totals()), "totals.dead-letters", {"READ"}),
    "output, read back": (lambda: World.make(doubled()), "sums", {"WRITE"}),
    "dead-letter records, read back": (lambda: World.make(doubled()), "doubled.dead-letters", {"WRITE"}),
}


@pytest.mark.parametrize("row", LACKING)
def test_a_right_that_a_start_needs_is_named_by_both(row: str, worlds: Callable[[World], World]) -> None:
    make, topic, allowed = LACKING[row]
    world = worlds(make())
    reports(world, {topic: allowed})
    found, error = agree(world)
    (lacks,) = {"READ", "WRITE"} - allowed
    assert found == ["no-right"]
    assert error.startswith("ConfigurationError")
    assert f"{lacks} on topic {topic!r}" in error


def test_a_flow_with_stages_need_not_read_its_outputs(worlds: Callable[[World], World]) -> None:
    world = worlds(World.make(totals()))
    reports(world, {"sums": {"WRITE"}, "totals.dead-letters": {"WRITE"}})
    assert agree(world) == ([], "")
    assert status_of(world.diagnose()) == 0


@pytest.mark.parametrize("what", ["numbers", "sums", "group"])
def test_rights_that_are_not_reported_are_no_all_clear(what: str, worlds: Callable[[World], World]) -> None:
    world = worlds(World.make(totals()))
    reports(world, {what: None})
    assert agree(world) == ([], "")
    findings = world.diagnose()
    assert [finding.check for finding in findings if finding.severity != "note"] == ["unknown-rights"]
    assert status_of(findings) == 3


def test_what_a_store_cannot_try_is_no_all_clear(worlds: Callable[[World], World]) -> None:
    world = worlds(World.make(totals()))
    store: Any = world.store
    store.try_writes = lambda *_: ["rights"]
    assert status_of(world.diagnose()) == 3


def test_an_input_that_cannot_be_read_is_found(worlds: Callable[[World], World]) -> None:
    world = worlds(World.make(totals()))
    breaks_the_log("read", ConfigurationError("TOPIC_AUTHORIZATION_FAILED"))(world)
    assert doctor_errors(world) == ["ConfigurationError"]


def test_new_code_is_examined_while_a_run_is_alive(worlds: Callable[[World], World]) -> None:
    """A deployment asks before it stops the run: what the new code would end with is no matter of the run."""
    world = worlds(World.make(totals()))
    world.alive = True
    assert doctor_errors(world) == []
    breaks_the_log("read", ConfigurationError("TOPIC_AUTHORIZATION_FAILED"))(world)
    assert doctor_errors(world) == ["ConfigurationError"]


def add_twice(total: Int64Value, value: Int64Value) -> None:
    total.value += 2 * value.value


def test_a_batch_that_a_live_run_may_finish_is_not_tried(worlds: Callable[[World], World]) -> None:
    world = worlds(killed_after_the_seal(totals()))
    world.alive = True
    world.flow = totals(fold=add_twice)
    findings = world.diagnose()
    assert [finding.check for finding in findings if finding.severity != "note"] == ["not-tried"]
    assert status_of(findings) == 3
    world.alive = False
    assert doctor_errors(world) == ["PlanMismatch"]


def test_a_table_that_was_not_claimed_is_reported(tmp_path: Path, worlds: Callable[[World], World]) -> None:
    """The table is looked at, and stays as it is: neither made, nor claimed."""
    world = worlds(new(totals()))
    world.flow = table_flow(tmp_path / "readings").compile()
    (topic,) = world.flow.input_topics
    world.service.log.create_topic(topic, 1)
    findings = world.diagnose()
    untried = [finding.subject for finding in findings if finding.check == "not-tried"]
    assert (untried, status_of(findings)) == (["stage 'readings'"], 3)
    assert not (tmp_path / "readings").exists()
