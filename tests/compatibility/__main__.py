"""Write the folder of this version: `python -m tests.compatibility`, with `--again` as long as it is not released."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib

from sqe_chain.adapters import open_store
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.envelope.replays import ReplayFilter
from sqe_chain.ext.wal import LocalFiles, Record, WriteAheadLog
from sqe_chain.testing import Rehearsal
from tests.compatibility.kept import PARTITIONS, ROOT, clean_flow, dump_broker, readings, totals_flow

COUNT = 100
NOW_MS = 1_764_144_000_000


def main() -> None:
    """Write it; refuses to overwrite what a version has written."""
    version = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]["version"]
    folder = ROOT / version
    if folder.exists() and sys.argv[1:] != ["--again"]:
        raise SystemExit(f"{folder} exists. A folder is written once, by the version that it is named for.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.chdir(folder)
    write_flows()
    write_log()


def write_flows() -> None:
    """A broker, a store with two flows, their export, a table, and the marks of a plain consumer."""
    log = MemoryLog("kept")
    log.clear()
    raw = {"kept.raw": PARTITIONS}
    clean = Rehearsal(clean_flow(), partitions=raw, log=log, now_ms=NOW_MS)
    store = open_store("sqlite://store.sqlite")
    topics = {"kept.clean": PARTITIONS, "kept.headers": PARTITIONS}
    totals = Rehearsal(totals_flow(), partitions=topics, log=log, store=store, now_ms=NOW_MS)
    for begin in range(0, COUNT, 20):
        for reading in readings(begin, begin + 20):
            clean.feed("kept.raw", reading, key=reading.robot, timestamp_ms=reading.at_ms)
        clean.run_until_caught_up()
        totals.run_until_caught_up()
    exported = "\n".join(totals.exported()) + "\n"
    for name, text in (
        ("broker.json", dump_broker(log, ("kept-clean", "kept-totals"))),
        ("export.jsonl", exported),
    ):
        with open(name, "w", encoding="utf-8") as file:  # noqa: PTH123 - beside what the flow writes
            file.write(text)
    replays = ReplayFilter(log.topic_ids(topics))
    for topic in topics:
        for message in log.records(topic):
            assert replays.accept(message)
    with open("marks.json", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(replays.export())
    store.close()


def write_log() -> None:
    """A write-ahead log, of whose records Kafka has the first half."""
    with WriteAheadLog(LocalFiles("wal"), "kept.raw", partitions=PARTITIONS, now_ms=lambda: NOW_MS) as log:
        for number in range(20):
            log.append(Record(b"%d screws" % number, key=b"robot-%d" % (number % 3)))
        log.acknowledge(10)
        log.save()


if __name__ == "__main__":
    main()
