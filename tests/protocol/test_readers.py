"""Goal: readers that run side by side write each row once, and no partition is ever read by two of them, or by none.

Method: a flow into a Delta table on disk, with the real protocol and segment code. Several rehearsals of the same flow with other
input partitions share a broker and a store in memory. One of them crashes at each call in turn, or sleeps and wakes up as a
zombie. Sets are changed, with crashes at each call of that, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sqe_chain.errors import ConfigurationError, FlowError, PartitionsMismatch, ReadersOverlap, Superseded
from sqe_chain.features.readers import Readers, ReadersClaim, read_record, write_record
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports.readers import Partitions
from sqe_chain.testing import Crash, Rehearsal
from tests.support.readers import ReaderPipeline, sets
from tests.support.suites import points, some
from tests.support.table_flows import table_flow


@pytest.fixture(autouse=True)
def _no_power_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes die here, machines do not: nothing has to be forced to the disk."""
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)


def begun(at: Path, *texts: str, **settings: Any) -> ReaderPipeline:
    found = ReaderPipeline(at, *texts, **settings)
    found.feed()
    found.run_until_caught_up()
    found.feed()
    return found


def test_a_crash_of_one_after_every_write_while_the_other_goes_on(tmp_path: Path) -> None:
    for number in points("a reader that crashes"):
        found = begun(tmp_path / str(number), "0-1", "2-3")
        crashing, other = found.readers
        crashing.service = None
        crashing.crash_at_call(number, "after", writes=True)
        crashing.run_until_crash()
        found.feed(6)
        other.run_until_caught_up()
        assert other.crashes == 0
        assert other.ended == 0
        crashing.run_until_caught_up()
        beyond = bool(crashing.script.injected)
        crashing.cancel()
        found.run_until_caught_up()
        found.check()
        if beyond:
            break
    assert number >= 8


def test_a_crash_after_every_write_of_the_first_start(tmp_path: Path) -> None:
    for number in points("a first start that crashes"):
        found = ReaderPipeline(tmp_path / str(number), "0-1", "2-")
        found.feed()
        crashing, other = found.readers
        crashing.crash_at_call(number, "after", writes=True)
        crashing.run_until_crash()
        other.run_until_caught_up()
        crashing.run_until_caught_up()
        beyond = bool(crashing.script.injected)
        crashing.cancel()
        found.run_until_caught_up()
        found.check()
        if beyond:
            break
    assert number >= 12


def test_each_flushes_and_commits_at_its_own_rate(tmp_path: Path) -> None:
    found = begun(tmp_path, "0-1", "2-3")
    first, second = found.readers
    for _ in range(3):
        first.run_until_caught_up()
        found.feed(4)
    plans = [one.events("sealed")[-1]["plan"] for one in found.readers]
    assert plans[0] != plans[1]
    assert {tp[1] for tp in first.commits()} == {0, 1}
    assert {tp[1] for tp in second.commits()} == {2, 3}
    found.run_until_caught_up()
    found.check()


def test_a_zombie_of_one_at_every_call_does_not_disturb_the_other(tmp_path: Path) -> None:
    number = 0
    while True:
        found = begun(tmp_path / str(number), "0-1", "2-3")
        first, second = found.readers

        def others(found: ReaderPipeline = found) -> None:
            first, second = found.readers
            run = first.service
            first.service = None
            first.start()
            found.feed(3)
            first.batch()
            second.batch()
            first.service = run

        first.start()
        first.meanwhile(others, of="table", at=number)
        superseded = False
        try:
            while first.batch():
                pass
        except Superseded:
            superseded = True
            first.service = None
        beyond = bool(first.script.injected)
        first.cancel()
        found.run_until_caught_up()
        found.check()
        assert second.ended == 0
        if beyond:
            break
        assert superseded
        number += 1
    assert number >= 4


@pytest.mark.parametrize(("wanted", "shared"), [("0", 0), ("1-2", 1), ("3-", 3), ("0-3", 0), ("2", 2)])
def test_a_partition_has_one_reader(tmp_path: Path, wanted: str, shared: int) -> None:
    found = begun(tmp_path, "0-1", "2-3")
    record = read_record(found.store, "readings-to-table")
    with pytest.raises(
        ReadersOverlap, match=f"partition {shared} belongs to the reader of .* readers change"
    ):
        found.reader(wanted).start()
    assert read_record(found.store, "readings-to-table") == record
    found.run_until_caught_up()
    found.check()


