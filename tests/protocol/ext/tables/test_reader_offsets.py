"""Goal: `ReaderOffsets`, for programs without a flow, and readers of a flow go by one rule: what is read again after a crash, and when.

Method: a reader of a flow is run through random feeds, crashes at random calls, and restarts. A program of plain objects without a flow
is taken through the same batches and crashes. After each step both must go on at the same offsets, repeat the same ranges, and have
flushed as far. In the end both tables hold the same chunks. The service keeps plans instead of the object's JSON, for they hold more
than offsets.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from sqe_chain.ext.tables import (
    ChunkIndex,
    ChunkInfo,
    Memtable,
    ReaderOffsets,
    TableSchema,
    chunk_id,
    open_table,
)
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Crash, Rehearsal
from tests.support.table_flows import Reading, table_flow

TOPIC = "readings.raw"
PARTITIONS = 3
Seen = tuple[bytes, tuple[Any, ...], tuple[Any, ...], int, str]


def name_of(partition: int) -> str:
    return f"{TOPIC}/{partition}"


class Outsider:
    """A program of plain objects: a table of chunks, and what it keeps durably."""

    def __init__(self, draw: Random, records: dict[int, list[Reading]]) -> None:
        self.draw, self.records = draw, records
        self.schema = TableSchema.of(Reading, partition_key="robot", row_key="at_ms")
        self.reader = ReaderOffsets()
        self.kept = self.reader.to_json()
        self.memtable = Memtable(self.schema, table="readings")
        self.chunks: list[ChunkInfo] = []
        self.crashes = 0

    def crash(self) -> None:
        """Memory is gone."""
        self.crashes += 1
        self.reader = ReaderOffsets.from_json(self.kept)
        self.memtable = Memtable(self.schema, table="readings")

    def read(self, ranges: dict[int, tuple[int, int]]) -> None:
        """Records up to the ends of ranges, partition after partition, as the service does; some are given twice."""
        for partition, (_, stop) in sorted(ranges.items()):
            begin = self.reader.position(name_of(partition))
            for offset in range(max(0, begin - self.draw.randrange(3)), stop):
                if self.reader.accept(name_of(partition), offset):
                    self.memtable.ingest(self.records[partition][offset], offset=offset)

    def begin(self) -> None:
        self.reader.begin_flush()
        self.kept = self.reader.to_json()

    def write(self, most: int | None = None) -> None:
        """Write chunks, or only some of them; those that are there are skipped."""
        own = chunk_id(self.reader.number, "0123456789abcdef", 0)
        index = ChunkIndex(self.chunks)
        for chunk in self.memtable.flush().chunks[:most]:
            if not index.has(chunk.with_id(own), minimum=own):
                self.chunks.append(chunk.with_id(own))

    def end(self) -> None:
        self.reader.end_flush()
        self.kept = self.reader.to_json()
        self.memtable.clear()


class Twins:
    """A reader of a flow, and the outsider's program beside it."""

    def __init__(self, at: Path, seed: int) -> None:
        self.draw = Random(seed)
        self.records: dict[int, list[Reading]] = {partition: [] for partition in range(PARTITIONS)}
        self.address = f"memory://{at.name}-{seed}"
        flow = table_flow(self.address, state_partitions=1)
        self.service = Rehearsal(
            flow,
            partitions={TOPIC: PARTITIONS},
            reader="0-",
            settings=Settings(max_records=self.draw.randrange(5, 20)),
        )
        self.outsider = Outsider(self.draw, self.records)
        self.known = self.pending = -1
        self.repeated = 0

    def feed(self) -> None:
        for _ in range(self.draw.randrange(12)):
            partition = self.draw.randrange(PARTITIONS)
            reading = Reading(
                f"r{partition}-{self.draw.randrange(3)}", self.draw.randrange(5), self.draw.random()
            )
            self.service.feed(TOPIC, reading, partition=partition)
            self.records[partition].append(reading)

    def step(self) -> bool:
        """A batch of the service, which may crash anywhere; whether there was nothing to do."""
        if self.draw.random() < 0.4:
            self.service.crash_at_call(self.draw.randrange(45), self.draw.choice(["before", "after"]))
        crashed, idle = False, False
        try:
            idle = not self.service.batch()
        except Crash:
            crashed, self.service.service = True, None
        self.service.cancel()
        self.follow(crashed=crashed)
        return idle and not crashed

    def follow(self, *, crashed: bool) -> None:
        """Take the outsider through what the service has sealed and flushed meanwhile."""
        outsider, last = self.outsider, self.last_plan()
        for number in range(self.known + 1, last + 1):
            ranges = self.ranges(number)
            self.known = number
            if not ranges:
                continue
            self.finish()  # what was sealed before is done before anything new is
            for partition, (start, _) in ranges.items():
                assert outsider.reader.position(name_of(partition)) == start
            outsider.read(ranges)
            outsider.begin()
            self.pending = number
            assert outsider.reader.flushing == {
                name_of(partition): input_range for partition, input_range in ranges.items()
            }
        if outsider.reader.flushing is not None and self.flushed() >= self.pending:
            self.finish()
        if crashed:
            self.crash()

    def finish(self) -> None:
        """End the flush that is under way, if there is one."""
        outsider = self.outsider
        if outsider.reader.flushing is None:
            return
        if outsider.reader.until(name_of(0)) is not None:  # a crash has cut it off
            self.repeated += 1
            outsider.read(self.ranges_of(outsider.reader.flushing))
            outsider.reader.begin_flush()
        outsider.write()
        if self.draw.random() < 0.3:  # the table has it, and nobody knows
            outsider.crash()
            outsider.read(self.ranges_of(outsider.reader.flushing or {}))
            outsider.reader.begin_flush()
            outsider.write()
        outsider.end()

    def crash(self) -> None:
        """The outsider dies, too: with rows of the next memtable, and with a part of its chunks written."""
        outsider, reader = self.outsider, self.outsider.reader
        flushing = reader.flushing
        if flushing is not None and reader.until(name_of(0)) is None:
            outsider.write(self.draw.randrange(4))
        if flushing is None:
            partition = self.draw.randrange(PARTITIONS)
            stop = self.draw.randrange(len(self.records[partition]) + 1)
            outsider.read({partition: (0, stop)})
        outsider.crash()
        assert outsider.reader.active == {}
        assert outsider.reader.flushing == flushing
        for partition, (start, stop) in self.ranges_of(flushing or {}).items():
            at = outsider.reader.position(name_of(partition)), outsider.reader.until(name_of(partition))
            assert at == (start, stop)

    # ------------------------------------------------------------------ what the service has kept

    def last_plan(self) -> int:
        home, _ = self.service.stores[""].home(self.service.flow.name)
        return -1 if home is None else home.number

    def ranges(self, number: int) -> dict[int, tuple[int, int]]:
        data = self.service.stores[""].plan(self.service.flow.name, number)
        assert data is not None
        return {
            input_range.partition: (input_range.start, input_range.stop)
            for input_range in Plan.from_bytes(data).ranges
            if input_range.start < input_range.stop
        }

    @staticmethod
    def ranges_of(found: dict[str, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        return {int(name.rpartition("/")[2]): own for name, own in found.items()}

    def flushed(self) -> int:
        """The last plan with rows in the table."""
        try:
            chunks = open_table(f"{self.address}/readings").chunks()
        except Exception:  # noqa: BLE001 - it is not there yet
            return -1
        return max((int(chunk.name.chunk_id.partition("-")[0]) for chunk in chunks), default=-1)

    def reported(self) -> dict[str, int]:
        """How far all rows are in the table, as the service has reported last."""
        events = self.service.events("flushed")
        found: Any = events[-1]["offsets"] if events else {}
        return {name: offset for name, offset in found.items() if offset}

    def chunks(self) -> list[list[Seen]]:
        """The chunks of the service's table, flush by flush."""
        return by_flush(open_table(f"{self.address}/readings").chunks())


def by_flush(chunks: list[ChunkInfo]) -> list[list[Seen]]:
    found: dict[str, list[Seen]] = {}
    for chunk in chunks:
        seen = (chunk.name.partition_key, chunk.start_key, chunk.end_key, chunk.rows, chunk.content_hash)
        found.setdefault(chunk.name.chunk_id, []).append(seen)
    return [sorted(found[own]) for own in sorted(found)]


@pytest.mark.parametrize("seeds", [range(start, start + 10) for start in range(0, 40, 10)], ids=str)
def test_plain_objects_and_the_readers_of_a_flow_go_by_one_rule(tmp_path: Path, seeds: range) -> None:
    crashes = repeated = 0
    for seed in seeds:
        twins = Twins(tmp_path, seed)
        for _ in range(25):
            twins.feed()
            twins.step()
        while not twins.step():
            pass
        outsider = twins.outsider
        expected = {name_of(partition): len(record) for partition, record in twins.records.items() if record}
        assert outsider.reader.flushed == twins.reported() == expected
        assert by_flush(outsider.chunks) == twins.chunks()
        crashes, repeated = crashes + outsider.crashes, repeated + twins.repeated
    assert crashes > 20
    assert repeated > 3
