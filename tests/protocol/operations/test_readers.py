"""Goal: readers that run side by side write each row once, and no partition is ever read by two of them, or by none.

Method: a flow into a Delta table on disk, with the real protocol and real tasks. Several rehearsals of the same flow with other
input partitions share a broker and a store in memory. One of them crashes at each call in turn, or sleeps and wakes up as a
zombie. Sets are changed, with crashes at each call of that, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sqe_chain.errors import ConfigurationError, FlowError, PartitionsMismatch, ReadersOverlap
from sqe_chain.features.readers import Readers, ReadersClaim, read_record, write_record
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.plans.settings import Settings
from sqe_chain.ports.readers import Partitions
from sqe_chain.testing import Crash, Rehearsal
from tests.support.environments import environment_of
from tests.support.readers import ReaderPipeline, begun_readers, sets
from tests.support.table_flows import Reading, table_flow


@pytest.fixture(autouse=True)
def _no_power_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes die here, machines do not: nothing has to be forced to the disk."""
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)


def test_each_flushes_and_commits_at_its_own_rate(tmp_path: Path) -> None:
    pipeline = begun_readers(tmp_path, "0-1", "2-3")
    first, second = pipeline.readers
    for _ in range(3):
        first.run_until_caught_up()
        pipeline.feed(4)
    plans = [reader.events("sealed")[-1]["plan"] for reader in pipeline.readers]
    assert plans[0] != plans[1]
    assert {tp[1] for tp in first.commits()} == {0, 1}
    assert {tp[1] for tp in second.commits()} == {2, 3}
    pipeline.run_until_caught_up()
    pipeline.check()


@pytest.mark.parametrize(("wanted", "shared"), [("0", 0), ("1-2", 1), ("3-", 3), ("0-3", 0), ("2", 2)])
def test_a_partition_has_one_reader(tmp_path: Path, wanted: str, shared: int) -> None:
    pipeline = begun_readers(tmp_path, "0-1", "2-3")
    record = read_record(pipeline.store, "readings-to-table")
    with pytest.raises(ReadersOverlap, match=rf"partition {shared} .*`sqe-chain readers "):
        pipeline.reader(wanted).start()
    assert read_record(pipeline.store, "readings-to-table") == record
    pipeline.run_until_caught_up()
    pipeline.check()


def test_a_flow_with_readers_does_not_run_as_one_nor_the_other_way_round(tmp_path: Path) -> None:
    pipeline = begun_readers(tmp_path / "readers", "0-1", "2-3")
    with pytest.raises(ReadersOverlap, match="all of its partitions"):
        pipeline.as_one().start()
    pipeline.run_until_caught_up()
    pipeline.check()

    other = ReaderPipeline(tmp_path / "one")
    other.feed()
    one = other.as_one()
    one.run_until_caught_up()
    with pytest.raises(ReadersOverlap, match=r"whole flow .*`sqe-chain readers "):
        other.reader("0-1").start()
    other.feed()
    one.restart()
    one.run_until_caught_up()
    other.check()


def test_while_sets_are_changed_their_readers_do_not_start_and_others_go_on(tmp_path: Path) -> None:
    pipeline = begun_readers(tmp_path, "0-1", "2-3")
    changing = pipeline.changer()
    changing.crash(step=1, when="before")
    with pytest.raises(Crash):
        pipeline.change(changing, ["0", "1", "2-3"])
    first, second = pipeline.readers
    with pytest.raises(ReadersOverlap, match="are being given to other readers: finish that"):
        first.restart()
    second.restart()
    second.run_until_caught_up()
    with pytest.raises(ReadersOverlap):
        pipeline.reader("0").start()
    pipeline.change(changing, ["0", "1", "2-3"])
    pipeline.become(["0", "1", "2-3"])
    pipeline.run_until_caught_up()
    pipeline.check()


def test_an_old_set_is_refused_after_a_change(tmp_path: Path) -> None:
    pipeline = begun_readers(tmp_path, "0-3")
    pipeline.change(pipeline.changer(), ["0-1", "2-3"])
    with pytest.raises(ReadersOverlap, match="partition 0 belongs to the reader of 0-1"):
        pipeline.reader("0-3").start()
    with pytest.raises(ReadersOverlap, match="all of its partitions"):
        pipeline.as_one().start()


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
    pipeline = begun_readers(tmp_path, "0-3")
    with pytest.raises(ConfigurationError, match=text):
        pipeline.change(pipeline.changer(), to)
    pipeline.run_until_caught_up()
    pipeline.check()


def test_replays_are_known_after_a_change(tmp_path: Path) -> None:
    """Marks go over with the partitions: a republisher upstream that republishes everything adds nothing."""
    pipeline = ReaderPipeline(tmp_path, "0-3", republished=True)
    pipeline.feed(20)
    pipeline.run_until_caught_up()
    pipeline.change(pipeline.changer(), ["0-1", "2-3"])
    pipeline.become(["0-1", "2-3"])
    pipeline.republish_again()
    pipeline.run_until_caught_up()
    pipeline.feed(5)
    pipeline.run_until_caught_up()
    pipeline.check()
    assert sum(event["replays"] for reader in pipeline.readers for event in reader.events("committed")) == 20  # type: ignore[misc]


def test_later_rows_hold_after_a_change(tmp_path: Path) -> None:
    """The old reader had made many plans: rows of the new ones must count as later."""
    pipeline = ReaderPipeline(tmp_path, "0-3")
    for _ in range(5):
        pipeline.feed(4, robots=1, times=1)
        pipeline.run_until_caught_up()
    pipeline.change(pipeline.changer(), ["0-1", "2-3"])
    pipeline.become(["0-1", "2-3"])
    pipeline.feed(1, robots=1, times=1)
    pipeline.run_until_caught_up()
    pipeline.check()


