"""Goal: whatever operation dies after whatever write, what its user does next ends it, and nothing is lost, counted twice or half used.

Method: a table of operations. Each sets up a world of its own, and does one thing that is killed at one point. It does what a user does
then, and asks an oracle that knows only what went in. Every operation is killed after each of its writes to broker, store and table, in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import (
    ConfigurationError,
    PlanMismatch,
    ReadersOverlap,
    ServiceStopped,
    StoreEmpty,
    StoreInconsistent,
)
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.operations.forget import known_flow
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import FaultScript
from sqe_chain.testing.faulty_ports import faulty_log
from tests.support import located, released_letters, republished_states, shadows, windows_of_windows
from tests.support.changed_flows import CHANGES, declared, feed_words, rehearsal_of, two_stages
from tests.support.environments import environment_of
from tests.support.file_flows import expected, published_once, rows_flow, some_files, totals_flow
from tests.support.forgotten import KEPT, Neighbours
from tests.support.memory_chunks import use_memory
from tests.support.moved import elsewhere, forget, run_before, states_of
from tests.support.overwrite_flows import Again, begun_overwrite, check_once, goal_of, load_until_crash
from tests.support.parking_world import World as ParkingWorld
from tests.support.published_in_part import Pair
from tests.support.readers import ReaderPipeline, begun_readers
from tests.support.rebuilding import (
    AFTER,
    BEFORE,
    HISTORIES,
    Pipeline,
    SmallPipeline,
    lose_a_cell,
    rebuild_after_a_crash,
    rebuild_again,
    resume,
    start_again,
)
from tests.support.released_letters import Cleaning
from tests.support.skipped_words import WORDS, Counting
from tests.support.sweeping import HANGS_S, Operations, Point
from tests.support.table_flows import TablePipeline, begun_table
from tests.support.word_flows import append_word, first_letter, same_key, stored_words, word

KILLED = Operations(every=3)  # a rule is often broken at a single write


# ---------------------------------------------------------------------- flows that are folded again


@KILLED.enter("rebuild", 20, how=["again", "resumed"])
def rebuild(point: Point, _: Path, how: str) -> None:
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    lose_a_cell(pipeline)
    with point.killed(pipeline.found):
        pipeline.found.rebuild()
    if point.reached:
        rebuild_after_a_crash(pipeline.found, resume=how == "resumed")
    pipeline.check()
    pipeline.feed(AFTER)
    pipeline.check()


@KILLED.enter("rebuild", 14, history=HISTORIES, recover=[start_again, rebuild_again, resume])
def rebuild_with_a_history(
    point: Point,
    _: Path,
    history: Callable[[SmallPipeline], None],
    recover: Callable[[SmallPipeline], None],
) -> None:
    """Attempts that are done, given up, or being deleted are not resumed; in the end one copy of the states is left."""
    pipeline = SmallPipeline()
    history(pipeline)
    with point.killed(pipeline.found):
        pipeline.found.rebuild()
    recover(pipeline)
    pipeline.check()
    resume(pipeline)
    pipeline.check()
    pipeline.feed(AFTER[:1])
    pipeline.check()
    resume(pipeline)
    pipeline.check()
    pipeline.found.rebuild()
    pipeline.feed(AFTER[1:2])
    pipeline.check()
    assert pipeline.rows() == {pipeline.stored_in(): len(stored_words(pipeline.found))}, "all else is deleted"


@KILLED.enter("rebuild and locations", 20, how=["again", "resumed", "started"])
def rebuild_that_readers_follow(point: Point, _: Path, how: str) -> None:
    """What a second rebuild deletes first may be what the record still leads to: the crash came before it moved."""
    deployment = located.Deployment()
    deployment.found.rebuild()  # so that the old states are an attempt's, which the second one would delete
    other = deployment.of(located.flow_of(10))
    located.Reader(deployment, other)
    with point.killed(other):
        other.rebuild()
    if how == "started":
        other.restart()
        current = {key: state.value for key, state in other.states("letters").items()}
        assert deployment.read()["letters"] == deployment.read("other")["letters"] == current
        assert point.reached or current == located.NEW["letters"]
        return
    if point.reached:
        rebuild_after_a_crash(other, resume=how == "resumed")
    assert deployment.read() == deployment.read("other") == located.NEW


@KILLED.enter("shadow that follows", 15)
def follow_the_flow(point: Point, _: Path) -> None:
    """Another process goes on with it, or it is left alone."""
    pipeline = shadows.running()
    with point.killed(pipeline.found):
        shadows.follow(pipeline, shadows.flow_of())
    pipeline.check()
    pipeline.feed(AFTER[:1])
    shadows.follow(pipeline, shadows.flow_of())
    assert all(result.same for result in pipeline.found.compared(shadows.flow_of()))
    pipeline.found.switch(shadows.flow_of())
    pipeline.feed(AFTER[1:])
    pipeline.check()


@KILLED.enter("shadow at an export", 25, how=["again", "without"])
def begin_at_an_export(point: Point, _: Path, how: str) -> None:
    """The start is repeated; or the next one is without the export, and goes on where there is something to go on with."""
    pipeline, flow = shadows.running(), shadows.flow_of()
    lines = shadows.exported(pipeline)
    pipeline.feed(AFTER[:1])
    with point.killed(pipeline.found):
        shadows.follow(pipeline, flow, lines)
    pipeline.check()
    pipeline.feed(AFTER[1:2])
    shadows.follow(pipeline, flow, lines if how == "again" else None)
    assert all(result.same for result in pipeline.found.compared(flow))
    assert len({name for name, _ in pipeline.stored_stages()}) == 2, (
        "nothing is left of a start that was killed"
    )
    pipeline.found.switch(flow)
    pipeline.feed(AFTER[2:])
    pipeline.check()


@KILLED.enter("switch to a shadow", 20, how=["again", "started"], state_partitions=[2, 3])
def switch_to_a_shadow(point: Point, _: Path, how: str, state_partitions: int) -> None:
    """It is repeated; or the service is started with the code whose states are the flow's."""
    pipeline, flow = shadows.running(), shadows.flow_of(state_partitions)
    shadows.follow(pipeline, flow)
    pipeline.feed(AFTER[:1])
    with point.killed(pipeline.found):
        pipeline.found.switch(flow)
    if how == "again":
        pipeline = shadows.switch_after_a_crash(pipeline, flow)
    elif shadows.has_switched(pipeline):
        pipeline = pipeline.same(flow)
    pipeline.check()
    pipeline.feed(AFTER[1:])
    pipeline.check()


