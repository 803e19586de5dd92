"""What a world must give: one fold, in plain Python, over the first deliveries of all facts in the order of their times.

Nothing of the package is used here: keys are spread by a hash of its own, windows, joins and timers are lists and dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from tests.lab.event_time_worlds.world import BEAT, UNIT_MS

SIZE_MS: Final = 5 * UNIT_MS
"""Length of windows, and whatever else takes its time."""
ADVANCE_MS: Final = 2 * UNIT_MS + 500
GAP_MS: Final = 3 * UNIT_MS
BEFORE_MS, AFTER_MS = 2 * UNIT_MS, 3 * UNIT_MS
EXPIRY_MS: Final = 12 * UNIT_MS
DELETED: Final = 5
"""Every fifth change of a table deletes its key."""
AGAIN: Final = 3
"""A timer that finds a multiple of this number is set again."""

Value = dict[str, Any]
Given = tuple[str, Value]
"""Key and value of a result."""
Due = tuple[int, str, Value]
"""The same of what a moment has caused, after it."""


class Delivery(NamedTuple):
    """A fact as a reader gets it first. They are compared as tuples: that is the order in which readers take them."""

    at_ms: int
    topic: str
    partition: int
    offset: int
    key: str
    number: int
    second: bool


class Part(Protocol):
    """One state partition of a stage."""

    def accept(self, delivery: Delivery) -> Iterable[Given]:
        """Take a fact, when all is done that was due by its time: what results."""

    def reach(self, at_ms: float) -> Iterable[Due]:
        """Event time has come so far: what results, moment by moment."""

    def states(self) -> dict[tuple[Any, ...], Any]:
        """What is stored."""

    def close(self) -> Iterable[Given]:
        """The end of all input."""


class Windows:
    """Windows of fixed sizes; each closes when event time reaches its end."""

    def __init__(self, spans: Callable[[int], Iterable[tuple[int, int]]]) -> None:
        self.spans = spans
        self.found: dict[tuple[str, int, int], list[Any]] = {}
        self.closed: set[tuple[str, int, int]] = set()

    def accept(self, delivery: Delivery) -> Iterable[Given]:
        self.add(delivery.at_ms, delivery.key, delivery.number)
        return ()

    def add(self, at_ms: int, key: str, item: object) -> None:
        for start_ms, end_ms in self.spans(at_ms):
            assert (key, start_ms, end_ms) not in self.closed, "lanes are in order, so nothing is late"
            self.found.setdefault((key, start_ms, end_ms), []).append(item)

    def reach(self, at_ms: float) -> Iterator[Due]:
        due = [one for one in self.found if one not in self.closed and one[2] <= at_ms]
        for one in sorted(due, key=lambda one: (one[2], one[0], one[1])):
            self.closed.add(one)
            yield (
                one[2],
                one[0],
                {"key": one[0], "start_ms": one[1], "end_ms": one[2], "state": {"ns": self.found[one]}},
            )

    def states(self) -> dict[tuple[Any, ...], Any]:
        return dict(self.found)

    def close(self) -> Iterator[Given]:
        yield from ((key, value) for _, key, value in self.reach(float("inf")))


def tumbling(at_ms: int) -> list[tuple[int, int]]:
    """The window of a time."""
    return [(at_ms - at_ms % SIZE_MS, at_ms - at_ms % SIZE_MS + SIZE_MS)]


def wide(at_ms: int) -> list[tuple[int, int]]:
    """The window of a time at the second level."""
    return [(at_ms - at_ms % (3 * SIZE_MS), at_ms - at_ms % (3 * SIZE_MS) + 3 * SIZE_MS)]


def hopping(at_ms: int) -> list[tuple[int, int]]:
    """The windows of a time that overlap."""
    first = (at_ms - SIZE_MS) // ADVANCE_MS + 1
    return [(n * ADVANCE_MS, n * ADVANCE_MS + SIZE_MS) for n in range(first, at_ms // ADVANCE_MS + 1)]


class Sessions:
    """Sessions of a key; each closes when event time is farther away than the gap."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[int, int, list[int]]] = {}
        self.over: dict[tuple[Any, ...], list[int]] = {}

    def accept(self, delivery: Delivery) -> Iterable[Given]:
        start_ms, _, numbers = self.open.get(delivery.key, (delivery.at_ms, 0, []))
        self.open[delivery.key] = start_ms, delivery.at_ms, [*numbers, delivery.number]
        return ()

    def reach(self, at_ms: float) -> Iterator[Due]:
        due = sorted((end_ms, key) for key, (_, end_ms, _) in self.open.items() if end_ms + GAP_MS < at_ms)
        for end_ms, key in due:
            start_ms, _, numbers = self.open.pop(key)
            self.over[key, start_ms, end_ms] = numbers
            state = {"key": key, "start_ms": start_ms, "end_ms": end_ms, "state": {"ns": numbers}}
            yield end_ms + GAP_MS + 1, key, state

    def states(self) -> dict[tuple[Any, ...], Any]:
        return self.over | {(key, start, end): numbers for key, (start, end, numbers) in self.open.items()}

    def close(self) -> Iterator[Given]:
        yield from ((key, value) for _, key, value in self.reach(float("inf")))


