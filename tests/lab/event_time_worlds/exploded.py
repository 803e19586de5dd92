"""Worlds whose facts are uploads: several rows, each with a key and a time of its own, while the upload has one place.

The oracle is naive, from the rows alone, in plain Python. What depends on an order (duplicates, versions of a table) is found in
the order of the rule: place, topic, partition, offset, row.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from sqe_chain import read
from sqe_chain.flow import Flow
from sqe_chain.ports import Message
from sqe_chain.stages import Hopping, Sessions, Tumbling
from sqe_chain.testing import Rehearsal
from tests.lab.event_time_worlds.flows import (
    OUTPUT_PARTITIONS,
    STAGE,
    Value,
    add,
    add_later,
    both,
    deletes,
    key_of,
    number_of,
)
from tests.lab.event_time_worlds.judging import dropped_by, received_of
from tests.lab.event_time_worlds.running import InMemory, Run, Wrong
from tests.lab.event_time_worlds.world import FILTERS, UNIT_MS, Fact, Hop, World
from tests.lab.reference.event_times import (
    ADVANCE_MS,
    AFTER_MS,
    BEFORE_MS,
    DELETED,
    GAP_MS,
    SIZE_MS,
    hopping,
    tumbling,
)

EXPLODED: Final = tuple(
    f"exploded-{kind}"
    for kind in ("tumbling", "hopping", "sessions", "stream", "table", "distinct", "deduplicate")
)
"""Kinds to draw."""
ORDERS: Final = ("earliest", "record")
"""What is the place of an upload: its earliest row, and the others are ahead of it; or its record's time, and rows are older."""
_LONGEST_MS: Final = 30 * UNIT_MS
_KEEP_MS: Final = 10**13
_KEYS: Final = "abcdef"
_ROWS: Final = 100
"""Rows of an upload have the numbers from its own times this."""
_NUMBER: Final = re.compile(rb'"n":\s?(\d+)')


def exploded(rng: random.Random, world: World) -> World:
    """The world with uploads in place of its facts."""
    order = "earliest" if world.kind == "deduplicate" else rng.choice(("earliest", "earliest", "record"))
    longest_ms = rng.choice((0, 2 * UNIT_MS, 9 * UNIT_MS, _LONGEST_MS))
    named = order == "earliest" and world.kind != "table" and rng.random() < 0.3
    facts = tuple(replace(fact, rows=_rows(rng, fact, order, longest_ms)) for fact in world.facts)
    return replace(world, facts=facts, exploded=order, separate=rng.random() < 0.3, named=named)


def _rows(rng: random.Random, fact: Fact, order: str, longest_ms: int) -> tuple[tuple[str, int], ...]:
    rows = list[tuple[str, int]]()
    count = 1 if rng.random() < 0.3 else rng.randrange(1, 13 if rng.random() < 0.1 else 5)
    for number in range(count):
        away_ms = rng.randrange(longest_ms + 1)
        away_ms -= away_ms % UNIT_MS if rng.random() < 0.7 else 0
        rows.append((rng.choice((fact.key, *_KEYS)), 0 if order == "earliest" and not number else away_ms))
    rng.shuffle(rows)
    return tuple(rows)


# ------------------------------------------------------------------ flows


def rows_of(upload: Value) -> list[Value]:
    rows: list[Value] = upload["rows"]
    return rows


def time_of(row: Value) -> int:
    return int(row["at"])


def earliest(upload: Value) -> int:
    return min(map(time_of, rows_of(upload)))


@lru_cache(maxsize=512)
def exploding(
    name: str, source: str, target: str, raw: bool, hop: Hop, order: str, *, separate: bool
) -> Flow:
    """A flow that passes on some of the rows; the first one explodes uploads."""
    flow = Flow(name)
    rows = _source(flow, source, raw=raw, order=order)
    kept = rows.filter(lambda value: value["n"] % 10 < hop.keep) if hop.keep < 10 else rows
    kept.to(target, key=number_of if hop.by_number else key_of, partitions=hop.partitions, separate=separate)
    return flow


