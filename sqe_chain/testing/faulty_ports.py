"""The ports of a service with faults around each call: broker, stores, and the tables of sinks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar, cast

from sqe_chain.ports import (
    Commit,
    Header,
    Home,
    Log,
    Message,
    Output,
    Range,
    Rows,
    Sink,
    StateStore,
    TopicPartition,
    Views,
    Writer,
)
from sqe_chain.testing.faults import FaultScript, Port


@dataclass(slots=True)
class FaultyWriter(Writer):
    """A writer with injected faults; each record counts as one write."""

    inner: Writer
    script: FaultScript
    number: int = field(default_factory=itertools.count().__next__)

    def connect(self, topics: Sequence[str]) -> None:
        self.script.before("broker")
        self.inner.connect(topics)

    def write(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            with self.script.writing("broker", f"publish to {output[0]}[{output[1]}]"):
                self.inner.write([output])
                self.script.took_effect("publish", output, self.number)

    def flush(self) -> None:
        self.script.before("broker")
        self.inner.flush()
        self.script.after("broker")

    def close(self) -> None:
        self.inner.close()


class FaultyPort:
    """A port with faults around the calls that a subclass names; everything else is the port's own.

    Attributes:
        of: what it is called in faults.
        asks: calls that a fault can only precede.
        reads: calls that read: their replies can be lost too.
        writes: calls that write -> what is written, with their arguments to be filled in.
    """

    of: ClassVar[Port]
    asks: ClassVar[frozenset[str]] = frozenset()
    reads: ClassVar[frozenset[str]]
    writes: ClassVar[Mapping[str, str]] = {}

    def __init__(self, inner: Any, script: FaultScript) -> None:  # noqa: ANN401 - any port
        self.inner = inner
        self.script = script

    def __repr__(self) -> str:
        return repr(self.inner)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        attribute = getattr(self.inner, name)
        if name in self.asks or name in self.reads:
            return partial(self._read, name, attribute)
        return partial(self._write, name, attribute) if name in self.writes else attribute

    def _read(self, name: str, call: Any, *arguments: object, **named: object) -> object:  # noqa: ANN401 - a call
        self.script.before(self.of)
        answer = call(*arguments, **named)
        if name in self.reads:
            self.script.after(self.of)
        return answer

    def _write(self, name: str, call: Any, *arguments: object, **named: object) -> object:  # noqa: ANN401 - a call
        with self.script.writing(self.of, self.writes[name].format(*arguments)):
            return call(*arguments, **named)


class _FaultyLog(FaultyPort):
    of = "broker"
    asks = frozenset({"offsets_at"})
    reads = frozenset({"describe", "topic_ids", "bounds", "committed"})
    writes: ClassVar = {"delete_topic": "delete topic {}", "delete_group": "delete group {}"}

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        self.script.before("broker")
        for block in self.inner.read(read_range):
            yield block
            self.script.before("broker")

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
        return [[message for block in self.read(read_range) for message in block] for read_range in ranges]

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        with self.script.writing("broker", f"commit of {group}"):
            self.inner.commit(group, commits)
            self.script.took_effect("commit", group, commits)

    def writer(self) -> FaultyWriter:
        return FaultyWriter(self.inner.writer(), self.script)


class _FaultyStore(FaultyPort):
    of = "store"
    asks = frozenset({"check", "beat", "scan"})
    reads = frozenset({"home", "plan", "headers", "read", "locations"})
    writes: ClassVar = {
        "set_locations": "locations of {0}: epoch {1.epoch}, plan {1.number}",
        "forget": "forget home of {}",
        "forget_part": "forget {}/{}/{}",
        "forget_locations": "forget locations of {}",
    }

    def set_home(self, flow: str, before: Home | None, after: Home, *plan: Any, **named: Any) -> Home | None:  # noqa: ANN401
        with self.script.writing("store", f"home of {flow}: epoch {after.epoch}, plan {after.number}"):
            stored: Home | None = self.inner.set_home(flow, before, after, *plan, **named)
            self.script.took_effect("home", self.inner, flow, stored)
        return stored

    def write(
        self,
        flow: str,
        stage: str,
        part: int,
        before: Header | None,
        after: Header,
        rows: Rows,
        views: Views | None = None,
    ) -> Header | None:
        begun = " and part of the next" if after.begun_id else ""
        what = f"{flow}/{stage}/{part}: {len(rows)} rows, plan {after.number}{begun}"
        with self.script.writing("store", what):
            stored: Header | None = self.inner.write(flow, stage, part, before, after, rows, views)
            self.script.took_effect("state", self.inner, flow, stage, part, after, stored)
        return stored


class FaultyStorage(FaultyPort):
    """The place of a table, or the rows of one, with injected faults: at every file, and every commit."""

    of = "table"
    reads = frozenset(
        {"snapshot", "snapshot_again", "written", "absent", "lost", "definition", "heads", "sets", "index_of"}
    )
    writes: ClassVar = dict.fromkeys(
        ("create", "add_columns", "put", "commit", "replace", "overwrite", "define", "compare_and_set"), ""
    )

    def _write(self, name: str, call: Any, *arguments: object, **named: object) -> object:  # noqa: ANN401 - a call
        what = f"{self.inner!r}: {name} {named.get('what', '')}".rstrip()
        with self.script.writing("table", what):
            answer = call(*arguments, **named)
            self.script.took_effect("table", name, *arguments)
        return answer


class _FaultyRows(FaultyStorage):
    """The rows of a table of chunks: a crash can also come between one row and the next, which are written in no order."""

    def write_pieces(self, chunks: Iterable[Sequence[object]]) -> None:
        for piece in chunks:
            self._write("write_pieces", self.inner.write_pieces, [piece])

    def write_index(self, part: int, rows: Sequence[object]) -> None:
        for row in rows:
            self._write("write_index", self.inner.write_index, part, [row])


def faulty_log(log: Log, script: FaultScript) -> Log:
    """A log with injected faults."""
    return cast("Log", _FaultyLog(log, script))


def faulty_store(store: StateStore, script: FaultScript) -> StateStore:
    """A store with injected faults."""
    return cast("StateStore", _FaultyStore(store, script))


def faulty_sink(sink: Sink, script: FaultScript) -> Sink:
    """The sink, with faults around each call of the place of its table, and there of each row; another kind of sink as it is."""
    original: Any = sink
    wrappable = is_dataclass(original) and hasattr(original, "storage")
    if not wrappable:
        return sink
    storage = original.storage
    if hasattr(storage, "rows"):  # of chunks: a crash between any two rows is one of its own
        storage = replace(storage, rows=_FaultyRows(storage.rows, script))
    else:
        storage = FaultyStorage(storage, script)
    wrapped: Sink = replace(original, storage=storage)
    return wrapped