def test_a_flow_with_readers_does_not_run_as_one_nor_the_other_way_round(tmp_path: Path) -> None:
    found = begun(tmp_path / "readers", "0-1", "2-3")
    with pytest.raises(ReadersOverlap, match="all of its partitions"):
        found.as_one().start()
    found.run_until_caught_up()
    found.check()

    other = ReaderPipeline(tmp_path / "one")
    other.feed()
    one = other.as_one()
    one.run_until_caught_up()
    with pytest.raises(ReadersOverlap, match=r"one reader has read the whole flow so far .* readers change"):
        other.reader("0-1").start()
    other.feed()
    one.restart()
    one.run_until_caught_up()
    other.check()


def test_a_reader_and_the_whole_flow_that_start_at_the_same_moment(tmp_path: Path) -> None:
    """At each call of one the other starts, reads, and dies: never do both read."""
    for number in some("a reader and the whole flow", range(200)):
        found = ReaderPipeline(tmp_path / str(number))
        found.feed()
        one, reader = found.as_one(), found.reader("0-1")
        refused: list[str] = []

        def start(found: ReaderPipeline = found, one: Rehearsal = one, refused: list[str] = refused) -> None:
            try:
                one.run_until_caught_up()
            except ReadersOverlap:
                refused.append("one")

        reader.meanwhile(start, at=number)
        try:
            reader.run_until_caught_up()
        except ReadersOverlap:
            refused.append("reader")
        assert refused or reader.script.injected
        if reader.script.injected:
            assert number > 10
            return
        # A refused run stays refused, or neither has begun and one of them may.
        if refused == ["reader"]:
            one.restart()
            one.run_until_caught_up()
            found.check()
    raise AssertionError("more calls than that")


def test_two_readers_that_overlap_and_start_at_the_same_moment(tmp_path: Path) -> None:
    for number in range(200):
        found = ReaderPipeline(tmp_path / str(number))
        found.feed()
        first, second = found.reader("0-2"), found.reader("2-3")
        refused: list[str] = []

        def start(second: Rehearsal = second, refused: list[str] = refused) -> None:
            try:
                second.run_until_caught_up()
            except ReadersOverlap:
                refused.append("second")

        first.meanwhile(start, at=number)
        try:
            first.run_until_caught_up()
        except ReadersOverlap:
            refused.append("first")
        if first.script.injected:
            assert number > 10
            return
        assert len(refused) == 1
    raise AssertionError("more calls than that")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["0-3"], ["0-1", "2-3"]),
        (["0-1", "2-3"], ["0", "1-2", "3-"]),
        (["0-1"], ["0-1", "2-"]),
        (["0-1", "2-3"], ["0-"]),
        ([], ["0-1", "2-"]),
    ],
)
def test_sets_change_with_a_crash_after_every_write(
    tmp_path: Path, before: list[str], after: list[str]
) -> None:
    for number in points(f"a change of sets, {before} {after}"):
        found = begun(tmp_path / str(number), *before)
        found.crash_in_the_middle()
        changing = found.changer()
        changing.crash_at_call(number, "after", writes=True)
        crashed = False
        try:
            found.change(changing, after)
        except Crash:
            crashed = True
            changing.cancel()
            found.feed(4)
            found.change(changing, after)
        found.become(after)
        found.feed(6)
        found.run_until_caught_up()
        found.check()
        if not crashed:
            break
    assert number >= 2


def test_while_sets_are_changed_their_readers_do_not_start_and_others_go_on(tmp_path: Path) -> None:
    found = begun(tmp_path, "0-1", "2-3")
    changing = found.changer()
    changing.crash(step=1, when="before")
    with pytest.raises(Crash):
        found.change(changing, ["0", "1", "2-3"])
    first, second = found.readers
    with pytest.raises(ReadersOverlap, match="are being given to other readers: finish that"):
        first.restart()
    second.restart()
    second.run_until_caught_up()
    with pytest.raises(ReadersOverlap):
        found.reader("0").start()
    found.change(changing, ["0", "1", "2-3"])
    found.become(["0", "1", "2-3"])
    found.run_until_caught_up()
    found.check()


def test_a_change_that_was_begun_may_be_replaced_by_another(tmp_path: Path) -> None:
    for number in some("a change that was begun", range(200)):
        found = begun(tmp_path / str(number), "0-3")
        found.crash_in_the_middle()
        changing = found.changer()
        changing.crash_at_call(number, "after", writes=True)
        try:
            found.change(changing, ["0", "1-3"])
        except Crash:
            changing.cancel()
        else:
            assert number >= 5
            return
        found.change(changing, ["0", "1", "2-3"])
        found.become(["0", "1", "2-3"])
        found.feed(5)
        found.run_until_caught_up()
        found.change(changing, ["0-3"])
        found.change(changing, ["0", "1-3"])
        found.become(["0", "1-3"])
        found.feed(5)
        found.run_until_caught_up()
        found.check()
    raise AssertionError("more calls than that")