@KILLED.enter("way back from a switch", 25, how=["again", "started"])
def go_back(point: Point, _: Path, how: str) -> None:
    """It is repeated; or the service is started with the code whose states are the flow's."""
    pipeline = shadows.switched()
    with point.killed(pipeline.found):
        pipeline.found.switch_back(shadows.flow_of())
    back = not shadows.has_switched(pipeline)
    if how == "again" and not back:
        pipeline.found.switch_back(shadows.flow_of())
        back = True
    pipeline = pipeline.same(shadows.flow_of() if back else pipeline.flow)
    pipeline.feed(AFTER[1:])
    if not back:
        pipeline.found.switch_back(shadows.flow_of())
        pipeline = pipeline.same(shadows.flow_of())
    pipeline.check()


@KILLED.enter("rebuild of a batch that is published in part", 20)
def rebuild_published_in_part(point: Point, _: Path) -> None:
    """Receivers hear the rest as the batch was cut."""
    pair = Pair(1)
    pair.feed(4)
    with point.killed(pair.up):
        pair.up.rebuild()
        pair.up.run_until_crash()
    if point.reached:
        pair.down.run_until_caught_up()
    pair.up.service = None
    pair.finish()
    assert pair.heard() == "1001 1 3006 6 4010 10"


@KILLED.enter("rebuild of windows", 5)
def rebuild_windows(point: Point, _: Path) -> None:
    """Also in its last batch: what had been closed then is closed without being published again."""
    calm, service = windows_of_windows.grown(), windows_of_windows.grown()
    calm.rebuild()
    with point.killed(service):
        service.rebuild()
    if point.reached:
        rebuild_after_a_crash(service, resume=True)
    for one in (calm, service):
        windows_of_windows.feed(one, 400, 460)
        one.run_until_caught_up()
    for topic in ("hours", "days"):
        assert len(service.published(topic)) == len(calm.published(topic))
        assert windows_of_windows.rows(service, topic) == windows_of_windows.rows(calm, topic)


# ---------------------------------------------------------------------- flows that come, change, move and go


