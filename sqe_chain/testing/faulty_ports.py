"""The ports of a service whose calls a scheduler answers: broker, stores, and the tables of sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast

from sqe_chain.ports import Commit, Log, Membership, Message, Output, Range, Sink, StateStore, TopicPartition
from sqe_chain.ports.sink import WrappableSink
from sqe_chain.testing.faults import PortCall, Scheduler


class FaultyPort:
    """A port that asks its scheduler at the calls that a subclass names; everything else is the port's own.

    Args:
        inner: the port.
        scheduler: answers the calls.

    Attributes:
        of: what it is called in faults.
        reads: calls that read.
        writes: calls that write -> what is written, with their arguments to be filled in.
    """

    of: ClassVar[str]
    reads: ClassVar[frozenset[str]]
    writes: ClassVar[Mapping[str, str]]

    def __init__(self, inner: Any, scheduler: Scheduler) -> None:  # noqa: ANN401 - any port
        self.inner = inner
        self.scheduler = scheduler

    def __repr__(self) -> str:
        return repr(self.inner)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        attribute = getattr(self.inner, name)
        if name in self.reads or name in self.writes:
            return partial(self._call, name, attribute)
        return attribute

    def _call(self, name: str, call: Callable[..., object], *args: object, **named: object) -> Any:  # noqa: ANN401
        text = self._text(name, args, named) if name in self.writes else ""
        return self._ask(name, args, partial(call, *args, **named), text)

    def _ask(self, name: str, args: tuple[object, ...], make: Callable[[], object], text: str = "") -> Any:  # noqa: ANN401
        return self.scheduler.answer(PortCall(self.of, name, self.inner, args, text, make))

    def _text(self, name: str, args: tuple[Any, ...], _named: Mapping[str, object]) -> str:
        return self.writes[name].format(*args)


class _FaultyWriter(FaultyPort):
    """Each record counts as one write."""

    of = "broker"
    reads = frozenset({"connect", "flush"})
    writes: ClassVar = {"publish": "publish to {0[0]}[{0[1]}]"}

    def write(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self._call("publish", lambda output: self.inner.write([output]), output)


class _FaultyTransactionalWriter(_FaultyWriter):
    """Each record counts as one write, and so does each commit."""

    reads = frozenset[str]()
    writes: ClassVar = {**_FaultyWriter.writes, "commit_transaction": "commit of a transaction"}

    def commit(self) -> None:
        self._call("commit_transaction", self.inner.commit)


class _FaultyMember(FaultyPort):
    """Its commits are asked for like those of a log, with the name of the group."""

    of = "broker"
    reads = frozenset({"committed"})
    writes: ClassVar = {"commit": "commit of {}"}

    def __init__(self, inner: Membership, scheduler: Scheduler, group: str) -> None:
        super().__init__(inner, scheduler)
        self.group = group

    def commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        make = partial(self.inner.commit, commits)
        self._ask("commit", (self.group, commits), make, self._text("commit", (self.group,), {}))


class _FaultyLog(FaultyPort):
    of = "broker"
    reads = frozenset({"describe", "topic_ids", "bounds", "committed", "offsets_at", "read"})
    writes: ClassVar = {
        "commit": "commit of {}",
        "join": "join of {}",
        "transactional_writer": "fence of {}",
        "delete_topic": "delete topic {}",
        "delete_group": "delete group {}",
    }

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        blocks = iter(self.inner.read(read_range))
        while (block := self._ask("read", (read_range,), partial(next, blocks, None))) is not None:
            yield block

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
        return [[message for block in self.read(read_range) for message in block] for read_range in ranges]

    def join(self, group: str, topics: Iterable[str]) -> _FaultyMember:
        member = self._call("join", self.inner.join, group, topics)
        return _FaultyMember(member, self.scheduler, group)

    def writer(self) -> _FaultyWriter:
        return _FaultyWriter(self.inner.writer(), self.scheduler)

    def transactional_writer(
        self, transactional_id: str, topics: Iterable[str]
    ) -> _FaultyTransactionalWriter:
        writer = self._call(
            "transactional_writer", self.inner.transactional_writer, transactional_id, list(topics)
        )
        return _FaultyTransactionalWriter(writer, self.scheduler)


class _FaultyStore(FaultyPort):
    of = "store"
    reads = frozenset({"check", "beat", "home", "plan", "headers", "read", "locations", "scan"})
    writes: ClassVar = {
        "set_home": "home of {0}: epoch {2.epoch}, plan {2.number}",
        "write": "{0}/{1}/{2}: {rows} rows, plan {4.number}{part}",
        "set_locations": "locations of {0}: epoch {1.epoch}, plan {1.number}",
        "forget": "forget home of {}",
        "forget_part": "forget {}/{}/{}",
        "forget_locations": "forget locations of {}",
    }

    def scan(self, *cell: object) -> Iterator[tuple[bytes, bytes]]:
        rows: Iterable[tuple[bytes, bytes]] = self._ask("scan", cell, lambda: list(self.inner.scan(*cell)))
        return iter(rows)

    def _text(self, name: str, args: tuple[Any, ...], named: Mapping[str, object]) -> str:
        if name != "write":
            return super()._text(name, args, named)
        part = " and part of the next" if args[4].begun_id else ""
        return self.writes[name].format(*args, rows=len(args[5]), part=part)


class FaultyStorage(FaultyPort):
    """The place of a table, or the rows of one: its scheduler is asked at every file, and every commit."""

    of = "table"
    reads = frozenset(
        {"snapshot", "snapshot_again", "written", "absent", "lost", "definition", "heads", "sets", "index_of"}
    )
    writes: ClassVar = dict.fromkeys(
        (
            *("create", "add_columns", "put", "commit", "replace", "overwrite"),
            *("define", "compare_and_set", "write_pieces", "write_index"),
        ),
        "",
    )

    def _text(self, name: str, _args: tuple[Any, ...], named: Mapping[str, object]) -> str:
        return f"{self.inner!r}: {name} {named.get('what', '')}".rstrip()

    # Rows of chunks are written in no order, so a crash can also come between one row and the next.

    def write_pieces(self, chunks: Iterable[Sequence[object]]) -> None:
        for piece in chunks:
            self._call("write_pieces", self.inner.write_pieces, [piece])

    def write_index(self, part: int, rows: Sequence[object]) -> None:
        for row in rows:
            self._call("write_index", self.inner.write_index, part, [row])


def methods_of(port: str | None) -> set[str]:
    """The methods of a port, or of all, whose calls a scheduler answers."""
    kinds = [
        kind
        for kind in (_FaultyLog, _FaultyWriter, _FaultyTransactionalWriter, _FaultyStore, FaultyStorage)
        if port in {None, kind.of}
    ]
    return {name for kind in kinds for name in (*kind.reads, *kind.writes)}


def faulty_log(log: Log, scheduler: Scheduler) -> Log:
    """A log whose calls the scheduler answers."""
    return cast("Log", _FaultyLog(log, scheduler))


def faulty_store(store: StateStore, scheduler: Scheduler) -> StateStore:
    """A store whose calls the scheduler answers."""
    return cast("StateStore", _FaultyStore(store, scheduler))


def faulty_sink(sink: Sink, scheduler: Scheduler) -> Sink:
    """The sink, whose scheduler answers each call of the place of its table, and there of each row; another kind of sink as it is."""
    if not isinstance(sink, WrappableSink):
        return sink
    return sink.wrapped(partial(FaultyStorage, scheduler=scheduler))
