"""Goal: a user who has read the reference alone can ask how far a reader is and where a restart begins, one record at a time.

Method: vectors written down by hand: steps with the answer of each, and where the reader is after them. A crash is a step: what was kept
last is loaded. Then one scenario with both memtables, that is crashed after each of its steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from sqe_chain import errors
from sqe_chain.ext.tables import ChunkIndex, ChunkInfo, Memtable, ReaderOffsets, TableSchema, chunk_id

Step = tuple[Any, ...]
A, B = "readings/0", "readings/1"
NEW, OLD, GAP = True, False, "ReadOutOfOrder"


@dataclass(frozen=True)
class Vector:
    """Steps, and where the reader is after them.

    Steps: ``(partition, offset, answer)`` a record; ``("begin", number)``, ``("end",)`` a flush; ``("keep",)``, ``("crash",)``; an answer may
    be the name of an error.

    Attributes:
        name: what it shows.
        steps: in their order.
        at: partition -> where it goes on reading, and how far a flush goes that is repeated.
        flushed: what is in the table.
        active: of the active memtable.
        flushing: of the one that is flushed.
        number: of the flush.
        begin: where it began.
    """

    name: str
    steps: list[Step]
    at: dict[str, tuple[int, int | None]]
    flushed: dict[str, int] = field(default_factory=dict)
    active: dict[str, tuple[int, int]] = field(default_factory=dict)
    flushing: dict[str, tuple[int, int]] | None = None
    number: int = 0
    begin: dict[str, int] = field(default_factory=dict)


def read(partition: str, first: int, last: int) -> list[Step]:
    return [(partition, offset, NEW) for offset in range(first, last + 1)]


FLUSHED = [*read(A, 0, 4), ("begin", 0), ("keep",), ("end",), ("keep",)]
CUT = [*read(A, 0, 4), *read(B, 7, 8), ("begin", 0), ("keep",), ("crash",)]

VECTORS = [
    Vector("at its beginning", [], {A: (0, None), B: (0, None)}),
    Vector("begun elsewhere", [], {A: (10, None), B: (0, None)}, begin={A: 10}, flushed={A: 10}),
    Vector("a record", [(A, 0, NEW)], {A: (1, None)}, active={A: (0, 1)}),
    Vector("the same record again", [(A, 0, NEW), (A, 0, OLD)], {A: (1, None)}, active={A: (0, 1)}),
    Vector("one before where it began", [(A, 9, OLD)], {A: (10, None)}, begin={A: 10}, flushed={A: 10}),
    Vector("the one where it began", [(A, 10, NEW)], {A: (11, None)}, begin={A: 10}, flushed={A: 10}, active={A: (10, 11)}),
    Vector("offsets with holes", [(A, 3, NEW), (A, 9, NEW)], {A: (10, None)}, active={A: (0, 10)}),
    Vector("one in a hole comes too late", [(A, 3, NEW), (A, 9, NEW), (A, 5, OLD)], {A: (10, None)}, active={A: (0, 10)}),
    Vector("a large offset", [(A, 2**62, NEW)], {A: (2**62 + 1, None)}, active={A: (0, 2**62 + 1)}),
    Vector("two partitions do not meet", [(A, 5, NEW), (B, 2, NEW), (A, 2, OLD), (B, 5, NEW)], {A: (6, None), B: (6, None)},
           active={A: (0, 6), B: (0, 6)}),
    Vector("a broker that repeats itself", [*read(A, 0, 4), *[(A, offset, OLD) for offset in range(5)], (A, 5, NEW)],
           {A: (6, None)}, active={A: (0, 6)}),
    Vector("a flush begins", [*read(A, 0, 4), ("begin", 0)], {A: (5, None)}, flushing={A: (0, 5)}),
    Vector("the next memtable fills meanwhile", [*read(A, 0, 4), ("begin", 0), *read(A, 5, 6)], {A: (7, None)},
           flushing={A: (0, 5)}, active={A: (5, 7)}),
    Vector("what is flushed is not taken again", [*read(A, 0, 4), ("begin", 0), (A, 4, OLD)], {A: (5, None)}, flushing={A: (0, 5)}),
    Vector("only one flush at a time", [*read(A, 0, 4), ("begin", 0), ("begin", "ConfigurationError")], {A: (5, None)}, flushing={A: (0, 5)}),
    Vector("no end without a beginning", [*read(A, 0, 4), ("end", "ConfigurationError")], {A: (5, None)}, active={A: (0, 5)}),
    Vector("a flush is durable", FLUSHED, {A: (5, None)}, flushed={A: 5}, number=1),
    Vector("after it, rows before it are old", [*FLUSHED, (A, 4, OLD), (A, 5, NEW)], {A: (6, None)}, flushed={A: 5},
           active={A: (5, 6)}, number=1),
    Vector("the next flush has the next number", [*FLUSHED, *read(A, 5, 6), ("begin", 1)], {A: (7, None)}, flushed={A: 5},
           flushing={A: (5, 7)}, number=1),
    Vector("a flush of nothing", [("begin", 0), ("end",)], {A: (0, None)}, number=1),
    Vector("a flush ends with more rows waiting", [*read(A, 0, 4), ("begin", 0), *read(A, 5, 6), ("end",)], {A: (7, None)},
           flushed={A: 5}, active={A: (5, 7)}, number=1),
    Vector("of two partitions one has rows", [*read(A, 0, 4), ("begin", 0), ("end",)], {A: (5, None), B: (0, None)}, flushed={A: 5}, number=1),
    Vector("a partition that comes later", [*FLUSHED, *read(B, 0, 1)], {A: (5, None), B: (2, None)}, flushed={A: 5},
           active={B: (0, 2)}, number=1),
    Vector("crash before anything was kept", [*read(A, 0, 4), ("crash",)], {A: (0, None)}),
    Vector("crash with an active memtable alone", [("keep",), *read(A, 0, 4), ("crash",)], {A: (0, None)}),
    Vector("kept with an active memtable: its rows are read again", [*read(A, 0, 4), ("keep",), ("crash",)], {A: (0, None)}),
    Vector("crash between the beginning of a flush and its keep", [*read(A, 0, 4), ("begin", 0), ("crash",)], {A: (0, None)}),
    Vector("crash after the keep: exactly these rows again", CUT, {A: (0, 5), B: (0, 9)}, flushing={A: (0, 5), B: (0, 9)}),
    Vector("crash with rows of the next memtable: they come after it",
           [*read(A, 0, 4), ("begin", 0), ("keep",), *read(A, 5, 9), ("crash",)], {A: (0, 5)}, flushing={A: (0, 5)}),
    Vector("kept again with rows of the next memtable",
           [*read(A, 0, 4), ("begin", 0), *read(A, 5, 9), ("keep",), ("crash",)], {A: (0, 5)}, flushing={A: (0, 5)}),
    Vector("crash after the flush, before its end was kept", [*read(A, 0, 4), ("begin", 0), ("keep",), ("end",), ("crash",)],
           {A: (0, 5)}, flushing={A: (0, 5)}),
    Vector("crash after its end was kept", [*FLUSHED, ("crash",)], {A: (5, None)}, flushed={A: 5}, number=1),
    Vector("crash after its end was kept, rows waiting", [*read(A, 0, 4), ("begin", 0), *read(A, 5, 6), ("end",), ("keep",), ("crash",)],
           {A: (5, None)}, flushed={A: 5}, number=1),
    Vector("repeated: a row after its end is refused", [*CUT, (A, 5, GAP)], {A: (0, 5), B: (0, 9)}, flushing={A: (0, 5), B: (0, 9)}),
    Vector("repeated: also when all before it were read", [*CUT, *read(A, 0, 4), (A, 5, GAP)], {A: (5, 5), B: (0, 9)},
           flushing={A: (0, 5), B: (0, 9)}, active={A: (0, 5)}),
    Vector("repeated: a partition that has no part in it is refused", [*CUT, ("readings/2", 0, GAP)],
           {A: (0, 5), "readings/2": (0, 0)}, flushing={A: (0, 5), B: (0, 9)}),
    Vector("repeated: it does not begin before all is read", [*CUT, *read(A, 0, 4), (B, 7, NEW), ("begin", GAP)],
           {A: (5, 5), B: (8, 9)}, flushing={A: (0, 5), B: (0, 9)}, active={A: (0, 5), B: (0, 8)}),
    Vector("repeated: it has not begun, so it does not end", [*CUT, ("end", "ConfigurationError")], {A: (0, 5)}, flushing={A: (0, 5), B: (0, 9)}),
    Vector("repeated: rows in any order of partitions", [*CUT, *read(B, 7, 8), *read(A, 0, 4), ("begin", 0)], {A: (5, None), B: (9, None)},
           flushing={A: (0, 5), B: (0, 9)}),
    Vector("repeated: old ones are old", [*CUT, (A, 0, NEW), (A, 0, OLD)], {A: (1, 5)}, flushing={A: (0, 5), B: (0, 9)}, active={A: (0, 1)}),
    Vector("repeated: with the same number, and then the next one",
           [*CUT, *read(A, 0, 4), *read(B, 7, 8), ("begin", 0), ("end",), *read(A, 5, 5), ("begin", 1)],
           {A: (6, None), B: (9, None)}, flushed={A: 5, B: 9}, flushing={A: (5, 6)}, number=1),
    Vector("repeated, and another crash before it begins", [*CUT, *read(A, 0, 4), ("keep",), ("crash",)], {A: (0, 5), B: (0, 9)},
           flushing={A: (0, 5), B: (0, 9)}),
    Vector("repeated, and another crash after it began", [*CUT, *read(A, 0, 4), *read(B, 7, 8), ("begin", 0), ("keep",), ("crash",)],
           {A: (0, 5), B: (0, 9)}, flushing={A: (0, 5), B: (0, 9)}),
    Vector("a second flush is cut off: back to the first", [*FLUSHED, *read(A, 5, 9), ("begin", 1), ("keep",), *read(A, 10, 12), ("crash",)],
           {A: (5, 10)}, flushed={A: 5}, flushing={A: (5, 10)}, number=1),
    Vector("a flush of nothing is cut off: nothing may be read before it is repeated", [*FLUSHED, ("begin", 1), ("keep",), ("crash",), (A, 5, GAP),
           ("begin", 1), ("end",), (A, 5, NEW)], {A: (6, None)}, flushed={A: 5}, active={A: (5, 6)}, number=2),
    Vector("begun elsewhere, cut off", [*read(A, 10, 11), ("begin", 0), ("keep",), ("crash",), (A, 9, OLD), (A, 10, NEW)], {A: (11, 12)},
           begin={A: 10}, flushed={A: 10}, flushing={A: (10, 12)}, active={A: (10, 11)}),
]  # fmt: skip


class Reader:
    """A reader, and what it has kept."""

    def __init__(self, begin: dict[str, int]) -> None:
        self.offsets = ReaderOffsets(begin)
        self.kept = self.offsets.to_json()

    def take(self, step: Step) -> None:
        if step[0] == "keep":
            self.kept = self.offsets.to_json()
        elif step[0] == "crash":
            self.offsets = ReaderOffsets.from_json(self.kept)
        else:
            self._ask(step)

    def _ask(self, step: Step) -> None:
        call = {"begin": self.offsets.begin_flush, "end": self.offsets.end_flush}.get(step[0])
        before = self.offsets.to_json()
        answer = step[-1] if len(step) > 1 else None
        if isinstance(answer, str):
            with pytest.raises(getattr(errors, answer)):
                self.offsets.accept(*step[:2]) if call is None else call()
            assert self.offsets.to_json() == before, "nothing has changed"
        elif call is None:
            assert self.offsets.accept(step[0], step[1]) is answer, step
        else:
            assert call() == answer, step


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_vectors(vector: Vector) -> None:
    reader = Reader(vector.begin)
    for step in vector.steps:
        reader.take(step)
    found = reader.offsets
    assert {one: (found.position(one), found.until(one)) for one in vector.at} == vector.at
    assert (found.flushed, found.active, found.flushing) == (vector.flushed, vector.active, vector.flushing)
    assert found.number == vector.number


SCHEMA = TableSchema.of(
    None, partition_key="robot", row_key="at", columns={"robot": "string", "at": "int64", "said": "int64"}
)
TOPIC = {
    A: [("r1", 1, 0), ("r2", 1, 1), ("r1", 2, 2), ("r1", 1, 3), ("r3", 1, 4)],
    B: [("r4", 1, 5), ("r4", 1, 6)],
}
AT = {A: [0, 1, 4, 5, 9], B: [3, 8]}
"""Offsets of the records of each partition; there are holes."""
EXPECTED = {("r1", 1): 3, ("r1", 2): 2, ("r2", 1): 1, ("r3", 1): 4, ("r4", 1): 6}


class Crash(Exception):
    pass


class World:
    """A topic, a table of chunks, what a reader keeps; and a crash after a number of steps, again and again until it gets through."""

    def __init__(self, steps: int | None) -> None:
        self.left = steps
        self.kept = ReaderOffsets().to_json()
        self.chunks: list[ChunkInfo] = []
        self.table: dict[tuple[str, int], tuple[int, int]] = {}

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if not self.left:
                raise Crash

    def life(self) -> None:
        reader = ReaderOffsets.from_json(self.kept)
        active = Memtable(SCHEMA, table="t")
        while True:
            for partition in (A, B):
                self.read(reader, active, partition)
            if not reader.active and reader.flushing is None:
                return
            number, flushing, active = reader.begin_flush(), active, Memtable(SCHEMA, table="t")
            self.step()
            self.kept = reader.to_json()
            self.step()
            self.read(reader, active, A)  # the next memtable fills while this one is flushed
            self.flush(number, flushing)
            reader.end_flush()
            self.step()
            self.kept = reader.to_json()
            self.step()

    def read(self, reader: ReaderOffsets, memtable: Memtable, partition: str) -> None:
        """Two records that are new, or all up to where a flush ends that is repeated."""
        until, taken = reader.until(partition), 0
        for offset, (robot, at, said) in zip(AT[partition], TOPIC[partition], strict=True):
            if (until is not None and offset >= until) or (until is None and taken == 2):
                break
            if reader.accept(partition, offset):
                taken += 1
                memtable.ingest({"robot": robot, "at": at, "said": said}, offset=offset)
                self.step()

    def flush(self, number: int, memtable: Memtable) -> None:
        own = chunk_id(number, "9c1185a5c5e9fc54", 0)
        index = ChunkIndex(self.chunks)
        flushed = memtable.flush(number * 1_000)
        for chunk in (one.with_id(own) for one in flushed.chunks):
            if index.has(chunk, minimum=own):
                continue
            for row in flushed.data.to_pylist():
                if row["robot"].encode() == chunk.name.partition_key:
                    self.table[row["robot"], row["at"]] = row["_sqe_sequence"], row["said"]
            self.chunks.append(chunk)
            self.step()


def through_a_crash(steps: int | None) -> tuple[World, bool]:
    found = World(steps)
    for lives in range(2):
        try:
            found.life()
        except Crash:
            continue
        return found, lives == 1
    raise AssertionError("it does not come to an end")


def test_a_crash_after_each_step_writes_the_same_chunks_each_once() -> None:
    plain, _ = through_a_crash(None)
    assert {key: said for key, (_, said) in plain.table.items()} == EXPECTED
    steps, crashed = 1, True
    while crashed:
        found, crashed = through_a_crash(steps)
        assert {key: said for key, (_, said) in found.table.items()} == EXPECTED, steps
        assert len(found.chunks) == len({chunk.name for chunk in found.chunks}), steps
        steps += 1
    assert steps > 20


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"number": -1, "flushed": {}, "flushing": null}', '{"number": 0, "flushed": {"a": -1}, "flushing": null}',
     '{"number": 0, "flushed": {"a": "1"}, "flushing": null}', '{"number": 0, "flushed": {}, "flushing": {"a": [1]}}'],
)  # fmt: skip
def test_other_texts_are_no_state(text: str) -> None:
    with pytest.raises(errors.ConfigurationError):
        ReaderOffsets.from_json(text)