@KILLED.enter("first start", 14)
def start_first(point: Point, _: Path) -> None:
    found = rehearsal_of(declared(two_stages))
    feed_words(found)
    with point.killed(found):
        found.run_until_caught_up()
    found.restart()
    assert stored_words(found) == {"a": "ant ape", "b": "bee bat", "c": "cat"}


@KILLED.enter("raw input that was created again", 8)
def enter_again(point: Point, _: Path) -> None:
    flow = Flow("counting", state_partitions=2)
    source = flow.source("words", lambda data: word(data.decode()), raw=True)
    first = source.aggregate("letters", key=first_letter, state=StringValue, fold=append_word)
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    first.to("copied", partitions=1)
    found = Rehearsal(flow)
    for texts in (BEFORE, AFTER):
        for text in texts:
            found.feed("words", text.encode())
        with point.killed(found) if texts is AFTER else nullcontext():
            found.run_until_caught_up()
        found.log.recreate("words")
    for stage in ("letters", "all"):
        assert Counter(" ".join(stored_words(found, stage).values()).split()) == Counter(BEFORE + AFTER)


@KILLED.enter("load of files", 15, suffix=["csv", "parquet", "jsonl"])
def load_files(point: Point, at: Path, suffix: str) -> None:
    """With a stage, and without one, which publishes its last batch again at the same positions; a second load adds nothing."""
    at.mkdir()
    rows = some_files(at, suffix, (5, 4))
    flow = rows_flow(at, suffix) if suffix == "jsonl" else totals_flow(at, suffix)
    settings = settings_of(open_files=2 if suffix == "csv" else 1, max_records=4)
    load = Rehearsal(flow, settings=settings)
    with point.killed(load):
        load.run_until_caught_up()
    for _ in range(2):
        if suffix == "jsonl":
            assert published_once(load) == Counter(row["screws"] for one in rows for row in one)
        else:
            assert load.states("per-robot") == expected(rows)
        known = len(load.log.records("rows" if suffix == "jsonl" else "totals"))
        load.restart()
        load.run_until_caught_up()
        assert len(load.log.records("rows" if suffix == "jsonl" else "totals")) == known


@KILLED.enter("change", 10, of=CHANGES)
def change(point: Point, _: Path, of: str) -> None:
    """It enters by an empty plan of its own; a stage that is new begins with its birth."""
    results: list[dict[str, dict[str, str]]] = []
    for one in (point, Point(10_000)):
        declare, declare_anew, also = CHANGES[of]
        found = rehearsal_of(declared(declare))
        feed_words(found)
        found.run_until_caught_up()
        found = rehearsal_of(declared(declare_anew), found)
        if also:
            also(found)
        feed_words(found, words=["asp", "boa"])
        with one.killed(found):
            found.run_until_caught_up()
        results.append({stage.name: stored_words(found, stage.name) for stage in found.flow.stages})
    assert results[0] == results[1], "the same as without a crash"
    assert results[0]["letters"]["b"].endswith("boa")
    assert results[0].get("beside", {"all": "asp boa"}) == {"all": "asp boa"}, "begins with its birth"


@KILLED.enter("life and locations", 8, third=[False, True])
def life(point: Point, _: Path, third: bool) -> None:
    """Born, or grown by a stage, and fed: after the next start the record of locations is complete."""
    stores = {name: MemoryStore(f"life-{name}-{id(point)}") for name in ("", "other")}
    for store in stores.values():
        store.restore_all()
    found = Rehearsal(located.flow_of(), store=stores)
    if third:
        found.feed("words", word("ant"), key="a")
        found.run_until_caught_up()
        found = Rehearsal(located.flow_of(third=True), store=stores, log=found.log)
    found.feed("words", word("ape"), key="a")
    with point.killed(found):
        found.run_until_caught_up()
    found.restart()
    for store in stores.values():
        locations = store.locations("notes")
        assert locations is not None
        assert list(locations.stages) == ["letters", "all", *(["later"] if third else [])]
        assert {stage.flow for stage in locations.stages.values()} == {"notes"}


@KILLED.enter("import", 10)
def import_states(point: Point, _: Path) -> None:
    """Half of it is never used."""
    before = run_before()
    expected, lines = states_of(before), before.exported()
    after = elsewhere(before)
    with point.killed(after):
        after.imported(lines)
    if point.reached:
        home = after.stores[""].home("notes")[0]
        if home is None or home.number < 0:
            with pytest.raises(StoreEmpty):
                after.start()
            after.imported(lines)
    after.start()
    assert states_of(after) == expected


