"""Goal: at whatever call another run comes in between, or nobody answers, nothing is lost, counted twice or taken from the newer run.

Method: tables of operations, as in `test_crash_sweep.py`. Each is paused at each of its calls while others work, and then goes on as if
nothing had happened. Or a call gets no answer, before it takes effect or after that.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import (
    ConfigurationError,
    PartitionsMismatch,
    ReadersOverlap,
    ServiceStopped,
    StoreInconsistent,
    Superseded,
)
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.operations.failed import FailedSelection
from sqe_chain.operations.forget import known_flow
from sqe_chain.plans.events import When
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.testing import Crash, Rehearsal
from sqe_chain.testing.faults import FaultScript, Port
from sqe_chain.testing.faulty_ports import faulty_log
from tests.support import forgotten, released_letters, republished_states, shadows
from tests.support.file_flows import expected, published_once, rows_flow, some_files, totals_flow, write
from tests.support.file_flows import rows_of as rows_of_file
from tests.support.forgotten import Neighbours
from tests.support.moved import run_before, states_of, stores
from tests.support.number_flows import passing_on, values_published
from tests.support.overwrite_flows import NEW, Again, goal_of, rows_of
from tests.support.readers import ReaderPipeline, begun_readers
from tests.support.rebuilding import AFTER, BEFORE, Pipeline, rebuild_after_a_crash
from tests.support.released_letters import Cleaning
from tests.support.skipped_words import WORDS, Counting
from tests.support.sweeping import HANGS_S, Operations, Point
from tests.support.table_flows import begun_table

PAUSED, UNANSWERED = Operations(every=6), Operations(every=6)  # calls that read count, too
WHEN: tuple[When, ...] = ("before", "after")

# ---------------------------------------------------------------------- flows that are folded again, moved, forgotten


def rebuild(point: Point, _: Path, mine: str, theirs: str) -> None:
    """The flow is where the other run has left it."""
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    if "resume" in {mine, theirs}:
        pipeline.found.crash_at_write(12, "after")
        with pytest.raises(Crash):
            pipeline.found.rebuild()
    other = pipeline.same(pipeline.flow)

    def overtake() -> None:
        if theirs == "service":
            other.found.run_until_caught_up()
        else:
            rebuild_after_a_crash(other.found, resume=theirs == "resume")

    with point.paused(pipeline.found, overtake):
        rebuild_after_a_crash(pipeline.found, resume=mine == "resume")
    pipeline.check()
    pipeline.feed(AFTER)
    pipeline.check()


for mine, theirs in itertools.product(("rebuild", "resume"), ("rebuild", "resume", "service")):
    PAUSED.enter(f"{mine} overtaken by {theirs}", 50)(partial(rebuild, mine=mine, theirs=theirs))


@PAUSED.enter("an older run during a rebuild", 50)
def rebuild_that_is_stamped(point: Point, _: Path) -> None:
    """It has claimed the flow before the rebuild did, and goes on anywhere in it; only then are the old states deleted."""
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    store = pipeline.store
    home, _home = store.home("notes")
    assert home is not None
    store.set_home("notes", home, replace(home, epoch=2, run_id="older"))

    def stamp() -> None:
        for stage in ("letters", "all"):
            for part, header in enumerate(store.headers("notes", stage, range(2))):
                if header is not None and header.epoch < 2:
                    store.write("notes", stage, part, header, replace(header, epoch=2, run_id="older"), ())

    with point.paused(pipeline.found, stamp, ()):
        pipeline.found.rebuild()
    pipeline.check()
    cells = [(stage, part) for stage in ("letters", "all") for part in (0, 1)]
    assert not any(list(store.scan("notes", *cell)) for cell in cells)
    pipeline.feed(AFTER)
    pipeline.check()


@PAUSED.enter("switch to a shadow", 60, by=["service", "switch", "follower", "rebuild", "end"])
def switch_to_a_shadow(point: Point, _: Path, by: str) -> None:
    """It is overtaken by the service with the code of before, by another switch, by a rebuild; or somebody follows again, or ends it."""
    pipeline, flow = shadows.running(), shadows.flow_of()
    shadows.follow(pipeline, flow)
    pipeline.feed(AFTER[:1])
    other = pipeline.same(flow)

    def meanwhile() -> None:
        if by == "service":
            other.feed(AFTER[1:2])
        elif by == "switch":
            shadows.switch_after_a_crash(other, flow)
        elif by == "rebuild":
            rebuild_after_a_crash(other.found, resume=False)
        elif by == "end":
            with suppress(ConfigurationError, Superseded):
                other.found.end_shadow(flow)
        else:
            with suppress(ServiceStopped, Superseded):
                shadows.follow(other, flow)

    with point.paused(pipeline.found, meanwhile, (Superseded, ConfigurationError, StoreInconsistent)):
        pipeline.found.switch(flow)
    words = list(other.words)
    pipeline = pipeline.same(flow)
    pipeline.words = words
    pipeline.found.run_until_caught_up()
    pipeline.check()
    pipeline.feed(AFTER[2:])
    pipeline.check()


@PAUSED.enter("way back from a switch", 60, by=["service", "back", "end", "rebuild"])
def go_back(point: Point, _: Path, by: str) -> None:
    """It is overtaken by the service with the newer code, by another way back, by a rebuild; or the states of before are deleted."""
    pipeline, flow = shadows.switched(), shadows.flow_of()
    other = pipeline.same(pipeline.flow)

    def meanwhile() -> None:
        with suppress(Superseded, ConfigurationError, PartitionsMismatch):  # it has gone back, or is about to
            if by == "service":
                other.feed(AFTER[1:2])
            elif by == "back":
                other.found.switch_back(flow)
            elif by == "rebuild":
                rebuild_after_a_crash(other.found, resume=False)
            else:
                other.found.end_shadow(flow)

    with point.paused(pipeline.found, meanwhile, (Superseded, ConfigurationError, StoreInconsistent)):
        pipeline.found.switch_back(flow)
    words = list(other.words)
    if shadows.has_switched(pipeline):
        with suppress(ConfigurationError):  # they are deleted
            pipeline.found.switch_back(flow)
    if shadows.has_switched(pipeline):
        pipeline = pipeline.same(flow)
        pipeline.found.rebuild()
    pipeline = pipeline.same(flow)
    if by == "rebuild":  # by the newer code
        pipeline.found.rebuild()
    pipeline.words = words
    pipeline.feed(AFTER[2:])
    pipeline.check()


@PAUSED.enter("shadow that follows", 60, then=["feed", "switch", "rebuild"])
def follow_the_flow(point: Point, _: Path, then: str) -> None:
    """It hung, and wakes when the flow has gone on, was switched to this very shadow, or was rebuilt."""
    pipeline, flow = shadows.running(), shadows.flow_of()
    other = pipeline.same(flow)

    def meanwhile() -> None:
        other.feed(AFTER[:1])
        if then == "switch":
            shadows.follow(other, flow)
            other.found.switch(flow)
        elif then == "rebuild":
            rebuild_after_a_crash(other.found, resume=False)
        other.feed(AFTER[1:2])

    with point.paused(pipeline.found, meanwhile, (ServiceStopped,)):
        shadows.follow(pipeline, flow)
    other.check()
    other.feed(AFTER[2:])
    other.check()


@PAUSED.enter("shadow at an export", 60, by=["export", "start", "end", "rebuild", "service"])
def begin_at_an_export(point: Point, _: Path, by: str) -> None:
    """Meanwhile it is begun again, there or at the beginning; or ended; or the flow is rebuilt, or goes on."""
    pipeline, flow = shadows.running(), shadows.flow_of()
    lines = shadows.exported(pipeline)
    other = pipeline.same(flow)

    def meanwhile() -> None:
        with suppress(Superseded, ConfigurationError, ServiceStopped):
            if by == "service":
                other.feed(AFTER[:1])
            elif by == "rebuild":
                rebuild_after_a_crash(other.found, resume=False)
            elif by == "end":
                other.found.end_shadow(flow)
            else:
                shadows.follow(other, flow, lines if by == "export" else None)

    ends = (Superseded, ConfigurationError, ServiceStopped)
    with point.paused(pipeline.found, meanwhile, ends):
        shadows.follow(pipeline, flow, lines)
    pipeline.words = list(other.words)
    assert len({name for name, _ in pipeline.stored_stages()}) <= 2, (
        "no start leaves states that nobody knows"
    )
    shadows.follow(pipeline, flow)
    assert all(result.same for result in pipeline.found.compared(flow))
    pipeline.found.switch(flow)
    pipeline = pipeline.same(flow)
    pipeline.feed(AFTER[1:])
    pipeline.check()


@PAUSED.enter("an import that is overtaken", 40)
def import_states(point: Point, _: Path) -> None:
    """It hung, was started again, and wakes when the other one has long filled the stores."""
    before = run_before()
    lines, expected = before.exported(), states_of(before)
    found = stores()
    first, second = (Rehearsal(before.flow, log=before.log, store=found) for _ in range(2))
    with point.paused(first, lambda: second.imported(lines), (Superseded, ConfigurationError)):
        first.imported(lines)
    assert states_of(second) == expected
    second.start()
    assert states_of(second) == expected


@PAUSED.enter("a forgetting that is overtaken", 40)
def forget(point: Point, _: Path) -> None:
    """It hung, was repeated, and wakes when a new flow of that name has states of its own."""
    pipeline, script = Neighbours(), FaultScript()
    again = Rehearsal(forgotten.flow_of("first"), store=pipeline.stores, log=pipeline.first.log)

    def overtake() -> None:
        pipeline.forget(topics=False)
        again.run_until_caught_up()

    with point.paused(script, overtake, (Superseded, ConfigurationError)):  # it is run now
        pipeline.forget(script, topics=False)
    if point.reached and known_flow(pipeline.stores[""], "first") is not None:
        again.restart()  # else that one was meant: it was there before the claim
        assert sorted(again.states("letters")) == [b"a", b"b", b"c"]


# ---------------------------------------------------------------------- states and failed records that are published


@PAUSED.enter("republish states", 50, when=WHEN)
def republish(point: Point, _: Path, when: When) -> None:
    """Another run takes over and publishes later changes: nothing older comes after them."""
    world = republished_states.World()
    sleeper, other = world.of(), world.up

    def meanwhile() -> None:
        world.feed(*republished_states.WORDS)
        world.go_on()

    with point.paused(sleeper, meanwhile, when=when):
        sleeper.announce()
    assert {key: numbers[-1] for key, numbers in world.heard().items()} == world.newest()
    assert other.batch() is False


@PAUSED.enter("release of failed records", 10, second=["release", "discard"])
def release(point: Point, _: Path, second: str) -> None:
    """Of two operators the first one decides."""
    counting = Counting()

    def meanwhile() -> None:
        getattr(counting.operator(), second)(FailedSelection(key="bee"))

    with point.paused(counting.rehearsal, meanwhile, of="broker"):
        counting.operator().release()
    counting.operator().release()
    statuses = counting.statuses()
    assert statuses["dog"] == "released"
    assert counting.counted() == [word for word in WORDS if word != "bee" or statuses["bee"] == "released"]


@PAUSED.enter("release of failed records without stages", 10, second=["release", "discard"], when=WHEN)
def release_without_stages(point: Point, _: Path, second: str, when: When) -> None:
    cleaning, script = Cleaning("bee", "elk").corrected(), FaultScript()
    with point.paused(script, lambda: getattr(cleaning, second)(key="bee"), (), when=when):
        cleaning.release(faulty_log(cleaning.sender.log, script))
    statuses = cleaning.statuses()
    assert statuses["elk"] == "released"
    kept = [text for text in released_letters.WORDS if text != "bee" or statuses["bee"] == "released"]
    assert cleaning.counted() == kept
    assert cleaning.release().released == 0


# ---------------------------------------------------------------------- starts


@PAUSED.enter("start of a flow without stages", 3)
def start(point: Point, _: Path) -> None:
    """Another run reads and commits what is new."""
    rehearsal = passing_on()
    rehearsal.start()

    def read_on() -> None:
        rehearsal.feed("in", Int64Value(value=1))
        rehearsal.run_until_caught_up()

    with point.paused(rehearsal, read_on, (), when="after"):
        rehearsal.start()
    rehearsal.feed("in", Int64Value(value=2))
    rehearsal.run_until_caught_up()
    assert len(rehearsal.log.records("in")) == len({*values_published(rehearsal)}) >= 1


OLD_FILE, NEW_FILE = rows_of_file(0, 2), rows_of_file(1, 5)


@PAUSED.enter("start of a load", 5, flow_of=[totals_flow, rows_flow], when=WHEN)
def start_load(point: Point, at: Path, flow_of: Callable[[Path], Flow], when: When) -> None:
    """What this run has seen of the folder before it claimed the flow is older than the plan that it finds."""
    at.mkdir()
    write(at / "0.csv", OLD_FILE)
    load = Rehearsal(flow_of(at), settings=settings_of(max_records=2, takeover=True))
    load.run_until_caught_up()

    def read_on() -> None:
        write(at / "1.csv", NEW_FILE)
        load.batch()

    with point.paused(load, read_on, when=when):
        load.start()
    write(at / "1.csv", NEW_FILE)  # the same; a fault after the last call does not come
    load.run_until_caught_up()
    if load.flow.stages:
        assert load.states("per-robot") == expected([OLD_FILE, NEW_FILE])
    else:
        assert published_once(load) == Counter(row["screws"] for row in [*OLD_FILE, *NEW_FILE])


# ---------------------------------------------------------------------- tables and their readers


@PAUSED.enter("batch into a table", 6, when=WHEN)
def flush(point: Point, at: Path, when: When) -> None:
    """A zombie adds nothing, and hears so."""
    pipeline = begun_table(at, 2)
    service = pipeline.service
    if service.service is None:
        service.start()

    def others() -> None:
        run = service.service
        service.restart()
        pipeline.feed(3)
        service.batch()
        service.service = run

    with point.paused(service, others, of="table", when=when):
        while service.batch():
            pass
    assert point.refused == point.reached
    service.service = None
    service.run_until_caught_up()
    pipeline.check()


@PAUSED.enter("overwrite", 6, mode=["table", "partitions"], when=WHEN)
def overwrite(point: Point, at: Path, mode: str, when: When) -> None:
    """Another run finishes the overwrite, and loads another file."""
    again = Again(at)
    goal, more, found = goal_of(again.old, again.new, mode), rows_of(5, "5", 2), again.start()
    found.files(**NEW)

    def others() -> None:
        run = found.load.service
        found.run(mode)
        assert found.rows == goal
        found.add(d=more)
        found.run(None)
        found.use(mode)
        found.load.service = run

    found.use(mode)
    service = found.load.start()
    assert isinstance(service, StagedService)
    with point.paused(found.load, others, of="table", when=when):
        while service.batch().worked:
            pass
        service.complete()
    assert point.refused == point.reached
    assert found.rows == (goal | more if point.reached else goal)


@PAUSED.enter("reader", 4)
def read_beside(point: Point, at: Path) -> None:
    """A zombie of one does not disturb the other."""
    pipeline = begun_readers(at, "0-1", "2-3")
    first, second = pipeline.readers

    def others() -> None:
        run = first.service
        first.restart()
        pipeline.feed(3)
        first.batch()
        second.batch()
        first.service = run

    first.start()
    with point.paused(first, others, of="table"):
        while first.batch():
            pass
    assert point.refused == point.reached
    first.service = None
    pipeline.run_until_caught_up()
    pipeline.check()
    assert second.ended == 0


@PAUSED.enter("first start of a reader", 10)
def start_beside_the_whole_flow(point: Point, at: Path) -> None:
    """The whole flow starts, reads, and dies: never do both read."""
    pipeline = ReaderPipeline(at)
    pipeline.feed()
    one, reader = pipeline.as_one(), pipeline.reader("0-1")
    refused: list[str] = []

    def others() -> None:
        try:
            one.run_until_caught_up()
        except ReadersOverlap:
            refused.append("one")

    with point.paused(reader, others, (ReadersOverlap,)):
        reader.run_until_caught_up()
    assert refused or point.refused or not point.reached
    # A refused run stays refused, or neither has begun and one of them may.
    if point.refused and not refused:
        one.restart()
        one.run_until_caught_up()
        pipeline.check()


@PAUSED.enter("first start of readers that overlap", 10)
def start_beside_another(point: Point, at: Path) -> None:
    pipeline = ReaderPipeline(at)
    pipeline.feed()
    first, second = pipeline.reader("0-2"), pipeline.reader("2-3")
    refused: list[str] = []

    def others() -> None:
        try:
            second.run_until_caught_up()
        except ReadersOverlap:
            refused.append("second")

    with point.paused(first, others, (ReadersOverlap,)):
        first.run_until_caught_up()
    assert len(refused) + point.refused == point.reached


@PAUSED.enter("reader whose set changes", 5, starting=[False, True])
def read_while_sets_change(point: Point, at: Path, starting: bool) -> None:
    pipeline = begun_readers(at, "0-3")
    (reader,) = pipeline.readers
    reader.restart()
    if starting:
        reader.service = None

    def others() -> None:
        pipeline.change(pipeline.changer(), ["0-1", "2-3"])
        pipeline.become(["0-1", "2-3"])
        pipeline.run_until_caught_up()

    with point.paused(reader, others, (Superseded, ReadersOverlap)):
        while reader.batch():
            pass
    pipeline.feed(5)
    pipeline.run_until_caught_up()
    pipeline.check()


# ---------------------------------------------------------------------- no answer


@UNANSWERED.enter("republish states", 5, of=["broker", "store"], when=WHEN)
def republish_unanswered(point: Point, _: Path, of: Port, when: When) -> None:
    world = republished_states.World()
    with point.unanswered(world.up, of, when, calls=2):
        world.up.announce()
    republished_states.check_published_once(world)


@UNANSWERED.enter("overwrite", 15, mode=["table", "partitions"], of=["table", "store"], when=WHEN)
def overwrite_unanswered(point: Point, at: Path, mode: str, of: Port, when: When) -> None:
    again = Again(at)
    goal, found = goal_of(again.old, again.new, mode), again.start()
    found.use(mode)
    with point.unanswered(found.load, of, when):
        found.load.complete_overwrite()
    assert found.rows == goal


@UNANSWERED.enter("batch into a table", 10, when=WHEN)
def flush_unanswered(point: Point, at: Path, when: When) -> None:
    pipeline = begun_table(at, 2)
    pipeline.service.service = None
    with point.unanswered(pipeline.service, "table", when):
        pipeline.service.run_until_caught_up()
    pipeline.check()


@UNANSWERED.enter("load of files", 50)
def load_unanswered(point: Point, at: Path) -> None:
    at.mkdir()
    rows = some_files(at)
    load = Rehearsal(totals_flow(at), settings=settings_of(open_files=2, max_records=7))
    with point.unanswered(load, calls=2):
        load.run_until_caught_up()
    assert load.states("per-robot") == expected(rows)


@pytest.mark.timeout(HANGS_S)
@pytest.mark.few(len(PAUSED.rows))
@pytest.mark.parametrize("name", PAUSED.rows)
def test_paused_at_each_call(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)  # processes die here, machines do not
    PAUSED.sweep(name, tmp_path)


@pytest.mark.timeout(HANGS_S)
@pytest.mark.few(len(UNANSWERED.rows))
@pytest.mark.parametrize("name", UNANSWERED.rows)
def test_unanswered_at_each_call(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)
    UNANSWERED.sweep(name, tmp_path)
