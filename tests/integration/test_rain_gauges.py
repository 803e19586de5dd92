"""Goal: a whole job of a newcomer on real servers: uploads are exploded, and code that was wrong for days is corrected.

Each row counts in its own hour and day, a table names its region, and a sink that knows no positions gets each result once.

Method: services are killed again and again. A consumer of committed records and sums in plain Python share nothing with the package.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from sqe_chain.adapters.kafka import KafkaLog
from tests.support.service_processes import ServiceProcess

MODULE = '''
import os

from sqe_chain import Flow
from sqe_chain.stages import Tumbling
from sqe_chain.flow import sum_

NAME, TENTHS, REVISION = os.environ["NAME"], int(os.environ["TENTHS"]), int(os.environ["REVISION"])
OWN_REVISION = int(os.environ["OWN_REVISION"])


def rows_of(upload):
    """What a gauge counts is tenths of a millimetre; the code was wrong while TENTHS was 1."""
    return [row | {"mm": row["count"] * 10 // TENTHS} for row in upload["rows"]]


explode = Flow(f"{NAME}-explode")
uploads = explode.source(f"{NAME}.uploads", dict, raw=True, timestamp=lambda upload: min(row["at_ms"] for row in upload["rows"]))
uploads.flat_map(rows_of).to(f"{NAME}.readings", key=lambda row: row["station"], partitions=3, revision=REVISION)

rain = Flow(f"{NAME}-rain", state_partitions=2, transactional=True)
readings = rain.source(f"{NAME}.readings", dict).key_by(lambda row: row["station"])
stations = rain.source(f"{NAME}.stations", dict, raw=True, timestamp=lambda station: station["at_ms"]).key_by(lambda station: station["station"])
named = readings.join_table("regions", stations, lambda row, station: row | {"region": station["region"]})
for unit, size_ms in (("hours", 3_600_000), ("days", 86_400_000)):
    windows = named.windowed(unit, Tumbling(size_ms), key="region", time="at_ms", mm=sum_("mm"))
    windows.to(f"{NAME}.{unit}", partitions=2, carrier="headers", separate=True, revision=OWN_REVISION)
'''
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
UNITS = {"hours": HOUR_MS, "days": DAY_MS}
STATIONS = ("north", "south", "pier")
SEED = 20261128

Totals = Counter[tuple[str, str, int]]
"""(unit, region, begin of the window) -> tenths of a millimetre, times ten."""


@dataclass(frozen=True)
class Upload:
    """What a gauge sends at once: several rows, of several stations."""

    partition: int
    sent_ms: int
    rows: list[dict[str, Any]]

    @property
    def place_ms(self) -> int:
        return min(int(row["at_ms"]) for row in self.rows)


def drawn_uploads(began_ms: int, days: int) -> list[Upload]:
    """Uploads of some days. A gauge waits for six hours, so they are sent in the order of their earliest rows."""
    draw, uploads = random.Random(SEED), list[Upload]()
    for partition in (0, 1):
        at_ms = began_ms
        while at_ms < began_ms + days * DAY_MS:
            at_ms += draw.randrange(HOUR_MS // 2, 4 * HOUR_MS)
            times = [at_ms, *(at_ms + draw.randrange(5 * HOUR_MS) for _ in range(draw.randrange(6)))]
            rows = [
                {"station": draw.choice(STATIONS), "at_ms": moment, "count": draw.randrange(1, 50)}
                for moment in draw.sample(times, len(times))
            ]
            uploads.append(Upload(partition, at_ms + 6 * HOUR_MS, rows))
    return sorted(uploads, key=lambda upload: upload.sent_ms)


def region_of(station: str, at_ms: int, moved_ms: int) -> str:
    return "coast" if station == "pier" and at_ms >= moved_ms else f"region of {station}"


def totals_of(uploads: Iterable[tuple[Upload, int]], moved_ms: int) -> Totals:
    """What the windows must hold.

    Args:
        uploads: each with the tenths that the code took it for.
        moved_ms: when a station came to another region.
    """
    totals = Totals()
    for upload, tenths in uploads:
        for row in upload.rows:
            region = region_of(row["station"], upload.place_ms, moved_ms)
            for unit, size_ms in UNITS.items():
                totals[unit, region, row["at_ms"] // size_ms * size_ms] += row["count"] * 10 // tenths
    return totals


class Sink:
    """A program that knows committed records, and nothing else."""

    def __init__(self, kafka: str, name: str) -> None:
        self.kafka, self.name = kafka, name

    def results(self, revision: int) -> Totals:
        """What came under a revision of the results; each window once."""
        found = defaultdict[tuple[str, str, int], list[int]](list)
        for unit in UNITS:
            for value, named in self._records(f"{self.name}.{unit}"):
                if named == (f"{self.name}-rain/{self.name}.{unit}@2" if revision == 2 else ""):
                    window = json.loads(value)
                    found[unit, window["key"], window["start_ms"]].append(window["state"]["mm"])
        assert {window: values for window, values in found.items() if len(values) > 1} == {}
        return Totals({window: values[0] for window, values in found.items()})

    def _records(self, topic: str) -> Iterable[tuple[bytes, str]]:
        """Value and last revision of each committed record."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka,
                "group.id": uuid4().hex,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
        at_end = set[int | None]()
        while len(at_end) < 2:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                at_end.add(message.partition())
                continue
            headers = cast("list[tuple[str, bytes]]", message.headers() or [])
            named = [value.decode() for header, value in headers if header == "sqe-revision"]
            own = [name for name in named if name.startswith(f"{self.name}-rain/")]
            yield message.value() or b"", own[-1] if own else ""
        consumer.close()


