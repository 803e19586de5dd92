"""Goal: a reader that knows nothing of positions gets each output of a transactional flow once, in order, whatever crashes.

Method: the flow on a broker in memory, whose transactions are open, committed or aborted. It is killed after each of its writes, and loses
the answer of each of its calls. It is paused at each call while another run works, and wakes at each call of that. The
reader reads what is committed, and no more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from threading import Event, Thread
from typing import Any, Literal

import pytest

from sqe_chain.adapters.memory._log import MemoryTransactionalWriter
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import (
    ConfigurationError,
    FlowError,
    MarkersLost,
    PlanMismatch,
    ServiceStopped,
    StoreInconsistent,
    Superseded,
)
from sqe_chain.flow import Flow
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.plans.same_inputs import DESCRIBE_MS
from sqe_chain.plans.settings import Settings
from sqe_chain.protocol import with_plans
from sqe_chain.protocol.decide import batch_plan
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.testing import Rehearsal, prove
from tests.support.environments import environment_of
from tests.support.plain_readers import (
    committed,
    count,
    faults,
    feed,
    inputs_from,
    key_of,
    rehearsal_of,
    transactional_flow,
    twice,
)
from tests.support.suites import points
from tests.support.sweeping import Point

KINDS = pytest.mark.parametrize("stages", [True, False], ids=["stages", "republisher"])
_INPUTS = 8


def _swept(work: Callable[[Point], None], least: int) -> None:
    """Work at every point, until one is not reached. With fewer points than `least` the fault does not hit what it is meant to hit."""
    for at in points("transactions"):
        point = Point(at)
        work(point)
        if not point.reached:
            break
    assert at >= least


def _begun(*, stages: bool) -> Rehearsal:
    """A flow that has published a batch, and has more to read."""
    rehearsal = rehearsal_of(stages=stages)
    feed(rehearsal.log, 0, _INPUTS // 2)
    rehearsal.run_until_caught_up()
    feed(rehearsal.log, _INPUTS // 2, _INPUTS // 2)
    return rehearsal


def _check(rehearsal: Rehearsal, *, stages: bool) -> None:
    rehearsal.run_until_caught_up()
    assert faults(rehearsal.log, _INPUTS, stages=stages) == []


@KINDS
def test_killed_after_every_write(stages: bool) -> None:
    def work(point: Point) -> None:
        rehearsal = _begun(stages=stages)
        with point.killed(rehearsal):
            rehearsal.service = None
            rehearsal.batch()
        rehearsal.service = None
        _check(rehearsal, stages=stages)

    _swept(work, 12)


@KINDS
def test_killed_twice_at_the_same_batch(stages: bool) -> None:
    for first in range(1, 40, 5):

        def work(point: Point, first: int = first) -> None:
            rehearsal = _begun(stages=stages)
            with Point(first).killed(rehearsal):
                rehearsal.batch()
            rehearsal.service = None
            with point.killed(rehearsal):
                rehearsal.batch()
            rehearsal.service = None
            _check(rehearsal, stages=stages)

        _swept(work, 3)


@KINDS
@pytest.mark.parametrize("when", ["before", "after"])
def test_every_call_without_an_answer(stages: bool, when: str) -> None:
    def work(point: Point) -> None:
        rehearsal = _begun(stages=stages)
        with point.unanswered(rehearsal, "broker", when):  # type: ignore[arg-type]
            rehearsal.service = None
            rehearsal.batch()
        _check(rehearsal, stages=stages)

    _swept(work, 12)


@KINDS
@pytest.mark.parametrize("others", ["whole", "killed"])
def test_a_run_that_sleeps_at_every_call_while_another_one_works(stages: bool, others: str) -> None:
    """The other one ends its batch, or dies in the middle of its transaction."""

    def work(point: Point) -> None:
        rehearsal = _begun(stages=stages)
        other = Rehearsal(rehearsal.flow, log=rehearsal.log, store=rehearsal.stores)

        def works() -> None:
            if others == "killed":
                with Point(8).killed(other):
                    other.batch()
            else:
                other.batch()

        with point.paused(rehearsal, works, (Superseded, ServiceStopped)):
            rehearsal.service = None
            rehearsal.batch()
        other.service = None
        _check(other, stages=stages)

    _swept(work, 12)


@KINDS
def test_a_zombie_that_wakes_in_every_call_of_the_newer_run(stages: bool) -> None:
    """The older run may have claimed, and fences the newer one late. It changes nothing; the newer one goes on."""
    for asleep in range(1, 36, 4):

        def work(point: Point, asleep: int = asleep) -> None:
            older, sleeps, wakes = _begun(stages=stages), Event(), Event()

            def sleep() -> None:
                sleeps.set()
                wakes.wait()

            def run_older() -> None:
                with Point(asleep).paused(older, sleep, (Superseded, ServiceStopped)):
                    older.service = None
                    older.batch()
                sleeps.set()

            zombie = Thread(target=run_older, daemon=True)
            zombie.start()
            sleeps.wait()

            def wake() -> None:
                wakes.set()
                zombie.join()

            newer = Rehearsal(older.flow, log=older.log, store=older.stores)
            with point.paused(newer, wake, (Superseded, ServiceStopped)):
                newer.batch()
            wake()
            if point.refused:
                newer.service = None  # it has ended
            _check(newer, stages=stages)

        _swept(work, 1)


@KINDS
def test_a_release_that_was_killed_anywhere_is_seen_once(stages: bool) -> None:
    """The dead-letter topic notes it after the transaction: what the marker proves is not all of it."""

    def work(point: Point) -> None:
        broken = {b"a:0", b"b:5"}

        def twice_or_fail(value: bytes) -> list[bytes]:
            if value in broken:
                raise ValueError(value)
            return twice(value)

        flow = Flow("plain", transactional=True, state_partitions=2, poison="dead_letter")
        outs = flow.source("in", bytes, raw=True).flat_map(twice_or_fail)
        outs.to("out", partitions=3, key=key_of, carrier="headers")
        if stages:
            outs.aggregate("counts", key=key_of, state=dict, fold=count)
        rehearsal = Rehearsal(flow, partitions={"in": 2}, settings=Settings(max_excluded_share=1.0))
        feed(rehearsal.log, 0, _INPUTS)
        rehearsal.run_until_caught_up()
        broken.clear()
        with point.killed(rehearsal):
            FailedInPlans(environment_of(rehearsal)).release()
        FailedInPlans(environment_of(rehearsal)).release()
        rehearsal.service = None
        rehearsal.run_until_caught_up()
        seen = Counter(value for _, value in committed(rehearsal.log, "out"))
        assert seen == Counter(out for _, value, _ in inputs_from(0, _INPUTS) for out in twice(value))

    _swept(work, 12)


def test_a_flow_without_stages_may_change_after_a_release() -> None:
    """Its last plan is then an empty one, which no start redoes."""
    broken = {b"a:0"}

    def declared(*topics: str) -> Flow:
        def fail(value: bytes) -> bytes:
            if value in broken:
                raise ValueError(value)
            return value

        flow = Flow("plain", transactional=True, poison="dead_letter")
        stream = flow.source("in", bytes, raw=True).map(fail)
        for topic in topics:
            stream.to(topic, partitions=1, carrier="headers")
        return flow

    rehearsal = Rehearsal(declared("out"), partitions={"in": 2}, settings=Settings(max_excluded_share=1.0))
    feed(rehearsal.log, 0, 4)
    rehearsal.run_until_caught_up()
    broken.clear()
    FailedInPlans(environment_of(rehearsal)).release()
    rehearsal.service = None
    rehearsal.run_until_caught_up()
    rehearsal.flow, rehearsal.service = declared("out", "more"), None
    rehearsal.log.create_topic("more", 1)
    feed(rehearsal.log, 4, 4)
    rehearsal.run_until_caught_up()
    assert [len(list(committed(rehearsal.log, topic))) for topic in ("out", "more")] == [8, 4]


def test_a_flow_without_stages_may_change_after_a_batch_without_outputs() -> None:
    """No marker proves that such a batch is done."""

    def declared(*topics: str) -> Flow:
        flow = Flow("plain", transactional=True)
        stream = flow.source("in", bytes, raw=True).filter(lambda value: not value.startswith(b"a"))
        for topic in topics:
            stream.to(topic, partitions=1, carrier="headers")
        return flow

    rehearsal = Rehearsal(declared("out"), partitions={"in": 2})
    rehearsal.log.append("in", 0, b"a:0", b"a")
    rehearsal.run_until_caught_up()
    rehearsal.flow, rehearsal.service = declared("out", "more"), None
    rehearsal.log.create_topic("more", 1)
    rehearsal.log.append("in", 0, b"b:1", b"b")
    rehearsal.run_until_caught_up()
    assert [len(list(committed(rehearsal.log, topic))) for topic in ("out", "more")] == [1, 1]


# ---------------------------------------------------------------------- what is refused


@KINDS
def test_without_transactions_the_same_reader_sees_outputs_twice(stages: bool) -> None:
    """The reader and the faults can fail: this is what positions are for."""
    rehearsal = rehearsal_of(stages=stages, transactional=False)
    feed(rehearsal.log, 0, _INPUTS)
    rehearsal.crash(step=5, when="after")
    rehearsal.run_until_caught_up()
    assert any("is there 2 times" in fault for fault in faults(rehearsal.log, _INPUTS, stages=stages))


def test_a_store_that_went_back_behind_what_is_published_stops_the_flow() -> None:
    rehearsal = rehearsal_of(stages=True)
    feed(rehearsal.log, 0, 4)
    rehearsal.run_until_caught_up()
    store = rehearsal.stores[""]
    assert isinstance(store, MemoryStore)
    before = store.copy_all()
    rehearsal.crash(step=5, when="after")
    feed(rehearsal.log, 4, 4)
    rehearsal.run_until_crash()
    store.restore_all(before)
    with pytest.raises(StoreInconsistent, match="has plan"):
        rehearsal.run_until_caught_up()
    assert len(list(committed(rehearsal.log, "out"))) == 16


def test_the_topic_of_markers_is_needed_and_is_compacted() -> None:
    rehearsal = rehearsal_of(stages=True)
    rehearsal.log.configure("plain.published", compacted=False)
    with pytest.raises(ConfigurationError, match="deletes records"):
        rehearsal.batch()
    rehearsal.log.delete("plain.published")
    with pytest.raises(ConfigurationError, match="compacted topic 'plain"):
        rehearsal.batch()


def _replace_markers(rehearsal: Rehearsal, *, with_older: bool = False) -> None:
    """Delete the topic and create it again, empty or with the first marker, as from a backup."""
    log = rehearsal.log
    older = log.records("plain.published")[0] if with_older else None
    log.delete("plain.published")
    log.create_topic("plain.published", 1, compacted=True)
    if older is not None:
        log.append("plain.published", 0, older.value(), older.key())


@KINDS
@pytest.mark.parametrize("with_older", [False, True], ids=["empty", "from a backup"])
def test_a_topic_of_markers_that_was_replaced_after_a_kill_anywhere(stages: bool, with_older: bool) -> None:
    """Where the kill leaves a doubt, the flow stops, and goes on with what an operator finds out by the outputs."""

    def work(point: Point) -> None:
        rehearsal = _begun(stages=stages)
        seen = len(list(committed(rehearsal.log, "out")))
        with point.killed(rehearsal):
            rehearsal.batch()
        rehearsal.service = None
        rehearsal.log.transactional_writer("plain/0", []).close()  # what was open is aborted at last
        _replace_markers(rehearsal, with_older=with_older)
        published = len(list(committed(rehearsal.log, "out"))) > seen
        try:
            rehearsal.batch()
        except MarkersLost as error:
            yes, no = re.findall(r"{[^}]*}", f"{error}")
            rehearsal.service = None
            rehearsal.log.append("plain.published", 0, (yes if published else no).encode(), b"plain")
        _check(rehearsal, stages=stages)

    _swept(work, 12)


@KINDS
@pytest.mark.parametrize("when", ["before", "after"])
def test_without_its_markers_nobody_knows_whether_a_killed_batch_is_published(
    stages: bool, when: Literal["before", "after"]
) -> None:
    """Both are found alike, and only one of them is published."""
    rehearsal = _begun(stages=stages)
    rehearsal.crash(step=5, when=when)
    rehearsal.run_until_crash()
    _replace_markers(rehearsal)
    assert len(list(committed(rehearsal.log, "out"))) == _INPUTS * (2 if when == "after" else 1)
    with pytest.raises(MarkersLost, match="no marker"):
        rehearsal.batch()


@KINDS
def test_a_topic_of_markers_that_is_replaced_at_rest_is_not_missed(stages: bool) -> None:
    """The group's commit proves that the last plan is finished; so nobody has to look."""
    rehearsal = _begun(stages=stages)
    rehearsal.run_until_caught_up()
    _replace_markers(rehearsal)
    rehearsal.service = None
    feed(rehearsal.log, _INPUTS, 4)
    rehearsal.run_until_caught_up()
    assert faults(rehearsal.log, _INPUTS + 4, stages=stages) == []


