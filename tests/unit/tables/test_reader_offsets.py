"""Goal: a reader that crashes anywhere reads again what was not flushed, and flushes the same again. Method: record by record, with a table of sets."""

from __future__ import annotations

from random import Random

import pytest

from sqe_chain.errors import ConfigurationError, ReadOutOfOrder
from sqe_chain.ext.tables import ChunkIndex, ChunkInfo, Memtable, ReaderOffsets, TableSchema, chunk_id

PARTITIONS = ("readings/0", "readings/1")
RECORDS = {partition: [offset for offset in range(60) if offset % 7 != 3] for partition in PARTITIONS}
"""Offsets have holes."""
SCHEMA = TableSchema.of(
    None, partition_key="robot", row_key="at", columns={"robot": "string", "at": "int64", "said": "int64"}
)
PLAN = "9c1185a5c5e9fc54"


class World:
    """A topic, a table that keeps chunks, and what a reader keeps durably; the reader itself dies."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.written: list[ChunkInfo] = []
        self.rows: dict[tuple[str, int], int] = {}
        self.kept = ReaderOffsets().to_json()
        self.skipped = self.crashes = 0

    def crashes_here(self) -> bool:
        self.crashes += (found := self.draw.random() < 0.15)
        return found

    def life(self) -> bool:
        """From a start to a crash; whether all is flushed."""
        reader, memtable = ReaderOffsets.from_json(self.kept), Memtable(SCHEMA, table="readings")
        while True:
            repeating = reader.flushing is not None
            new = sum(self.read(reader, memtable, partition) for partition in PARTITIONS)
            if not new and not repeating:
                return True
            if self.crashes_here():
                return False
            number = reader.begin_flush()
            self.kept = reader.to_json()
            if self.crashes_here() or not self.flush(number, memtable):
                return False
            reader.end_flush()
            memtable.clear()
            if self.crashes_here():
                return False
            self.kept = reader.to_json()

    def read(self, reader: ReaderOffsets, memtable: Memtable, partition: str) -> int:
        until, begin = reader.until(partition), reader.position(partition)
        again = self.draw.randrange(4)  # the broker may give some twice
        given = [offset for offset in RECORDS[partition] if begin - again <= offset < (until or 60)]
        new = 0
        for offset in given if until is not None else given[: again + self.draw.randrange(5, 15)]:
            if reader.accept(partition, offset):
                new += 1
                memtable.ingest({"robot": partition, "at": offset // 2, "said": offset}, offset=offset)
        return new

    def flush(self, number: int, memtable: Memtable) -> bool:
        own, flushed = chunk_id(number, PLAN, 0), memtable.flush()
        index = ChunkIndex(self.written)
        cells = flushed.data.to_pylist()
        for found in flushed.chunks:
            chunk = found.with_id(own)
            if index.has(chunk, minimum=own):
                self.skipped += 1
                continue
            assert chunk.name not in {one.name for one in self.written}, "the same flush, with other rows"
            self.written.append(chunk)
            for cell in cells:
                if cell["robot"].encode() == chunk.name.partition_key:
                    self.rows[cell["robot"], cell["at"]] = cell["said"]
            if self.crashes_here():
                return False
        return True


def test_readers_that_crash_anywhere_write_each_chunk_once() -> None:
    skipped = crashes = 0
    for seed in range(30):
        world = World(Random(seed))
        while not world.life():
            pass
        expected = {(p, offset // 2): offset for p in PARTITIONS for offset in RECORDS[p]}
        assert world.rows == expected, seed
        skipped, crashes = skipped + world.skipped, crashes + world.crashes
    assert skipped > 10
    assert crashes > 50


def test_what_was_being_flushed_is_read_again_to_its_end_and_no_further() -> None:
    reader = ReaderOffsets({"a": 5})
    assert [reader.accept("a", 5), reader.accept("b", 0), reader.accept("b", 2)] == [True, True, True]
    reader.begin_flush()
    with pytest.raises(ConfigurationError, match="under way"):
        reader.begin_flush()
    assert reader.accept("a", 6)
    again = ReaderOffsets.from_json(reader.to_json())
    assert (again.position("a"), again.position("b"), again.active) == (5, 0, {})
    assert (again.until("a"), again.until("b"), again.until("c")) == (6, 3, 0)
    with pytest.raises(ReadOutOfOrder, match="after the end of flush 0"):
        again.accept("a", 6)
    with pytest.raises(ReadOutOfOrder, match="after the end of flush 0"):
        again.accept("c", 0)
    assert again.accept("a", 5)
    with pytest.raises(ReadOutOfOrder, match=r"b: flush 0 .* offsets 0 to 2 are missing"):
        again.begin_flush()
    with pytest.raises(ConfigurationError, match="no flush is under way"):
        again.end_flush()
    twice = ReaderOffsets.from_json(again.to_json())
    assert twice.flushing == {"a": (5, 6), "b": (0, 3)}
    assert [twice.accept("a", 5), twice.accept("b", 0), twice.accept("b", 2), twice.accept("b", 2)] == [
        True,
        True,
        True,
        False,
    ]
    assert twice.begin_flush() == 0
    twice.end_flush()
    assert '"flushing": null' in twice.to_json()
    assert twice.active == {}
    assert (twice.number, twice.flushed) == (1, {"a": 6, "b": 3})
    assert twice == ReaderOffsets.from_json(twice.to_json())


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"number": -1, "flushed": {}, "flushing": null}', '{"number": 0, "flushed": {"a": -1}, "flushing": null}',
     '{"number": 0, "flushed": {"a": "1"}, "flushing": null}', '{"number": 0, "flushed": {}, "flushing": {"a": [1]}}'],
)  # fmt: skip
def test_other_texts_are_no_state(text: str) -> None:
    with pytest.raises(ConfigurationError):
        ReaderOffsets.from_json(text)