@KILLED.enter("import, then a start", 10)
def import_states_then_start(point: Point, _: Path) -> None:
    """Without commits in Kafka that start takes the flow for a new one, and gives it a first plan: it is forgotten first."""
    before = run_before()
    expected, lines = states_of(before), before.exported()
    before.log.delete_group("notes")
    after = elsewhere(before)
    with point.killed(after):
        after.imported(lines)
    with suppress(StoreInconsistent):
        after.start()
    after.service = None
    if point.reached:
        with pytest.raises(ConfigurationError, match="or run sqe-chain flows forget first"):
            after.imported(lines)
        forget(after)
        after.imported(lines)
        after.start()
    assert states_of(after) == expected


@KILLED.enter("forget", 20)
def forget_a_flow(point: Point, _: Path) -> None:
    pipeline, script = Neighbours(), FaultScript()
    with point.killed(script):
        pipeline.forget(script)
    if known_flow(pipeline.stores[""], "first") is not None:
        pipeline.forget()
    assert pipeline.left() == KEPT


@KILLED.enter("forget, then a start", 20)
def forget_then_start(point: Point, _: Path) -> None:
    """A supervisor starts the service between the two; the second one finishes nevertheless."""
    pipeline, script = Neighbours(), FaultScript()
    with point.killed(script):
        pipeline.forget(script, topics=False)
    known = known_flow(pipeline.stores[""], "first")
    if known is None or not known.forgotten_in_part:
        return
    with pytest.raises(ServiceStopped, match="being forgotten"):
        pipeline.first.restart()
    pipeline.forget(topics=False)
    assert pipeline.left() == {*KEPT, "first.out", "first.dead-letters"}


@KILLED.enter("forget, then a rebuild", 20)
def forget_then_rebuild(point: Point, _: Path) -> None:
    """It keeps a flow that was half forgotten."""
    pipeline, script = Neighbours(), FaultScript()
    with point.killed(script):
        pipeline.forget(script, topics=False)
    if not point.reached or known_flow(pipeline.stores[""], "first") is None:
        return
    pipeline.first.rebuild()
    pipeline.first.run_until_caught_up()
    assert sorted(pipeline.first.states("letters")) == [b"a", b"b", b"c"]
    known = known_flow(pipeline.stores[""], "first")
    assert known is not None
    assert not known.forgotten_in_part


@KILLED.enter("rebuild of what is half forgotten", 20)
def rebuild_what_is_half_forgotten(point: Point, _: Path) -> None:
    """It stays half forgotten until the rebuild has cut over."""
    pipeline, script = Neighbours(), FaultScript()
    with Point(20).killed(script):
        pipeline.forget(script, topics=False)
    with point.killed(pipeline.first):
        pipeline.first.rebuild()
    known = known_flow(pipeline.stores[""], "first")
    assert known is not None
    if known.forgotten_in_part:
        assert point.reached
        with pytest.raises(ServiceStopped, match="being forgotten"):
            pipeline.first.restart()
    else:
        pipeline.first.restart()
        assert sorted(pipeline.first.states("letters")) == [b"a", b"b", b"c"]
    pipeline.forget(topics=False)
    assert pipeline.left() == {*KEPT, "first.out", "first.dead-letters"}


# ---------------------------------------------------------------------- states and failed records that are published


@KILLED.enter("republish states, again", 20)
def republish_again(point: Point, _: Path) -> None:
    world = republished_states.World()
    with point.killed(world.up):
        world.up.announce()
    if point.reached:
        world.heard()
        world.up.announce()
    republished_states.check_published_once(world)


@KILLED.enter("republish states, then a start", 20)
def republish_then_start(point: Point, _: Path) -> None:
    """The service publishes all of it, or nothing."""
    new, world = republished_states.NEW, republished_states.World()
    with point.killed(world.up):
        world.up.announce()
    world.heard()
    world.feed("ant", "emu")
    world.go_on()
    received = {key for key, numbers in world.heard().items() if numbers.count(new.get(key, 0)) == 1}
    assert received >= set(new) or (point.reached and not received & (set(new) - {"a", "all"}))
    world.up.announce()
    heard = world.heard()
    assert {key: numbers[-1] for key, numbers in heard.items()} == world.newest()
    assert heard["a"].count(new["a"] + 10) == 2