@KINDS
def test_a_topic_of_markers_that_is_replaced_under_a_running_service(stages: bool) -> None:
    """It notices before it seals, so a kill in the batch after that leaves no doubt."""

    def work(point: Point) -> None:
        rehearsal = _begun(stages=stages)
        rehearsal.start()
        _replace_markers(rehearsal)
        rehearsal.clock.jump(DESCRIBE_MS + 1)
        with point.killed(rehearsal):
            rehearsal.batch()
        rehearsal.service = None
        _check(rehearsal, stages=stages)

    _swept(work, 8)


def test_a_topic_of_markers_that_deletes_records_is_refused() -> None:
    rehearsal = _begun(stages=True)
    rehearsal.log.configure("plain.published", compacted=True, retention_ms=604_800_000)
    rehearsal.clock.jump(DESCRIBE_MS + 1)
    with pytest.raises(ConfigurationError, match="compact alone"):
        rehearsal.batch()


def test_plans_of_older_versions_that_note_no_marker_are_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = _begun(stages=True)
    rehearsal.start()
    monkeypatch.setattr(with_plans, "batch_plan", lambda *given: batch_plan(*given[:-1]))
    rehearsal.crash(step=5, when="before")
    rehearsal.run_until_crash()
    monkeypatch.undo()
    _check(rehearsal, stages=True)


