"""Goal: files and stores of earlier versions are read, and services go on from them exactly. Method: `tests/compatibility`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sqe_chain.adapters import open_store
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope import read
from sqe_chain.envelope.replays import ReplayFilter
from sqe_chain.errors import StoreInconsistent
from sqe_chain.ext.tables.reading import open_table
from sqe_chain.ext.wal import LocalFiles, Record, WriteAheadLog
from sqe_chain.testing import Rehearsal
from tests.compatibility import kept
from tests.compatibility.kept import Reading, Total

VERSIONS = sorted(path.name for path in kept.ROOT.iterdir() if re.fullmatch(r"\d+\.\d+\.\d+", path.name))
WRITTEN, MORE = 100, 60
"""Reports that the files hold, and reports that come after the upgrade."""


@pytest.fixture(params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what a version wrote, as the working directory."""
    copy = tmp_path / "kept"
    shutil.copytree(kept.ROOT / request.param, copy)
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture
def log(folder: Path) -> Iterator[MemoryLog]:
    broker = kept.load_broker((folder / "broker.json").read_text(), "kept")
    yield broker
    broker.clear()


def services(log: MemoryLog, store: MemoryStore | None = None) -> tuple[Rehearsal, Rehearsal]:
    both = store or open_store("sqlite://store.sqlite")
    return Rehearsal(kept.clean_flow(), log=log), Rehearsal(kept.totals_flow(), log=log, store=both)


def feed(clean: Rehearsal, totals: Rehearsal, begin: int, end: int) -> None:
    for reading in kept.readings(begin, end):
        clean.feed("kept.raw", reading, key=reading.robot, timestamp_ms=reading.at_ms)
    clean.run_until_caught_up()
    totals.run_until_caught_up()


def rows() -> list[Reading]:
    table = open_table("table/rows").read().to_pylist()
    return sorted((Reading(**row) for row in table), key=lambda reading: reading.at_ms)


def test_there_are_files_of_this_version() -> None:
    assert VERSIONS


def test_services_go_on_from_a_store_a_table_and_commits(log: MemoryLog) -> None:
    clean, totals = services(log)
    clean.run_until_caught_up()
    totals.run_until_caught_up()
    assert totals.states("per-robot") == kept.expected_totals(WRITTEN)
    assert rows() == kept.readings(0, WRITTEN)
    feed(clean, totals, WRITTEN, WRITTEN + MORE)
    assert len(log.records("kept.clean")) == WRITTEN + MORE
    assert totals.states("per-robot") == kept.expected_totals(WRITTEN + MORE)
    assert rows() == kept.readings(0, WRITTEN + MORE)
    windows = [envelope.payload_as(dict) for envelope in totals.published("kept.minutes")]
    assert len(windows) == len({(window["key"], window["start_ms"]) for window in windows}) == 6
    assert sum(window["state"]["events"] for window in windows) == 2 * 120
    totals.stores[""].close()


def test_what_a_republisher_publishes_again_is_ignored(log: MemoryLog) -> None:
    clean, totals = services(log)
    clean.rewind({("kept.raw", 0): 0, ("kept.raw", 1): 0})
    feed(clean, totals, WRITTEN, WRITTEN + MORE)
    assert len(log.records("kept.clean")) == 2 * WRITTEN + MORE
    assert totals.states("per-robot") == kept.expected_totals(WRITTEN + MORE)
    totals.stores[""].close()


def test_an_export_is_imported_and_goes_on(folder: Path, log: MemoryLog) -> None:
    store = MemoryStore("kept-import")
    store.restore_all()
    clean, totals = services(log, store)
    totals.imported((folder / "export.jsonl").read_text().splitlines())
    feed(clean, totals, WRITTEN, WRITTEN + MORE)
    assert totals.states("per-robot") == kept.expected_totals(WRITTEN + MORE)
    assert rows() == kept.readings(0, WRITTEN + MORE)


def test_a_plain_consumer_goes_on_from_its_marks(folder: Path, log: MemoryLog) -> None:
    clean, totals = services(log)
    topics = ["kept.clean", "kept.headers"]
    replays = ReplayFilter.load((folder / "marks.json").read_text(), log.topic_ids(topics))
    clean.rewind({("kept.raw", 0): 0, ("kept.raw", 1): 0})
    feed(clean, totals, WRITTEN, WRITTEN + MORE)
    old = json.loads((folder / "broker.json").read_text())["topics"]
    accepted = 0
    for topic in topics:
        for partition in range(kept.PARTITIONS):
            behind = sum(record[0] == partition for record in old[topic]["records"])
            for offset, message in log.kept(topic, partition).items():
                if offset >= behind and replays.accept(message):
                    accepted += 1
    assert accepted == 2 * MORE
    totals.stores[""].close()


def test_envelopes_are_read_with_both_carriers(log: MemoryLog) -> None:
    for topic in ("kept.clean", "kept.headers"):
        payloads = [read(m.value(), headers=m.headers()).payload_as(Reading) for m in log.records(topic)]
        assert sorted(payloads, key=lambda reading: reading.at_ms) == kept.readings(0, WRITTEN)


def test_a_write_ahead_log_is_published_from_its_position(folder: Path) -> None:
    with WriteAheadLog(LocalFiles(folder / "wal"), "kept.raw", partitions=kept.PARTITIONS) as log:
        assert (log.begin, log.position, log.end) == (0, 10, 20)
        assert [entry.record.value for entry in log.read(10)] == [b"%d screws" % n for n in range(10, 20)]
        assert log.append(Record(b"20 screws", key=b"robot-2")) == 20


def test_a_store_whose_plan_is_of_an_older_format_is_refused_by_name(folder: Path, log: MemoryLog) -> None:
    store = MemoryStore("kept-old")
    store.restore_all()
    _, totals = services(log, store)
    totals.imported((folder / "export.jsonl").read_text().splitlines())
    home, _ = store.home("kept-totals")
    assert home
    plan = json.loads(store.plan("kept-totals", home.number) or b"")
    old = json.dumps({name: plan[name] for name in plan if name != "format"}).encode()
    store.set_home("kept-totals", home, home, old)
    with pytest.raises(StoreInconsistent, match=r"has format 1.*sqe-chain export.*sqe-chain import"):
        totals.run_until_caught_up()


def test_states_have_the_types_of_the_flow(log: MemoryLog) -> None:
    _, totals = services(log)
    assert all(isinstance(state, Total) for state in totals.states("per-robot").values())
    totals.stores[""].close()
