"""What a world must give, from its rows alone, and what it has given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sqe_chain import read
from sqe_chain.adapters.memory import MemoryLog
from tests.lab.moment_worlds.flows import DAY_MS, GAP_MS, SECOND_MS, SIZE_MS, Shape, Value, group_of
from tests.support.receiving import received

Window = tuple[str, int, int]
"""Key, beginning, end."""


class Given(NamedTuple):
    """A result that a reader takes.

    Attributes:
        value: what it is.
        timestamp_ms: its place.
        stated_ms: what its writer promised before: nothing comes that is older.
        root: the topic of its root.
    """

    value: Value
    timestamp_ms: int
    stated_ms: int | None
    root: str


def given_in(log: MemoryLog, topic: str) -> Iterator[Given]:
    """What a reader takes of a topic that ignores replays; these must have the content of what they repeat."""
    for message in received(topic, log.describe([topic])[topic].topic_id, log.records(topic)):
        one = read(message.value(), headers=message.headers())
        for value in one.payloads_as(dict):
            yield Given(value or {}, one.timestamp_ms, one.watermark_ms, one.chain.links[0].topic)


def windows_of(kind: str, rows: Iterable[Value]) -> dict[Window, list[int]]:
    """The windows of rows, each with the numbers of its rows."""
    found = defaultdict[Window, list[int]](list)
    if kind == "sessions":
        by_key = defaultdict[str, list[Value]](list)
        for row in rows:
            by_key[row["k"]].append(row)
        for key, unsorted in by_key.items():
            own = sorted(unsorted, key=lambda row: int(row["at"]))
            session = list[Value]()
            for row, after in zip(own, (*own[1:], None), strict=True):
                session.append(row)
                if after is None or after["at"] - row["at"] > GAP_MS:
                    found[key, session[0]["at"], row["at"]] = sorted(one["n"] for one in session)
                    session = []
        return dict(found)
    advance_ms = SIZE_MS if kind == "tumbling" else SECOND_MS
    for row in rows:
        start_ms = row["at"] // advance_ms * advance_ms
        while start_ms + SIZE_MS > row["at"]:
            found[row["k"], start_ms, start_ms + SIZE_MS].append(row["n"])
            start_ms -= advance_ms
    return {window: sorted(numbers) for window, numbers in found.items()}


def judge(log: MemoryLog, shape: Shape, rows: Iterable[Value], *, closed: bool) -> None:
    """Compare what the two flows have given with what rows give; once windows are closed, nothing may be missing.

    Raises:
        AssertionError: it differs.
    """
    for name in ("first", "second"):
        dropped = [read(one.value()).payloads for one in log.records(f"{name}.dropped")]
        assert not dropped, f"dropped: {name} has dropped {dropped[:2]}"
    if shape.passing:
        assert list(given_in(log, "passed")) or not log.records("first")
    wanted = windows_of(shape.kind, rows)
    first, times_ms = dict[Window, list[int]](), dict[Window, int]()
    for one in given_in(log, "first"):
        window = one.value["k"], one.value["start"], one.value["end"]
        assert window not in first, f"twice: {window}"
        first[window], times_ms[window] = one.value["ns"], one.timestamp_ms
        _check_place(one, window, shape)
    for window, numbers in first.items():
        assert wanted.get(window) == numbers, f"first: {window} has {numbers} for {wanted.get(window)}"
    assert not closed or first.keys() == wanted.keys(), f"first: {wanted.keys() - first.keys()} are missing"
    _judge_days(
        log, days_of(shape, first if closed or not shape.by_start else wanted, times_ms), closed=closed
    )


def _check_place(one: Given, window: Window, shape: Shape) -> None:
    """A result of a moment has the last millisecond before it, and none comes that its writer has ruled out."""
    if one.root.startswith("-due."):
        after_ms = one.timestamp_ms - window[2]
        assert after_ms == shape.after_end_ms, f"place: {window} has one {after_ms} ms after its end"
    else:
        assert one.root.startswith("sqe-chain.closing."), f"root: {one.root}"
    stated_ms = one.stated_ms or 0
    assert stated_ms <= one.timestamp_ms, (
        f"promise: {window} at {one.timestamp_ms} after {stated_ms} was stated"
    )


def days_of(
    shape: Shape, windows: Mapping[Window, list[int]], times_ms: Mapping[Window, int]
) -> dict[tuple[str, int], set[Any]]:
    """Group and day -> its windows."""
    days = defaultdict[tuple[str, int], set[Any]](set)
    for window, numbers in windows.items():
        at_ms = window[1] if shape.by_start else times_ms[window]
        days[group_of({"k": window[0]}), at_ms // DAY_MS * DAY_MS].add((*window, tuple(numbers)))
    return days


def _judge_days(log: MemoryLog, wanted: Mapping[tuple[str, int], set[Any]], *, closed: bool) -> None:
    days = set[tuple[str, int]]()
    for one in given_in(log, "second"):
        day = one.value["key"], one.value["start_ms"]
        assert day not in days, f"twice: day {day}"
        days.add(day)
        found = [(key, start, end, tuple(ns)) for key, start, end, ns in one.value["state"]["windows"]]
        expected = wanted.get(day, set())
        assert sorted(found) == sorted(expected), f"second: {day} has {found} for {expected}"
    assert not closed or days == wanted.keys(), f"second: days {wanted.keys() - days} are missing"