@pytest.mark.parametrize("starting", [False, True])
def test_a_reader_that_sleeps_through_a_change_adds_nothing(tmp_path: Path, starting: bool) -> None:
    for number in points(f"a reader that sleeps, {starting}"):
        found = begun(tmp_path / str(number), "0-3")
        (reader,) = found.readers
        if starting:
            reader.service = None
        else:
            reader.restart()

        def change(found: ReaderPipeline = found) -> None:
            found.change(found.changer(), ["0-1", "2-3"])
            found.become(["0-1", "2-3"])
            found.run_until_caught_up()

        reader.meanwhile(change, at=number)
        superseded = False
        try:
            while reader.batch():
                pass
        except (Superseded, ReadersOverlap):
            superseded = True
        if reader.script.injected:
            break
        assert superseded or found.readers[0] is not reader
        found.feed(5)
        found.run_until_caught_up()
        found.check()
    assert number > 5


def test_an_old_set_is_refused_after_a_change(tmp_path: Path) -> None:
    found = begun(tmp_path, "0-3")
    found.change(found.changer(), ["0-1", "2-3"])
    with pytest.raises(ReadersOverlap, match="partition 0 belongs to the reader of 0-1"):
        found.reader("0-3").start()
    with pytest.raises(ReadersOverlap, match="all of its partitions"):
        found.as_one().start()


@pytest.mark.parametrize(
    ("to", "text"),
    [
        (["0-1"], "no set has partition 2"),
        (["0-1", "1-3"], "both have partition 1"),
        (["0-3", "7"], "there is no partition 7"),
        ([], "no sets are given"),
    ],
)
def test_a_change_that_would_lose_or_share_partitions_is_refused(
    tmp_path: Path, to: Sequence[str], text: str
) -> None:
    found = begun(tmp_path, "0-3")
    with pytest.raises(ConfigurationError, match=text):
        found.change(found.changer(), to)
    found.run_until_caught_up()
    found.check()


def test_replays_are_known_after_a_change(tmp_path: Path) -> None:
    """Marks go over with the partitions: a republisher upstream that republishes everything adds nothing."""
    found = ReaderPipeline(tmp_path, "0-3", republished=True)
    found.feed(20)
    found.run_until_caught_up()
    found.change(found.changer(), ["0-1", "2-3"])
    found.become(["0-1", "2-3"])
    found.republish_again()
    found.run_until_caught_up()
    found.feed(5)
    found.run_until_caught_up()
    found.check()
    assert sum(one["replays"] for reader in found.readers for one in reader.events("committed")) == 20  # type: ignore[misc]


def test_later_rows_hold_after_a_change(tmp_path: Path) -> None:
    """The old reader had made many plans: rows of the new ones must count as later."""
    found = ReaderPipeline(tmp_path, "0-3")
    for _ in range(5):
        found.feed(4, robots=1, times=1)
        found.run_until_caught_up()
    found.change(found.changer(), ["0-1", "2-3"])
    found.become(["0-1", "2-3"])
    found.feed(1, robots=1, times=1)
    found.run_until_caught_up()
    found.check()


def test_partitions_without_a_reader_are_reported(tmp_path: Path) -> None:
    found = ReaderPipeline(tmp_path, "0-1")
    found.run_until_caught_up()
    texts = [str(one["text"]) for one in found.readers[0].events("notice")]
    assert any("readings.raw[2], readings.raw[3]" in text for text in texts)


def test_a_topic_that_grows_belongs_to_the_open_set(tmp_path: Path) -> None:
    found = begun(tmp_path, "0-1", "2-")
    found.log.grow("readings.raw", 6)
    found.feed(30)
    found.run_until_caught_up()
    found.check()
    assert {tp[1] for tp in found.readers[1].commits()} == {2, 3, 4, 5}


def test_sets_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    found = ReaderPipeline(tmp_path)
    with pytest.raises(ConfigurationError, match="there is no partition 4"):
        found.reader("2-4").start()
    assert read_record(found.store, "readings-to-table").readers is None


def test_all_readers_have_the_same_state_partitions(tmp_path: Path) -> None:
    found = begun(tmp_path, "0-1")
    other = table_flow(found.at, state_partitions=7).compile().reader(Partitions.parse("2-3"))
    with pytest.raises(PartitionsMismatch, match="the same for all readers"):
        Rehearsal(other, log=found.log, store=found.store).start()