@dataclass
class Stateless:
    """What has no states that are compared, no end, and nothing that is due."""

    def reach(self, at_ms: float) -> Iterable[Due]:
        del at_ms
        return ()

    def states(self) -> dict[tuple[Any, ...], Any]:
        return {}

    def close(self) -> Iterable[Given]:
        return ()


@dataclass
class Table(Stateless):
    """The second stream is a table; each value of the first joins the value of its key in the table."""

    current: dict[str, int | None] = field(default_factory=dict)

    def accept(self, delivery: Delivery) -> Iterator[Given]:
        if delivery.second:
            self.current[delivery.key] = None if delivery.number % DELETED == 0 else delivery.number
        else:
            yield (
                delivery.key,
                {"k": delivery.key, "n": delivery.number, "other": self.current.get(delivery.key)},
            )


@dataclass
class Streams(Stateless):
    """Pairs whose times are close to each other; and values of the first stream that found nobody."""

    firsts: list[Delivery] = field(default_factory=list)
    seconds: list[Delivery] = field(default_factory=list)
    alone: dict[int, Delivery] = field(default_factory=dict)

    def reach(self, at_ms: float) -> Iterator[Due]:
        due = [first for first in self.alone.values() if first.at_ms + AFTER_MS < at_ms]
        for first in sorted(due, key=lambda first: (first.at_ms, first.key)):
            del self.alone[first.number]
            value = {"k": first.key, "n": first.number, "other": None}
            yield first.at_ms + AFTER_MS + 1, first.key, value

    def accept(self, delivery: Delivery) -> Iterator[Given]:
        if delivery.second:
            pairs = [(first, delivery) for first in self.firsts]
            self.seconds.append(delivery)
        else:
            pairs = [(delivery, second) for second in self.seconds]
            self.firsts.append(delivery)
            self.alone[delivery.number] = delivery
        for first, second in pairs:
            if first.key == second.key and -BEFORE_MS <= second.at_ms - first.at_ms <= AFTER_MS:
                self.alone.pop(first.number, None)
                yield first.key, {"k": first.key, "n": first.number, "other": second.number}