class Servers:
    """The deployment: a module with both flows, and what each version of the code is."""

    def __init__(self, kafka: str, redis_url: str, directory: Path) -> None:
        self.kafka, self.store, self.directory = kafka, redis_url, directory
        self.name = f"rain-{uuid4().hex[:8]}"
        (directory / "rain_gauges.py").write_text(MODULE, encoding="utf-8")
        self.code = {"TENTHS": "10", "REVISION": "1", "OWN_REVISION": "1"}
        self.runs = 0
        log = KafkaLog(kafka)
        for topic, partitions in (("uploads", 2), ("stations", 1)):
            log.create_topic(f"{self.name}.{topic}", partitions)

    def feed(self, topic: str, records: Iterable[tuple[int, int, object]]) -> None:
        """Send records: partition, time and value."""
        producer = Producer({"bootstrap.servers": self.kafka, "enable.idempotence": True, "max.in.flight": 1})
        for partition, at_ms, value in records:
            producer.produce(f"{self.name}.{topic}", json.dumps(value), partition=partition, timestamp=at_ms)
        producer.flush()

    def command(self, command: str, flow: str, *arguments: str) -> ServiceProcess:
        self.runs += 1
        environment = {**os.environ, "PYTHONPATH": str(self.directory), "NAME": self.name, **self.code}
        store = () if flow == "explode" else ("--store", self.store)
        line = [command, f"rain_gauges:{flow}", "--kafka", self.kafka, *store, *arguments]
        return ServiceProcess(line, self.directory / f"{self.runs}.log", environment)

    def work_off(self, *arguments: str) -> None:
        """Run both flows until they have nothing to do; each is killed twice before."""
        for flow in ("explode", "rain"):
            own = arguments if flow == "rain" else ()
            options = ("--once", "--engine", "inprocess", "--create-topics", "1", "--max-records", "40")
            for event in ("recovered", "committed"):
                self.command("run", flow, *options, "--log-json", *own).kill_after(event)
            ended = self.command("run", flow, *options, "--log-json", *own)
            assert ended.wait() == 0, ended.text


def test_days_of_wrong_code_are_corrected_for_readers_that_know_nothing(
    kafka: str, redis_url: str, tmp_path: Path
) -> None:
    began_ms = (int(time.time() * 1_000) // DAY_MS - 5) * DAY_MS
    moved_ms = began_ms + 2 * DAY_MS
    uploads = drawn_uploads(began_ms, 4)
    first, second = (began_ms + days * DAY_MS for days in (1, 3))
    right = [upload for upload in uploads if upload.sent_ms < first]
    wrong = [upload for upload in uploads if first <= upload.sent_ms < second]
    later = [upload for upload in uploads if upload.sent_ms >= second]
    servers = Servers(kafka, redis_url, tmp_path)
    sink = Sink(kafka, servers.name)

    def send(some: list[Upload]) -> None:
        servers.feed(
            "uploads", ((upload.partition, upload.sent_ms, {"rows": upload.rows}) for upload in some)
        )

    def name_stations(at_ms: int) -> None:
        names = [
            {"station": one, "at_ms": at_ms, "region": region_of(one, at_ms, moved_ms)} for one in STATIONS
        ]
        servers.feed("stations", ((0, at_ms, name) for name in names))

    name_stations(began_ms)
    send(right)
    servers.work_off()
    servers.code["TENTHS"] = "1"
    name_stations(moved_ms)
    send(wrong)
    servers.work_off()

    # Of the first revision each window is there at most once, as the code of then had it.
    before = totals_of([*((upload, 10) for upload in right), *((upload, 1) for upload in wrong)], moved_ms)
    shown = sink.results(1)
    assert shown
    assert {window: before[window] for window in shown} == shown

    servers.code |= {"TENTHS": "10", "REVISION": "2", "OWN_REVISION": "2"}
    corrected = servers.command("correct", "explode", "--from", str(first))
    assert corrected.wait() == 0, corrected.text
    send(later)
    ended = servers.command("run", "explode", "--once", "--engine", "inprocess")
    assert ended.wait() == 0, ended.text
    rebuilt = servers.command("rebuild", "rain")
    assert rebuilt.wait() == 0, rebuilt.text
    servers.work_off()
    servers.work_off("--close-windows")

    assert sink.results(2) == totals_of(((upload, 10) for upload in uploads), moved_ms)
    assert sink.results(1) == shown
