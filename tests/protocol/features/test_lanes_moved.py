"""Goal: what was published comes again on the lanes on which it came first, or not at all.

Method: a flow counts robots and publishes; a second flow counts what it hears. P, the stage before an output, and its partitions
change at every moment at which something is still to be published again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ConfigurationError, PlanMismatch, ServiceStopped
from sqe_chain.features.lanes import Lanes
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.testing import Crash, Rehearsal
from tests.support.plans import last_plan, reseal_last_plan

State = dict[str, Any]
ROBOTS = 5
TWICE = {f"R{robot}".encode(): {"n": 2} for robot in range(ROBOTS)}
START = ("in", 0)


def robot_of(event: State) -> str:
    return str(event["robot"])


def line_of(event: State) -> str:
    return f"line of {event['robot']}"


def add(total: State, event: State) -> list[State]:
    total["n"] = total.get("n", 0) + 1
    return [event]


def count(total: State, _: State) -> None:
    total["n"] = total.get("n", 0) + 1


def totals(
    state_partitions: int = 1,
    *,
    buckets: int = 1,
    behind: str = "one",
    partitions: int = 1,
    more: bool = False,
) -> Flow:
    """Two stages, one after the other. `behind` is the one before the output; `more` inserts a stage before both."""
    flow = Flow("totals", state_partitions=state_partitions)
    stream = flow.source("in", dict)
    if more:
        stream = stream.aggregate("zero", key=line_of, state=dict, fold=add)
    one = stream.aggregate("one", key=robot_of, state=dict, fold=add, buckets=buckets)
    two = one.aggregate("two", key=line_of, state=dict, fold=add)
    (one if behind == "one" else two).to("out", partitions=partitions)
    return flow


class World:
    """A flow that has read its input, or was killed while it published it, and its reader."""

    def __init__(self, flow: Flow, step: int = 0) -> None:
        name = f"moved-{id(self)}"
        log, self.store = MemoryLog(name), MemoryStore(name)
        log.clear()
        self.store.restore_all()
        self.up = Rehearsal(flow, log=log, store=self.store)
        reader = Flow("reader")
        reader.source("out", dict).aggregate("heard", key=robot_of, state=dict, fold=count)
        self.down = Rehearsal(reader, log=log)
        self.feed()
        self.feed()
        if step:
            self.up.crash(step=step, when="before")
            self.up.run_until_crash()
            assert self.up.crashes == 1
        else:
            self.up.run_until_caught_up()
        self.heard()

    def feed(self) -> None:
        for robot in range(ROBOTS):
            self.up.feed("in", {"robot": f"R{robot}"})

    def declare(self, flow: Flow) -> None:
        self.up.flow, self.up.service = flow.compile(), None

    def heard(self) -> object:
        self.down.run_until_caught_up()
        return self.down.states("heard")

    def run(self, flow: Flow | None = None) -> None:
        if flow is not None:
            self.declare(flow)
        self.up.run_until_caught_up()

    def rewind(self) -> None:
        self.up.rebuild({START: 0}, republish=True)


MOVES: dict[str, Callable[[], Flow]] = {
    "P": lambda: totals(4),
    "the stage before an output": lambda: totals(behind="two"),
}
ALSO_SEEN: dict[str, Callable[[], Flow]] = {**MOVES, "a stage before": lambda: totals(more=True)}


@pytest.mark.parametrize("way", ["rebuild", "rewind", "rewind and publish"])
@pytest.mark.parametrize("what", ALSO_SEEN)
def test_a_batch_published_in_part_is_finished_before_a_rebuild_changes_what_it_gives(
    what: str, way: str
) -> None:
    world = World(totals(), step=6)
    world.declare(ALSO_SEEN[what]())
    to = None if way == "rebuild" else {START: 0}
    with pytest.raises(PlanMismatch, match=r"plan 1 was sealed .* --once.*rebuild with it first"):
        world.up.rebuild(to, republish=way == "rewind and publish")
    world.run(totals())
    world.declare(ALSO_SEEN[what]())
    world.up.rebuild()
    world.run()
    assert world.heard() == TWICE


def test_so_it_is_where_a_rebuild_with_the_old_declaration_has_not_finished_it_yet() -> None:
    world = World(totals(), step=6)
    world.up.rebuild()
    world.declare(totals(4))
    with pytest.raises(PlanMismatch, match="output/out had 1 state partitions, now 4"):
        world.up.rebuild()
    world.run(totals())
    world.declare(totals(4))
    world.up.rebuild()
    world.run()
    assert world.heard() == TWICE


def test_after_a_crash_in_a_later_step_a_rebuild_need_not_wait() -> None:
    """Persisting shows that all was published."""
    world = World(totals(), step=7)
    world.declare(totals(4))
    world.up.rebuild()
    world.run()
    assert world.heard() == TWICE


def restarted(world: World, flow: Flow) -> None:
    world.run(flow)


def rebuilt(world: World, flow: Flow) -> None:
    world.declare(flow)
    world.up.rebuild()
    world.run()


def rebuilt_twice(world: World, flow: Flow) -> None:
    """The second one changes nothing, and must not forget."""
    rebuilt(world, flow)
    world.up.rebuild()
    world.run()


def rebuilt_and_moved_to_another_store(world: World, flow: Flow) -> None:
    rebuilt(world, flow)
    lines = world.up.exported()
    world.store.restore_all()
    world.up.imported(lines)


def rebuilt_there_and_back(world: World, flow: Flow) -> None:
    """The lanes of the first time are those of now, but some outputs in between came on others."""
    rebuilt(world, flow)
    rebuilt(world, totals())


CHANGES: list[tuple[Callable[[World, Flow], None], Callable[[], Flow]]] = [
    *((way, MOVES["P"]) for way in (rebuilt, rebuilt_twice, rebuilt_and_moved_to_another_store)),
    *((way, MOVES["the stage before an output"]) for way in (restarted, rebuilt, rebuilt_twice)),
    (rebuilt, lambda: totals(partitions=3)),
    (rebuilt_there_and_back, MOVES["P"]),
]


@pytest.mark.parametrize(("way", "flow"), CHANGES)
def test_after_outputs_have_moved_nothing_older_is_published_again(
    way: Callable[[World, Flow], None], flow: Callable[[], Flow]
) -> None:
    world = World(totals())
    if flow().compile().outputs[0].partitions > 1:
        world.up.log.grow("out", 3)
    way(world, flow())
    with pytest.raises(ConfigurationError, match=r"in\[0\]@0 .*offset 10"):
        world.rewind()
    world.feed()
    world.run()
    world.up.rebuild({START: 10}, republish=True)  # what came since is on the lanes of now
    world.run()
    world.up.rebuild({START: 0})  # and without publishing it may go back to anywhere
    world.run()
    assert world.heard() == {key: {"n": 3} for key in TWICE}


def test_one_rewind_that_changes_and_publishes_again_is_refused_too() -> None:
    world = World(totals())
    world.declare(totals(4))
    with pytest.raises(ConfigurationError, match="before offset 10"):
        world.rewind()
    world.run(totals())
    assert world.heard() == TWICE


@pytest.mark.parametrize("flow", [lambda: totals(buckets=3), lambda: totals(more=True), totals])
def test_what_leaves_the_lanes_as_they_are_does_not_forbid_to_publish_again(flow: Callable[[], Flow]) -> None:
    """The shard is that of the last stage; buckets share one."""
    world = World(totals())
    rebuilt(world, flow())
    world.rewind()
    world.run()
    assert world.heard() == TWICE


@pytest.mark.parametrize(
    ("rebuilds", "what"), [(True, "P"), *((way, "the stage before an output") for way in (True, False))]
)
def test_while_a_flow_publishes_again_its_outputs_stay(rebuilds: bool, what: str) -> None:
    world = World(totals())
    world.rewind()
    world.declare(MOVES[what]())
    with pytest.raises(PlanMismatch, match=r"in\[0\] was rewound.*up to offset 10.*caught up"):
        world.up.rebuild() if rebuilds else world.up.start()
    world.run(totals())
    (rebuilt if rebuilds else restarted)(world, MOVES[what]())
    assert world.heard() == TWICE


def test_while_a_batch_published_in_part_is_due_an_output_does_not_move() -> None:
    world = World(totals(), step=6)
    world.up.rebuild()
    world.declare(totals(behind="two"))
    with pytest.raises(PlanMismatch, match="output/out came from stage/one, now from stage/two"):
        world.up.start()
    world.run(totals())
    world.run(totals(behind="two"))
    assert world.heard() == TWICE


@pytest.mark.parametrize("long", [False, True])
def test_an_output_that_was_gone_while_p_changed_is_not_forgotten(long: bool) -> None:
    """Nor one that was gone before that."""
    world = World(totals())
    for state_partitions in (1, 4) if long else (4,):
        flow = Flow("totals", state_partitions=state_partitions)
        flow.source("in", dict).aggregate("one", key=robot_of, state=dict, fold=count)
        rebuilt(world, flow)
    rebuilt(world, totals(4))
    with pytest.raises(ConfigurationError, match="before offset 10"):
        world.rewind()


def test_where_an_older_version_has_rebuilt_nothing_is_published_again_from_before_the_next_rebuild() -> None:
    world = World(totals())
    world.up.rebuild()
    world.run()
    assert Lanes.of(last_plan(world.store, "totals")) == Lanes({})
    reseal_last_plan(world.store, "totals", lambda plan: plan["sections"].pop(Lanes.name))
    with pytest.raises(ConfigurationError, match="before offset 10"):
        world.rewind()


def test_an_attempt_is_not_resumed_with_outputs_elsewhere() -> None:
    world = World(totals())
    world.up.crash(step=6, when="before")
    with pytest.raises(Crash):
        world.up.rebuild()
    world.up.script.writes.clear()
    world.declare(totals(behind="two"))
    with pytest.raises(ConfigurationError, match="outputs on other lanes"):
        world.up.rebuild(resume=True)


def test_a_store_that_is_lost_or_went_back_is_not_the_end_of_what_is_known_of_p() -> None:
    world = World(totals())
    copy = world.store.copy_all()
    world.feed()
    rebuilt(world, totals(4))
    world.store.restore_all(copy)
    accept = settings_of(takeover=True, allow_weak_durability=True, accept_rollback=True)
    world.declare(totals())
    with pytest.raises(PlanMismatch, match=r"with 4 state partitions; declared are 1"):
        world.up.start(accept)
    world.store.restore_all()
    with pytest.raises(PlanMismatch, match=r"with 4 state partitions; declared are 1"):
        world.up.rebuild()
    rebuilt(world, totals(4))
    assert world.heard() == {key: {"n": 3} for key in TWICE}


class Operator(World):
    """Does what a generator draws, and goes back to the declaration before where the new one is refused."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.rounds, self.refused = draw, 2, 0
        self.known = [self.drawn()]
        super().__init__(self.known[0])

    def drawn(self) -> Flow:
        draw = self.draw
        behind = draw.choice(["one", "two"])
        return totals(
            draw.choice([1, 2, 4]), buckets=draw.choice([1, 3]), behind=behind, more=draw.random() < 0.3
        )

    def step(self) -> None:
        draw, up = self.draw, self.up
        if draw.random() < 0.7:
            self.feed()
            self.rounds += 1
        if draw.random() < 0.4:
            self.recover()
            up.crash_at_write(draw.randrange(3), "after")  # of a batch: sealed, published, persisted
            up.run_until_crash()
            up.script.writes.clear()
        if draw.random() < 0.5:
            up.crash_at_write(draw.randrange(12), draw.choice(["before", "after"]))
        flow = self.drawn() if draw.random() < 0.6 else self.known[0]
        self.declare(flow)
        to = {START: draw.randrange(ROBOTS * self.rounds)} if draw.random() < 0.5 else None
        try:
            if draw.random() < 0.7:
                up.rebuild(to, republish=draw.random() < 0.5)
            up.run_until_crash()
        except Crash:
            pass
        except (ConfigurationError, ServiceStopped):
            self.refused += 1
        up.script.writes.clear()
        self.known = [flow, *self.known]
        if draw.random() < 0.5:  # else what the crash has left is what the next step begins with
            self.recover()
        if draw.random() < 0.5:
            self.heard()

    def recover(self) -> None:
        """Start the first declaration that is accepted: a crash may have come before or after a cut-over."""
        for flow in self.known:
            self.declare(flow)
            with suppress(ServiceStopped):
                self.up.start()
                self.known = [flow]
                return
        raise AssertionError("no declaration is accepted")


@pytest.mark.parametrize("block", range(5))
def test_whatever_changes_when_each_input_is_heard_once(block: int) -> None:
    refused = 0
    for seed in range(25 * block, 25 * block + 25):
        world = Operator(random.Random(seed))
        for _ in range(world.draw.choice([2, 4, 8])):
            world.step()
        world.recover()
        world.run()
        assert world.heard() == {key: {"n": world.rounds} for key in TWICE}, seed
        refused += world.refused
    assert refused