def test_a_producer_whose_commit_was_perhaps_repeated_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repetition that is still on its way would commit a part of the next transaction."""

    def commit(self: MemoryTransactionalWriter) -> None:
        whole(self)
        self.worn = True

    whole = MemoryTransactionalWriter.commit
    monkeypatch.setattr(MemoryTransactionalWriter, "commit", commit)
    rehearsal = _begun(stages=True)
    _check(rehearsal, stages=True)
    fences = [write for write in rehearsal.script.written if write.startswith("fence")]
    assert len(fences) == 2, "one at the start, and one before the second plan"


def test_a_flow_that_was_forgotten_begins_again_without_its_markers() -> None:
    rehearsal = _begun(stages=True)
    _check(rehearsal, stages=True)
    rehearsal.log.forget("plain")
    second = Rehearsal(rehearsal.flow, log=rehearsal.log)
    with pytest.raises(StoreInconsistent, match="If the flow was forgotten, delete that topic"):
        second.batch()
    rehearsal.log.recreate("out", 3)
    rehearsal.log.recreate("counts", 2)
    rehearsal.log.delete("plain.published")
    rehearsal.log.create_topic("plain.published", 1, compacted=True)
    _check(Rehearsal(rehearsal.flow, log=rehearsal.log), stages=True)


def test_markers_are_found_behind_what_was_aborted() -> None:
    rehearsal = _begun(stages=True)
    rehearsal.crash(step=5, when="after")
    rehearsal.run_until_crash()
    for _ in range(400):
        aborted = rehearsal.log.transaction()
        aborted.append("plain.published", 0, b"{}", b"plain")
        aborted.abort()
    _check(rehearsal, stages=True)


def test_what_would_publish_again_is_refused() -> None:
    rehearsal = _begun(stages=True)
    rehearsal.run_until_caught_up()
    with pytest.raises(ConfigurationError, match="is transactional"):
        rehearsal.announce()
    with pytest.raises(ConfigurationError, match="without --accept-rollback"):
        rehearsal.start(rehearsal.settings.asking(accept_rollback=True))
    rehearsal.rebuild()
    rehearsal.run_until_caught_up()
    assert faults(rehearsal.log, _INPUTS, stages=True) == []


def test_a_plan_that_is_not_finished_is_finished_before_a_rebuild() -> None:
    rehearsal = _begun(stages=True)
    rehearsal.crash(step=5, when="before")
    rehearsal.run_until_crash()
    with pytest.raises(ServiceStopped, match="Run the service once"):
        rehearsal.rebuild()
    rehearsal.run_until_caught_up()
    rehearsal.rebuild()
    _check(rehearsal, stages=True)


def test_a_flow_that_cannot_be_transactional_is_refused() -> None:
    flow = Flow("plain", transactional=True)
    stream = flow.source("in", bytes, raw=True)
    with pytest.raises(FlowError, match="publishes nothing"):
        flow.compile()
    stream.to("plain.published", partitions=1)
    with pytest.raises(FlowError, match="Expected no other use"):
        flow.compile()


def test_a_run_that_was_superseded_while_it_fenced_publishes_nothing() -> None:
    older = _begun(stages=False)
    newer = Rehearsal(older.flow, log=older.log, store=older.stores)

    def seal() -> None:
        newer.crash(step=5, when="before")
        newer.run_until_crash()

    older.meanwhile(seal, method="transactional_writer")
    older.service = None
    with pytest.raises(Superseded):
        older.start()
    assert not any("publish" in write or "transaction" in write for write in older.script.written[-3:])
    assert len(list(committed(older.log, "out"))) == _INPUTS
    _check(newer, stages=False)


@KINDS
def test_a_marker_that_an_older_run_commits_just_before_it_is_fenced_is_seen(stages: bool) -> None:
    older = _begun(stages=stages)
    newer = Rehearsal(older.flow, log=older.log, store=older.stores)

    def commit_late() -> None:
        run = older.service
        assert isinstance(run, StagedService)
        writer: Any = run.owned.transactions and run.owned.transactions._writer
        writer.inner.commit()

    def start_newer() -> None:
        newer.meanwhile(commit_late, method="transactional_writer")
        newer.start()

    older.meanwhile(start_newer, method="commit_transaction")
    with pytest.raises(Superseded):
        older.batch()
    _check(newer, stages=stages)


@KINDS
@pytest.mark.parametrize("first", [True, False], ids=["to transactional", "and back"])
def test_a_flow_becomes_transactional_after_a_clean_stop(stages: bool, first: bool) -> None:
    rehearsal = rehearsal_of(stages=stages, transactional=not first)
    feed(rehearsal.log, 0, _INPUTS // 2)
    rehearsal.run_until_caught_up()
    after = rehearsal_of(stages=stages, transactional=first)
    rehearsal.log.create_topic("plain.published", 1, compacted=True)
    later = Rehearsal(after.flow, log=rehearsal.log, store=rehearsal.stores)
    feed(rehearsal.log, _INPUTS // 2, _INPUTS // 2)
    rehearsal.service = None
    if stages or first:
        _check(later, stages=stages)
        return
    with pytest.raises(PlanMismatch):  # its place is in plans, which it has no more
        later.batch()


@KINDS
def test_a_batch_that_was_killed_is_finished_before_a_flow_becomes_transactional(stages: bool) -> None:
    rehearsal = rehearsal_of(stages=stages, transactional=False)
    feed(rehearsal.log, 0, _INPUTS // 2)
    rehearsal.run_until_caught_up()
    feed(rehearsal.log, _INPUTS // 2, _INPUTS // 2)
    rehearsal.crash_at_call(2, method="publish")
    rehearsal.run_until_crash()
    rehearsal.log.create_topic("plain.published", 1, compacted=True)
    flow = rehearsal_of(stages=stages).flow
    later = Rehearsal(flow, log=rehearsal.log, store=rehearsal.stores)
    with pytest.raises(ServiceStopped):
        later.batch()


def test_transactional_flows_can_be_proved() -> None:
    inputs = [value for _, value, _ in inputs_from(0, 6)]
    proof = prove(transactional_flow(stages=True), {"in": inputs}, schedules=20, other_processes=False)
    assert "is exact" in str(proof)