def _source(flow: Flow, topic: str, *, raw: bool, order: str, named: bool = False) -> Any:
    if not raw:
        own: dict[str, Any] = {"timestamp": time_of} if named else {}
        return flow.source(topic, dict, **own)
    times: dict[str, Any] = {"timestamp": earliest} if order == "earliest" else {}
    return flow.source(topic, dict, raw=True, **times).flat_map(rows_of)


@lru_cache(maxsize=2048)
def exploded_reader(
    name: str, world: tuple[str, str, bool], sources: tuple[tuple[str, bool], ...], state_partitions: int
) -> Flow:
    """A flow whose stages take rows at their own times; `world`: its kind, order, and whether sources name times."""
    kind, order, named = world
    flow = Flow(name, state_partitions=state_partitions)
    first, *others = (
        _source(flow, topic, raw=raw, order=order, named=named).key_by(key_of) for topic, raw in sources
    )
    slack_ms = slack_of(order)
    if kind in ("table", "stream"):
        (second,) = others
        if kind == "table":
            made: Any = first.join_table(
                STAGE, second, both, how="left", deleted=deletes, table_time=time_of, history_ms=slack_ms
            )
        else:
            made = first.join_stream(
                STAGE, second, both, before_ms=BEFORE_MS, after_ms=AFTER_MS, how="left",
                time=time_of, other_time="at", lateness_ms=slack_ms,
            )  # fmt: skip
    else:
        for other in others:
            first = first.merge(other)
        made = _with_stage(first, kind, slack_ms)
    made.to(f"{name}.out", partitions=OUTPUT_PARTITIONS)
    made.dropped().to(f"{name}.dropped", partitions=1)
    return flow


def _with_stage(rows: Any, kind: str, slack_ms: int) -> Any:
    kept: Value = {"state": dict, "retention_ms": _KEEP_MS, "lateness_ms": slack_ms}
    kept["time"] = "at" if kind == "tumbling" else time_of
    if kind == "tumbling":
        return rows.windowed(STAGE, Tumbling(SIZE_MS), fold=add, **kept)
    if kind == "hopping":
        return rows.windowed(STAGE, Hopping(SIZE_MS, ADVANCE_MS), fold=add, **kept)
    if kind == "sessions":
        return rows.windowed(STAGE, Sessions(GAP_MS), fold=add, merge=add_later, **kept)
    if kind == "distinct":
        made = rows.distinct("filter", Tumbling(SIZE_MS), time=time_of, grace_ms=slack_ms)
    else:
        made = rows.deduplicate_by_key("filter", SIZE_MS, time=time_of)
    made.aggregate(STAGE, state=dict, fold=add)
    return made


def slack_of(order: str) -> int:
    """How much older than its upload a row may be."""
    return _LONGEST_MS if order == "record" else 0


class ExplodedRun(Run):
    """A world of uploads while it runs."""

    def _hop_flow(self, name: str, source: str, target: str, raw: bool, hop: Hop) -> Flow:
        return exploding(name, source, target, raw, hop, self.world.exploded, separate=self.world.separate)

    def _reader_flow(self, name: str, state_partitions: int) -> Flow:
        world = self.world
        kind = world.kind, world.exploded, world.named
        return exploded_reader(name, kind, self.sources(), state_partitions)

    def _value(self, number: int, fact: Fact, at_ms: int) -> dict[str, object]:
        return upload_of(self.world, number, fact, at_ms)


def upload_of(world: World, number: int, fact: Fact, at_ms: int) -> dict[str, object]:
    """The value of a fact with this number and place."""
    sign = 1 if world.exploded == "earliest" else -1
    rows = [
        {"k": key, "n": number * _ROWS + at, "at": at_ms + sign * away_ms}
        for at, (key, away_ms) in enumerate(fact.rows)
    ]
    return {"rows": rows}


# ------------------------------------------------------------------ the oracle


class Row(NamedTuple):
    """A row as a reader gets it first; they are compared as tuples: that is the order of the rule."""

    place_ms: int
    topic: str
    partition: int
    offset: int
    path: int
    key: str
    number: int
    at_ms: int
    second: bool