class Timers:
    """Numbers of each key, which timers publish; without new ones they are forgotten."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = {}
        self.timers: dict[tuple[str, str], int] = {}
        self.expiry: dict[str, int] = {}

    def accept(self, delivery: Delivery) -> Iterable[Given]:
        self.numbers.setdefault(delivery.key, []).append(delivery.number)
        self.expiry[delivery.key] = delivery.at_ms + EXPIRY_MS
        self.timers[delivery.key, "" if delivery.number % 2 else "even"] = delivery.at_ms + SIZE_MS
        return ()

    def reach(self, at_ms: float) -> Iterator[Due]:
        while True:
            due = [(t, key, 0, name) for (key, name), t in self.timers.items() if t <= at_ms]
            due += [(t, key, 1, "") for key, t in self.expiry.items() if t <= at_ms]
            if not due:
                return
            t, key, expires, name = min(due)
            if expires:
                del self.numbers[key], self.expiry[key]
                self.timers = {one: set_for for one, set_for in self.timers.items() if one[0] != key}
                continue
            del self.timers[key, name]
            yield t, key, {"k": key, "t": t, "name": name, "ns": list(self.numbers[key])}
            if len(self.numbers[key]) % AGAIN == 0:
                self.timers[key, name] = t + SIZE_MS

    def states(self) -> dict[tuple[Any, ...], Any]:
        return {(key,): numbers for key, numbers in self.numbers.items()}

    def close(self) -> Iterable[Given]:
        return ()


@dataclass
class First(Stateless):
    """The first of each key in each window; the stage behind it lists those, in whatever order it gets them."""

    interval: bool
    last: dict[str, int] = field(default_factory=dict)
    listed: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def accept(self, delivery: Delivery) -> Iterator[Given]:
        before = self.last.get(delivery.key)
        if before is not None and (
            delivery.at_ms - before <= SIZE_MS
            if self.interval
            else before // SIZE_MS == delivery.at_ms // SIZE_MS
        ):
            return
        self.last[delivery.key] = delivery.at_ms
        self.listed.setdefault((delivery.key,), []).append(delivery.number)
        yield delivery.key, {"k": delivery.key, "n": delivery.number}

    def states(self) -> dict[tuple[Any, ...], Any]:
        return {key: sorted(numbers) for key, numbers in self.listed.items()}


MAKERS: Final[dict[str, Callable[[], Part]]] = {
    "tumbling": lambda: Windows(tumbling),
    "hopping": lambda: Windows(hopping),
    "sessions": Sessions,
    "chained": lambda: Windows(tumbling),
    "table": Table,
    "stream": Streams,
    "timers": Timers,
    "distinct": lambda: First(interval=False),
    "deduplicate": lambda: First(interval=True),
}


class Reference:
    """What a reader must have stored and published.

    Args:
        kind: what it does.
        state_partitions: of its flow.
        deliveries: the facts.
        beats: whether those of one key are heartbeats.

    Attributes:
        results: state partition of the last stage -> its results, in order.
    """

    def __init__(
        self,
        kind: str,
        state_partitions: int,
        deliveries: Iterable[Delivery],
        *,
        beats: bool = False,
    ) -> None:
        self.parts = [MAKERS[kind]() for _ in range(state_partitions)]
        self.second = [Windows(wide) for _ in range(state_partitions)] if kind == "chained" else []
        self.results: list[list[Given]] = [[] for _ in range(state_partitions)]
        self.last_ms = 0
        last_ms = 0
        for delivery in sorted(deliveries):
            last_ms = delivery.at_ms
            self._reach(last_ms)
            if not (beats and delivery.key == BEAT):
                self._publish(self.parts[spread(delivery.key, state_partitions)].accept(delivery))
        self.last_ms = last_ms

    def _reach(self, at_ms: int) -> None:
        """Event time has come so far, in all state partitions: each publishes what is due moment by moment."""
        for part in self.parts:
            for moment_ms, given in groupby(part.reach(at_ms), key=itemgetter(0)):
                self._publish(self._passed_on(moment_ms - 1, (one[1:] for one in given)))
        self._reach_second(at_ms)

    def _reach_second(self, at_ms: int) -> None:
        for one in self.second:
            for _, given in groupby(one.reach(at_ms), key=itemgetter(0)):
                self._publish(of[1:] for of in given)

    def _passed_on(self, at_ms: int, given: Iterable[Given]) -> Iterator[Given]:
        """What goes out of what the first stage has given, after the last stage has taken it where there are two."""
        for key, value in given:
            if not self.second:
                yield key, value
                continue
            self._reach_second(at_ms)
            group = key_of_group(key)
            self.second[spread(group, len(self.second))].add(at_ms, group, [key, value["start_ms"]])

    def _publish(self, given: Iterable[Given]) -> None:
        """Results of one input or moment are published key by key."""
        by_key: dict[str, list[Given]] = {}
        for key, value in given:
            by_key.setdefault(key, []).append((key, value))
        for key, some in by_key.items():
            self.results[spread(key, len(self.results))] += some

    def close(self) -> None:
        """All windows close, in each state partition."""
        for part in self.parts:
            self._publish(self._passed_on(self.last_ms, part.close()))
        for one in self.second:
            self._publish(one.close())

    def states(self) -> dict[tuple[Any, ...], Any]:
        """The states of the last stage."""
        return {key: state for part in self.second or self.parts for key, state in part.states().items()}


def key_of_group(key: str) -> str:
    """Keys of the second level: there are two."""
    return "odd" if ord(key[0]) % 2 else "even"


def spread(key: str, partitions: int) -> int:
    """The partition of a key: murmur2, as Kafka's clients do it."""
    data, rest = key.encode(), len(key) & 3
    mask, value = 0xFFFFFFFF, 0x9747B28C ^ len(data)
    for at in range(0, len(data) - rest, 4):
        word = int.from_bytes(data[at : at + 4], "little") * 0x5BD1E995 & mask
        word = (word ^ word >> 24) * 0x5BD1E995 & mask
        value = (value * 0x5BD1E995 & mask) ^ word
    if rest:
        value = (value ^ int.from_bytes(data[len(data) - rest :], "little")) * 0x5BD1E995 & mask
    value = (value ^ value >> 13) * 0x5BD1E995 & mask
    return ((value ^ value >> 15) & 0x7FFFFFFF) % partitions