def test_flows_that_keep_states_cannot_be_read_apart() -> None:
    flow = Flow("counts")
    flow.source("numbers", dict, codec="json", raw=True).aggregate(
        "sum", key=lambda one: one["key"], state=dict, fold=lambda state, one: None
    )
    with pytest.raises(FlowError, match=r"stage 'sum' .* keeps states"):
        flow.compile().reader(Partitions.parse("0"))
    files = Flow("loads")
    files.files("rows", dict, "*.csv").map(lambda one: one).to(
        "out", key=lambda one: one["key"], partitions=1
    )
    with pytest.raises(FlowError, match="reads files"):
        files.compile().reader(Partitions.parse("0"))


@pytest.mark.parametrize("name", ["readings.readers", "readings.reader-0-3", "readings.reader-4-.2"])
def test_names_of_readers_are_taken(name: str) -> None:
    with pytest.raises(FlowError, match="names of readers"):
        Flow(name)


def _republisher(partitions: str | None) -> Callable[[], Flow | CompiledFlow]:
    def made() -> Flow | CompiledFlow:
        flow = Flow("passing-on")
        flow.source("in", dict, codec="json", raw=True).to("out", key=lambda one: one["key"], partitions=2)
        return flow if partitions is None else flow.compile().reader(Partitions.parse(partitions))

    return made


def test_republishers_side_by_side_and_with_other_sets_publish_on_the_same_lanes() -> None:
    one = Rehearsal(_republisher("0-1")(), partitions={"in": 4})
    two = Rehearsal(_republisher("2-3")(), partitions={"in": 4}, log=one.log)
    for number in range(20):
        one.feed("in", {"key": str(number % 7)}, partition=number % 4)
    one.run_until_caught_up()
    assert len(one.published("out")) == 10
    two.run_until_caught_up()
    assert sets(one.commits()) == {0, 1}
    assert sets(two.commits()) == {2, 3}
    for number in range(8):
        one.feed("in", {"key": "x"}, partition=number % 4)
    whole = Rehearsal(_republisher(None)(), log=one.log)
    whole.run_until_caught_up()
    assert len(whole.published("out")) == 28
    assert len({envelope.chain.lane() for envelope in whole.published("out")}) <= 8


def test_what_readers_publish_promises_no_event_time() -> None:
    one = Rehearsal(_republisher("0-1")(), partitions={"in": 4})
    one.feed("in", {"key": "x"}, partition=0, timestamp_ms=5_000)
    one.run_until_caught_up()
    one.feed("in", {"key": "x"}, partition=0, timestamp_ms=6_000)
    one.run_until_caught_up()
    assert [envelope.watermark_ms for envelope in one.published("out")] == [1, 1]


def test_a_restart_takes_over_and_the_settings_of_a_start_hold_for_new_partitions(tmp_path: Path) -> None:
    found = ReaderPipeline(tmp_path, "0-1")
    found.feed()
    found.run_until_caught_up()
    late = found.reader("2-3")
    late.start(settings_of(start="latest", allow_weak_durability=True, takeover=True))
    assert late.commits() == {} or all(one.offset > 0 for one in late.commits().values())


@pytest.mark.parametrize("before", [["0-1", "2-3"], []])
def test_a_flow_is_forgotten_with_all_of_its_readers(tmp_path: Path, before: list[str]) -> None:
    """Whatever there was: readers, those before a change, and the flow run as one. With a crash after each write."""
    number = 0
    while True:
        found = begun(tmp_path / str(number), *before)
        found.change(found.changer(), ["0", "1-"])
        found.become(["0", "1-"])
        found.run_until_caught_up()
        with pytest.raises(ConfigurationError, match="is one of several readers"):
            found.forget("readings-to-table.reader-0.1")
        try:
            found.forget("readings-to-table", crash_after=number)
        except Crash:
            if found.store.flows():  # else it had only its answer still to get
                with pytest.raises(ReadersOverlap):
                    found.reader("0").start()
                found.forget("readings-to-table")
        else:
            assert number >= 10
            assert found.store.flows() == []
            return
        assert found.store.flows() == []
        number += 5


def test_a_set_that_was_entered_beside_the_whole_flow_and_never_read_is_cleared(tmp_path: Path) -> None:
    """The reader has noticed that the flow runs as one, and has died before it could leave the record."""
    for to in (["0-"], ["0-1", "2-"]):
        found = begun(tmp_path / str(len(to)))
        record = ReadersClaim()
        entered = Readers(2, {Partitions.parse("0-1"): "readings-to-table.reader-0-1"})
        assert write_record(found.store, "readings-to-table", record, entered, "dies") is not None
        with pytest.raises(ReadersOverlap):
            found.readers[0].restart()
        found.change(found.changer(), to)
        if to == ["0-"]:
            found.readers[0].restart()
        else:
            found.become(to)
        found.feed(5)
        found.run_until_caught_up()
        found.check()