def judge_exploded(world: World, where: InMemory | None = None) -> None:
    """Run a world of uploads, in memory or elsewhere, and check it.

    Raises:
        Wrong: it does not give what its rows give.
    """
    run = ExplodedRun(world, where)
    try:
        run.run()
        for republisher in run.republishers:
            for output in republisher.flow.compile().outputs:
                received_of(run.log, output.topic)
        rows = sorted(
            row
            for way, (topic, _) in enumerate(run.sources())
            for row in first_rows(world, run.times_ms, topic, run.log.records(topic), second=way == 1)
        )
        for number, service in enumerate(run.readers):
            who = f"reader {number}"
            _compare(world, service, rows, who, closed=False)
            if world.close and world.kind in WINDOWS:
                service.close_windows()
                _compare(world, service, rows, f"{who}, closed", closed=True)
    finally:
        run.close()


def first_rows(
    world: World,
    times_ms: Mapping[int, int],
    topic: str,
    messages: Iterable[Message],
    *,
    second: bool = False,
) -> Iterator[Row]:
    """The rows that a reader gets from a topic, where each comes first; `times_ms`: number of an upload -> its place."""
    seen = set[int]()
    for message in messages:
        for index, found in enumerate(_NUMBER.findall(message.value() or b"")):
            number = int(found)
            if number in seen:
                continue
            seen.add(number)
            upload, at = divmod(number, _ROWS)
            key, away_ms = world.facts[upload].rows[at]
            at_ms = times_ms[upload] + (away_ms if world.exploded == "earliest" else -away_ms)
            yield Row(
                times_ms[upload],
                topic,
                message.partition(),
                message.offset(),
                index,
                key,
                number,
                at_ms,
                second,
            )


def windows(kind: str, rows: Iterable[Row]) -> dict[tuple[str, int, int], list[int]]:
    """(Key, beginning, end) -> the numbers of its rows, in their order."""
    found = defaultdict[tuple[str, int, int], list[int]](list)
    if kind == "sessions":
        by_key = defaultdict[str, list[Row]](list)
        for row in rows:
            by_key[row.key].append(row)
        for key, own in by_key.items():
            session: list[Row] = []
            ordered = sorted(own, key=lambda row: row.at_ms)
            for row, after in zip(ordered, (*ordered[1:], None), strict=True):
                session.append(row)
                if after is None or after.at_ms - row.at_ms > GAP_MS:
                    found[key, session[0].at_ms, row.at_ms] = sorted(one.number for one in session)
                    session = []
        return dict(found)
    spans = tumbling if kind == "tumbling" else hopping
    for row in rows:
        for span in spans(row.at_ms):
            found[row.key, *span].append(row.number)
    return dict(found)