@KILLED.enter("release of failed records", 6, then=["again", "started"], publishes=[False, True])
def release(point: Point, _: Path, then: str, publishes: bool) -> None:
    """The service finishes one too. It decides nothing, and the plan before the release has nothing of them."""
    counting = Counting(publishes=publishes)
    with point.killed(counting.rehearsal):
        counting.operator().release()
    if then == "started":
        assert set(counting.counted()) in ({"ant", "cow"}, set(WORDS))
    if point.reached:
        counting.operator().release()
    assert counting.counted() == WORDS


@KILLED.enter("release of failed records without stages", 6, nobody=[False, True])
def release_without_stages(point: Point, _: Path, nobody: bool) -> None:
    """With two partitions of dead-letter records; what was interrupted may be finished by a release of something else."""
    cleaning, script = Cleaning("bee", "cow", "elk", partitions=2, kept_in=2).corrected(), FaultScript()
    with point.killed(script):
        cleaning.release(faulty_log(cleaning.sender.log, script))
    if nobody:
        cleaning.release(key="nobody")
    cleaning.release()
    assert cleaning.counted() == released_letters.WORDS
    assert set(cleaning.statuses().values()) == {"released"}


@KILLED.enter("release after a replay by an older version", 3)
def release_what_was_sent_back(point: Point, _: Path) -> None:
    """What that version has sent back is never released."""
    cleaning, script = Cleaning("bee", "cow", "elk").corrected(), FaultScript()
    released_letters.replayed_by_an_older_version(cleaning)
    assert cleaning.statuses() == {"bee": "discarded", "cow": "open", "elk": "discarded"}
    with point.killed(script):
        cleaning.release(faulty_log(cleaning.sender.log, script))
    cleaning.release()
    assert cleaning.counted() == ["ant", "cow", "dog", "fox"]
    assert cleaning.statuses() == {"bee": "discarded", "cow": "released", "elk": "discarded"}


@KILLED.enter("release before the first stage", 4)
def release_before_a_stage(point: Point, _: Path) -> None:
    """Only the flow without stages makes the same of its records; no plan would ever finish it."""
    cleaning = Cleaning("bee", "dog").corrected()
    sender, old = cleaning.sender, cleaning.sender.flow
    sender.service = None
    with point.killed(sender):
        cleaning.operator(environment_of(sender).ports.log).release()
    sender.flow = released_letters.with_a_stage(cleaning).compile()
    try:
        sender.run_until_caught_up()
    except PlanMismatch:
        assert point.reached
        sender.flow, sender.service = old, None
        cleaning.operator().release()
        sender.flow = released_letters.with_a_stage(cleaning).compile()
        sender.run_until_caught_up()
    FailedInPlans(environment_of(sender)).release()
    assert cleaning.counted() == sorted(released_letters.WORDS)


@KILLED.enter("command about parked records", 8, discards=[False, True])
def decide_about_parked(point: Point, _: Path, discards: bool) -> None:
    world = ParkingWorld(3)
    world.feed(12)
    world.read()
    world.fix(0.6)
    world.parks.service = None
    with point.killed(world.parks):
        (world.discard if discards else world.release)()
    world.check()
    world.feed(3)
    world.read()
    world.check()


@KILLED.enter("records that are parked", 20)
def park(point: Point, _: Path) -> None:
    world = ParkingWorld(4)
    world.feed(8)
    with point.killed(world.parks):
        world.read()
    world.fix()
    world.release()
    world.check()


# ---------------------------------------------------------------------- tables and their readers


@KILLED.enter("batch into a table", 8, state_partitions=[2, 3], starts=[False, True])
def flush(point: Point, at: Path, state_partitions: int, starts: bool) -> None:
    pipeline = begun_table(at, state_partitions)
    if starts:
        pipeline.service.service = None
    with point.killed(pipeline.service):
        pipeline.service.run_until_caught_up()
    pipeline.service.run_until_caught_up()
    pipeline.check()


