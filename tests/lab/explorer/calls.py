"""Ports that ask: each call of a run becomes a question to the explorer, which answers it, or lets the run wait."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.ports import (
    Bounds,
    Commit,
    Header,
    Home,
    Locations,
    Message,
    Output,
    Range,
    Rows,
    TopicInfo,
    TopicPartition,
    Views,
)

BROKER = "broker"
FILE = "file"
"""Ports that are no store."""


def frozen(value: object) -> Hashable:
    """A hashable value, equal for equal contents."""
    if isinstance(value, (list, tuple)):
        return tuple(map(frozen, value))
    if isinstance(value, Mapping):
        return tuple(sorted((frozen(key), frozen(one)) for key, one in value.items()))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, *(frozen(getattr(value, one.name)) for one in fields(value))
    return value if isinstance(value, Hashable) else repr(value)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of a port.

    Attributes:
        port: `broker`, `file`, or the name of a store after `store `.
        name: method of the port; what follows a blank only tells several calls of it apart.
        args: its arguments.
        key: the same for equal calls.
    """

    port: str
    name: str
    args: tuple[Any, ...]
    key: Hashable

    @classmethod
    def of(cls, port: str, name: str, *args: object) -> Call:
        """Make a call."""
        return cls(port, name, args, (port, name, frozen(args)))

    @property
    def method(self) -> str:
        """The method of the port."""
        return self.name.partition(" ")[0]

    @property
    def writes(self) -> bool:
        """Whether it may change something."""
        return self.method in {"set_home", "write", "set_locations", "commit", "publish", "beat", "save"}

    def __str__(self) -> str:
        """For people."""
        shown = [str(one) for one in self.args if isinstance(one, (str, int, Home, Header))]
        if self.method == "write" and len(self.args) > 5:
            shown.append(f"{len(self.args[5])} rows")
        if self.method in {"commit", "publish"}:
            shown = [str(self.args[0])]
        return f"{self.port}: {self.name}({', '.join(shown)})"


Ask = Callable[[Call], Any]


class AskingStore(MemoryStore):
    """A store whose calls are questions; limits and views are those of a store in memory.

    Args:
        inner: the store that answers, in the end; only its limits are used here.
        place: the name of its port.
        ask: asks a question.
        whole_reads: a read is one question; else header, rows and header are asked one after the other.
    """

    def __init__(self, inner: MemoryStore, place: str, ask: Ask, *, whole_reads: bool = False) -> None:
        super().__init__(inner.name, inner.max_rows, inner.max_bytes)
        self._place = f"store {place}".strip()
        self._ask = ask
        self._whole_reads = whole_reads

    def home(self, flow: str) -> tuple[Home | None, int]:
        return self._ask(Call.of(self._place, "home", flow))  # type: ignore[no-any-return]

    def set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None = None, drop_below: int = 0
    ) -> Home | None:
        return self._ask(Call.of(self._place, "set_home", flow, before, after, plan, drop_below))  # type: ignore[no-any-return]

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        return self._ask(Call.of(self._place, "beat", flow, epoch, run_id))  # type: ignore[no-any-return]

    def plan(self, flow: str, number: int) -> bytes | None:
        return self._ask(Call.of(self._place, "plan", flow, number))  # type: ignore[no-any-return]

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        return list(self._ask(Call.of(self._place, "headers", flow, stage, tuple(parts))))

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        args = flow, stage, part, tuple(keys)
        if self._whole_reads:
            before, rows, after = self._ask(Call.of(self._place, "read", *args))
        else:
            before = self._ask(Call.of(self._place, "read header-before", *args))[0]
            rows = self._ask(Call.of(self._place, "read rows", *args))[1]
            after = self._ask(Call.of(self._place, "read header-after", *args))[2]
        return before, list(rows), after

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
        args = flow, stage, part, before, after, tuple(rows), views
        return self._ask(Call.of(self._place, "write", *args))  # type: ignore[no-any-return]

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        yield from self._ask(Call.of(self._place, "scan", flow, stage, part))

    def locations(self, flow: str) -> Locations | None:
        return self._ask(Call.of(self._place, "locations", flow))  # type: ignore[no-any-return]

    def set_locations(self, flow: str, after: Locations) -> Locations | None:
        return self._ask(Call.of(self._place, "set_locations", flow, after))  # type: ignore[no-any-return]


class AskingWriter:
    """A writer each of whose records is a question."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def connect(self, topics: Sequence[str]) -> None:
        """See `Writer.connect`: the topics never change."""

    def write(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self._ask(Call.of(BROKER, "publish", output[0], output))

    def flush(self) -> None:
        """See `Writer.flush`: each record is acknowledged when it is written, or its writer hears that it may not be."""

    def close(self) -> None:
        """See `Writer.close`."""


class AskingLog:
    """A broker whose calls are questions, unless their answers never change: those about topics, and about inputs.

    Args:
        inner: the broker.
        ask: asks a question.
    """

    def __init__(self, inner: MemoryLog, ask: Ask) -> None:
        self._inner = inner
        self._ask = ask

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        return self._inner.describe(topics)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        return self._inner.topic_ids(topics)

    def create_topic(self, topic: str, partitions: int) -> None:
        raise NotImplementedError("no service creates topics")

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError("no service deletes topics")

    def delete_group(self, group: str) -> None:
        raise NotImplementedError("no service deletes groups")

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        return self._inner.bounds(partitions)

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        return self._inner.read(read_range)

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
        return self._inner.read_all(ranges)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        return dict(self._ask(Call.of(BROKER, "committed", group, tuple(sorted(partitions)))))

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        self._ask(Call.of(BROKER, "commit", group, dict(commits)))

    def writer(self) -> AskingWriter:
        return AskingWriter(self._ask)

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        return self._inner.offsets_at(partitions, timestamp_ms)