def passing(kind: str, rows: Iterable[Row]) -> dict[str, list[int]]:
    """Key -> the numbers of the rows that a filter passes."""
    known, passed = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for row in rows:
        times = known[row.key]
        near = (
            any(abs(at_ms - row.at_ms) <= SIZE_MS for at_ms in times)
            if kind == "deduplicate"
            else any(at_ms // SIZE_MS == row.at_ms // SIZE_MS for at_ms in times)
        )
        if not near:
            times.append(row.at_ms)
            passed[row.key].append(row.number)
    return {key: sorted(numbers) for key, numbers in passed.items()}


def joined(kind: str, rows: list[Row]) -> tuple[set[tuple[int, int | None]], set[tuple[int, int | None]]]:
    """The pairs that must be given, and those that are given once their time is over."""
    must, may = set[tuple[int, int | None]](), set[tuple[int, int | None]]()
    firsts, seconds = ([row for row in rows if row.second is second] for second in (False, True))
    for first in firsts:
        own = [second for second in seconds if second.key == first.key]
        if kind == "table":
            before = [row for row in own if row < first and row.at_ms <= first.place_ms]
            last = max(before, key=lambda row: (row.at_ms, row), default=None)
            must.add((first.number, None if last is None or last.number % DELETED == 0 else last.number))
            continue
        near = [row for row in own if -BEFORE_MS <= row.at_ms - first.at_ms <= AFTER_MS]
        must |= {(first.number, row.number) for row in near}
        if not near:
            may.add((first.number, None))
    return must, may


WINDOWS: Final = ("tumbling", "hopping", "sessions")


def _compare(world: World, service: Rehearsal, rows: list[Row], who: str, *, closed: bool) -> None:
    if dropped := dropped_by(service):
        raise Wrong(f"dropped: {who} has dropped {dropped}")
    kind = world.kind
    if kind in WINDOWS:
        states = {
            (window.key.decode(), *window.span): _listed(kind, window.state["ns"])
            for window in service.windows(STAGE)
        }
        _check("states", who, states, windows(kind, rows))
    elif kind in FILTERS:
        stored = {key.decode(): sorted(state["ns"]) for key, state in service.states(STAGE).items()}
        _check("states", who, stored, passing(kind, rows))
    # At the end of the input nothing that is due waits any more: event time has come to the last place.
    until_ms = rows[-1].place_ms if rows and not world.by_clock else None
    messages = received_of(service.log, f"{service.flow.name}.out")
    compare_results(
        kind, messages, rows, who, closed=closed, until_ms=until_ms, slack_ms=slack_of(world.exploded)
    )


def _listed(kind: str, numbers: list[int]) -> list[int]:
    return sorted(numbers) if kind == "sessions" else numbers


def compare_results(
    kind: str,
    messages: Iterable[Message],
    rows: list[Row],
    who: str,
    *,
    closed: bool,
    until_ms: int | None = None,
    slack_ms: int = 0,
) -> None:
    """Compare what a reader has published, without replays.

    Args:
        kind: of its stage.
        messages: what it has published.
        rows: what it has read.
        who: its name.
        closed: its last windows were closed.
        until_ms: all that is due until then must be there; None: that is not known.
        slack_ms: how much later than otherwise something is due.

    Raises:
        Wrong: it is not what the rows give.
    """
    due_ms = -(1 << 63) if until_ms is None else until_ms - slack_ms
    given = [
        value
        for message in messages
        for value in read(message.value(), headers=message.headers()).payloads_as(dict)
        if value is not None
    ]
    if kind in WINDOWS:
        wanted = windows(kind, rows)
        results = {
            (one["key"], one["start_ms"], one["end_ms"]): _listed(kind, one["state"]["ns"]) for one in given
        }
        over_ms = GAP_MS + 1 if kind == "sessions" else 0
        due = {key for key in wanted if closed or key[2] + over_ms <= due_ms}
        _check("results", who, results, {key: wanted.get(key) for key in due.union(results)})
        if len(results) < len(given):
            raise Wrong(f"twice: {who} has given {len(given)} results of {len(results)} windows")
    elif kind in ("table", "stream"):
        pairs = [(one["n"], one["other"]) for one in given]
        must, may = joined(kind, rows)
        at_ms = {row.number: row.at_ms for row in rows}
        must |= {pair for pair in may if at_ms[pair[0]] + AFTER_MS + 1 <= due_ms}
        found = set(pairs)
        if len(pairs) > len(found) or not must <= found <= must | may:
            raise Wrong(f"results: {who} lacks {must - found}, has too many {found - must - may}: {pairs}")
    else:
        results_by_key = defaultdict[str, list[int]](list)
        for one in given:
            results_by_key[one["k"]].append(one["n"])
        _check("results", who, {key: sorted(ns) for key, ns in results_by_key.items()}, passing(kind, rows))


def _check(what: str, who: str, found: dict[Any, Any], wanted: dict[Any, Any]) -> None:
    differing = [key for key in {*found, *wanted} if found.get(key) != wanted.get(key)]
    if differing:
        some = [f"{key}: {found.get(key)} for {wanted.get(key)}" for key in sorted(differing)[:4]]
        raise Wrong(f"{what}: of {who} {len(differing)} are wrong: {'; '.join(some)}")