@KILLED.enter("batch into a table of chunks", 8)
def flush_chunks(point: Point, at: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        use_memory(patch)
        patch.setattr(TablePipeline, "place", lambda at: f"cassandra://memory/{at.parent.name}{at.name}")
        flush(point, at, 2, starts=True)


@KILLED.enter("first batch into a table", 10)
def create_table(point: Point, at: Path) -> None:
    pipeline = TablePipeline(at)
    pipeline.feed()
    with point.killed(pipeline.service):
        pipeline.service.run_until_caught_up()
    pipeline.service.run_until_caught_up()
    pipeline.check()


@KILLED.enter("overwrite", 20, mode=["table", "partitions"])
def overwrite(point: Point, at: Path, mode: str) -> None:
    """Old rows or new ones; the same command again finishes it, and replaces nothing after that."""
    again = Again(at)
    goal, found = goal_of(again.old, again.new, mode), again.start()
    found.use(mode)
    with point.killed(found.load):
        load_until_crash(found)
    assert found.rows in (again.old, goal)
    found.run(mode)
    assert found.rows == goal
    check_once(found, mode, goal)


@KILLED.enter("overwrite on disk", 6, mode=["table", "partitions"])
def overwrite_on_disk(point: Point, at: Path, mode: str) -> None:
    found, new = begun_overwrite(at, "delta")
    old = found.rows
    goal = goal_of(old, new, mode)
    found.use(mode)
    with point.killed(found.load, "table"):
        load_until_crash(found)
    assert found.rows in (old, goal)
    found.run(mode)
    assert found.rows == goal
    check_once(found, mode, goal)


@KILLED.enter("reader", 8, first=[False, True])
def read_beside(point: Point, at: Path, first: bool) -> None:
    """The other reader goes on meanwhile."""
    pipeline = ReaderPipeline(at, "0-1", "2-") if first else begun_readers(at, "0-1", "2-3")
    if first:
        pipeline.feed()
    crashing, other = pipeline.readers
    crashing.service = None
    with point.killed(crashing):
        crashing.run_until_crash()
    pipeline.feed(6)
    other.run_until_caught_up()
    assert (other.crashes, other.ended) == (0, 0)
    pipeline.run_until_caught_up()
    pipeline.check()


SETS = [
    ("0-3", "0-1 2-3"),
    ("0-1 2-3", "0 1-2 3-"),
    ("0-1", "0-1 2-"),
    ("0-1 2-3", "0-"),
    ("", "0-1 2-"),
]


@KILLED.enter("change of readers", 2, sets=SETS)
def change_readers(point: Point, at: Path, sets: tuple[str, str]) -> None:
    before, after = (one.split() for one in sets)
    pipeline = begun_readers(at, *before)
    pipeline.crash_in_the_middle()
    changing = pipeline.changer()
    with point.killed(changing):
        pipeline.change(changing, after)
    if point.reached:
        pipeline.feed(4)
        pipeline.change(changing, after)
    pipeline.become(after)
    pipeline.feed(6)
    pipeline.run_until_caught_up()
    pipeline.check()


@KILLED.enter("change of readers, then another", 5)
def change_readers_otherwise(point: Point, at: Path) -> None:
    pipeline = begun_readers(at, "0-3")
    pipeline.crash_in_the_middle()
    changing = pipeline.changer()
    with point.killed(changing):
        pipeline.change(changing, ["0", "1-3"])
    for sets in (["0", "1", "2-3"], ["0-3"], ["0", "1-3"]):
        pipeline.change(changing, sets)
        pipeline.become(sets)
        pipeline.feed(5)
        pipeline.run_until_caught_up()
    pipeline.check()


@KILLED.enter("forget readers", 10, before=["0-1 2-3", ""])
def forget_readers(point: Point, at: Path, before: str) -> None:
    """Whatever there was: readers, those before a change, and the flow run as one."""
    pipeline = begun_readers(at, *before.split())
    pipeline.change(pipeline.changer(), ["0", "1-"])
    pipeline.become(["0", "1-"])
    pipeline.run_until_caught_up()
    script = FaultScript()
    with point.killed(script):
        pipeline.forget("readings-to-table", script)
    if pipeline.store.flows():  # else it had only its answer still to get
        with pytest.raises(ReadersOverlap):
            pipeline.reader("0").start()
        pipeline.forget("readings-to-table")
    assert pipeline.store.flows() == []


@pytest.mark.timeout(HANGS_S)
@pytest.mark.few(len(KILLED.rows))
@pytest.mark.parametrize("name", KILLED.rows)
def test_killed_after_each_write(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)  # processes die here, machines do not
    KILLED.sweep(name, tmp_path)