def test_partitions_without_a_reader_are_reported(tmp_path: Path) -> None:
    pipeline = ReaderPipeline(tmp_path, "0-1")
    pipeline.run_until_caught_up()
    texts = [str(event["text"]) for event in pipeline.readers[0].events("notice")]
    assert any("readings.raw[2], readings.raw[3]" in text for text in texts)


def test_a_topic_that_grows_belongs_to_the_open_set(tmp_path: Path) -> None:
    pipeline = begun_readers(tmp_path, "0-1", "2-")
    pipeline.log.grow("readings.raw", 6)
    pipeline.feed(30)
    pipeline.run_until_caught_up()
    pipeline.check()
    assert {tp[1] for tp in pipeline.readers[1].commits()} == {2, 3, 4, 5}


def test_sets_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    pipeline = ReaderPipeline(tmp_path)
    with pytest.raises(ConfigurationError, match="there is no partition 4"):
        pipeline.reader("2-4").start()
    assert read_record(pipeline.store, "readings-to-table").readers is None


def test_all_readers_have_the_same_state_partitions(tmp_path: Path) -> None:
    pipeline = begun_readers(tmp_path, "0-1")
    other = table_flow(pipeline.at, state_partitions=7).compile().reader(Partitions.parse("2-3"))
    with pytest.raises(PartitionsMismatch, match="the same for all readers"):
        Rehearsal(other, log=pipeline.log, store=pipeline.store).start()


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
    rehearsal = Rehearsal(_republisher("0-1")(), partitions={"in": 4})
    two = Rehearsal(_republisher("2-3")(), partitions={"in": 4}, log=rehearsal.log)
    for number in range(20):
        rehearsal.feed("in", {"key": str(number % 7)}, partition=number % 4)
    rehearsal.run_until_caught_up()
    assert len(rehearsal.published("out")) == 10
    two.run_until_caught_up()
    assert sets(rehearsal.commits()) == {0, 1}
    assert sets(two.commits()) == {2, 3}
    for number in range(8):
        rehearsal.feed("in", {"key": "x"}, partition=number % 4)
    whole = Rehearsal(_republisher(None)(), log=rehearsal.log)
    whole.run_until_caught_up()
    assert len(whole.published("out")) == 28
    assert len({envelope.chain.lane() for envelope in whole.published("out")}) <= 8


def test_what_readers_publish_promises_no_event_time() -> None:
    rehearsal = Rehearsal(_republisher("0-1")(), partitions={"in": 4})
    rehearsal.feed("in", {"key": "x"}, partition=0, timestamp_ms=5_000)
    rehearsal.run_until_caught_up()
    rehearsal.feed("in", {"key": "x"}, partition=0, timestamp_ms=6_000)
    rehearsal.run_until_caught_up()
    assert [envelope.watermark_ms for envelope in rehearsal.published("out")] == [1, 1]


def test_a_restart_takes_over_and_the_settings_of_a_start_hold_for_new_partitions(tmp_path: Path) -> None:
    pipeline = ReaderPipeline(tmp_path, "0-1")
    pipeline.feed()
    pipeline.run_until_caught_up()
    late = pipeline.reader("2-3")
    late.start(settings_of(start="latest", allow_weak_durability=True, takeover=True))
    assert late.commits() == {} or all(commit.offset > 0 for commit in late.commits().values())


def test_a_set_that_was_entered_beside_the_whole_flow_and_never_read_is_cleared(tmp_path: Path) -> None:
    """The reader has noticed that the flow runs as one, and has died before it could leave the record."""
    for to in (["0-"], ["0-1", "2-"]):
        pipeline = begun_readers(tmp_path / str(len(to)))
        record = ReadersClaim()
        entered = Readers(2, {Partitions.parse("0-1"): "readings-to-table.reader-0-1"})
        assert write_record(pipeline.store, "readings-to-table", record, entered, "dies") is not None
        with pytest.raises(ReadersOverlap):
            pipeline.readers[0].restart()
        pipeline.change(pipeline.changer(), to)
        if to == ["0-"]:
            pipeline.readers[0].restart()
        else:
            pipeline.become(to)
        pipeline.feed(5)
        pipeline.run_until_caught_up()
        pipeline.check()


def test_failed_records_of_several_readers_are_released_by_one_command(tmp_path: Path) -> None:
    broken = set(range(6))

    def check(reading: Reading) -> Reading:
        if reading.at_ms in broken:
            raise ValueError(reading.at_ms)
        return reading

    class Checked(ReaderPipeline):
        def flow(self) -> Flow:
            flow = Flow("readings-to-table", state_partitions=2, poison="dead_letter")
            readings = flow.source("readings.raw", Reading, codec="json", raw=True).map(check)
            columns = {"robot": "string", "at_ms": "int64", "bar": "float64"}
            readings.ingest(
                "readings", at=str(self.at), partition_key="robot", row_key="at_ms", columns=columns
            )
            return flow

        def reader(self, text: str) -> Rehearsal:
            settings = Settings(max_excluded_share=1.0)
            return Rehearsal(self.flow(), log=self.log, store=self.store, reader=text, settings=settings)

    pipeline = Checked(tmp_path, "0-1", "2-3")
    pipeline.feed(12, times=12)
    pipeline.run_until_caught_up()
    skipped = len(pipeline.log.records("readings-to-table.dead-letters"))
    assert skipped > 1
    broken.clear()
    for reader in pipeline.readers:
        reader.service = None
    result = FailedInPlans(environment_of(pipeline.as_one())).release()
    assert (result.released, result.stuck, result.left) == (skipped, 0, 0)
    pipeline.run_until_caught_up()
    assert pipeline.rows().keys() == pipeline.expected.keys()
    pipeline.check_once()
