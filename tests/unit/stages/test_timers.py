"""Goal: timers fire once, at their moment and in order, and states expire, however records are divided into batches and torn.

Method: a naive definition that looks at all timers of all keys after each record, compared with Hypothesis; rows written in
part and the batch again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.codecs import codec_for
from sqe_chain.errors import PoisonError
from sqe_chain.flow.table import RowTable
from sqe_chain.flow.timers import KeyTimers, Timer, Timers
from sqe_chain.stages import JumpGuard, MemoryTable, Reason, Record
from sqe_chain.stages.clock import BATCH_CLOCK, CLOCK, GROUP_RECORDS, INDEX, MANIFEST
from sqe_chain.stages.timed_keys import KEYS, key_in, no_timers
from sqe_chain.stages.timers import TimedAggregate, TimerFailed
from tests.support.partial_writes import RecordingTable, Rows, run_with_partial_writes

Op = tuple[str, int, str]
"""What a fold does: "set" or "clock" (after a number of ms, a name), "delete" or "unclock" (a name), "gone" (the state)."""


@dataclass(frozen=True)
class Tick:
    """The end of a batch, by its clock."""

    clock_ms: int


Step = Record | int | Tick
"""A record, a moment to which event time is moved from outside, or the batch's clock."""
Results = list[tuple[bytes, str]]
FAR_MS = 400_000_000


def apply(ops: Sequence[Op], from_ms: int, timers: KeyTimers) -> None:
    for what, ms, name in ops:
        if what == "set":
            timers.set_timer(max(0, from_ms + ms), name)
        elif what == "clock":  # the timetable goes by tenths of a second
            timers.set_timer(max(0, (from_ms + ms) // 100 * 100), name, "batch")
        elif what == "delete":
            timers.delete_timer(name)
        elif what == "unclock":
            timers.delete_timer(name, clock="batch")
        else:
            timers.delete_state()


CHAINS: dict[str, list[Op]] = {
    "a": [],
    "b": [("set", 4, "a"), ("set", 0, "c")],
    "c": [("set", -3, "a"), ("delete", 0, "b")],
    "d": [("gone", 0, "")],
    "e": [("set", 5, "f"), ("set", 50_000, "a")],
    "f": [("set", 2, "d")],
    "g": [("clock", 0, "c"), ("set", -1, "b"), ("clock", 900, "b")],
}
"""What fires does, by the name of the timer: each of these sequences ends."""


def fold(state: StringValue, value: tuple[int, list[Op]], timers: KeyTimers) -> Iterator[str]:
    at_ms, ops = value
    state.value += f"{at_ms} "
    apply(ops, at_ms, timers)
    yield f"fold {at_ms}: {state.value}"


def fired(state: StringValue, timer: Timer, timers: KeyTimers) -> list[str]:
    sign = "@" if timer.clock == "event" else "#"
    state.value += f"{timer.name}{timer.at_ms} "
    apply(CHAINS[timer.name], timer.at_ms, timers)
    return [f"{timer.name}{sign}{timer.at_ms}: {state.value}"]


@dataclass
class NaiveKey:
    state: str = ""
    timers: Timers = field(default_factory=no_timers)
    last_ms: int = 0


def fire(timer: Timer, state: StringValue, timers: KeyTimers) -> list[str]:
    return fired(state, timer, timers)


def copied(timers: Timers) -> Timers:
    return {clock: dict(known) for clock, known in timers.items()}


class Naive:
    """The definition: after each step, the first of all timers that are due fires, until none is."""

    def __init__(self, expire_after_ms: int | None) -> None:
        self.expire_after_ms = expire_after_ms
        self.keys: dict[bytes, NaiveKey] = {}
        self.now_ms = -1
        self.results: Results = []

    def due(self) -> Iterator[tuple[int, bytes, bool, str]]:
        for key, one in self.keys.items():
            for name, at_ms in one.timers["event"].items():
                yield at_ms, key, False, name
            if self.expire_after_ms is not None:
                yield one.last_ms + self.expire_after_ms, key, True, ""

    def fire(self) -> None:
        while (first := min(self.due(), default=None)) is not None and first[0] <= self.now_ms:
            at_ms, key, expires, name = first
            if expires:
                del self.keys[key]
                continue
            self.call_timer(key, Timer(name, at_ms))

    def call_timer(self, key: bytes, timer: Timer) -> None:
        state, timers = StringValue(value=self.keys[key].state), copied(self.keys[key].timers)
        del timers[timer.clock][timer.name]
        self.call(key, state, timers, partial(fire, timer))

    def tick(self, clock_ms: int) -> None:
        while True:
            clock_timers = ((key, one.timers["batch"].items()) for key, one in self.keys.items())
            due = min(
                ((at_ms, key, name) for key, some in clock_timers for name, at_ms in some), default=None
            )
            if due is None or due[0] > clock_ms:
                return
            self.call_timer(due[1], Timer(due[2], due[0], "batch"))
            self.fire()

    def call(
        self,
        key: bytes,
        state: StringValue,
        timers: Timers,
        call: Callable[[StringValue, KeyTimers], Any],
    ) -> None:
        record_at = KeyTimers(key, timers, "", allowed=True)
        self.results += [(key, text) for text in call(state, record_at)]
        if record_at.state_deleted:
            self.keys.pop(key, None)
        else:
            one = self.keys.setdefault(key, NaiveKey())
            one.state, one.timers = state.value, timers

    def step(self, step: Step) -> None:
        if isinstance(step, Tick):
            self.tick(step.clock_ms)
            return
        at_ms = step if isinstance(step, int) else step.timestamp_ms
        self.now_ms = max(self.now_ms, at_ms)
        self.fire()
        if not isinstance(step, int):
            assert step.key is not None
            value: Any = step.value
            known = self.keys.get(step.key, NaiveKey(last_ms=-1))
            last_ms = max(known.last_ms, at_ms)
            state, timers = StringValue(value=known.state), copied(known.timers)
            self.call(step.key, state, timers, lambda s, t: fold(s, value, t))
            if step.key in self.keys:
                self.keys[step.key].last_ms = last_ms
            self.fire()


def record_at(at_ms: int, *ops: Op, key: str = "k") -> Record:
    return Record(key=key.encode(), value=(at_ms, list(ops)), timestamp_ms=at_ms)


def stage_on(table: RowTable, **settings: Any) -> TimedAggregate[StringValue]:
    settings = {"guard": None, "on_timer": fired} | settings
    return TimedAggregate(table, state=StringValue, fold=fold, **settings)


def run_one(
    table: RowTable, batch: Sequence[Step], **settings: Any
) -> tuple[Results, dict[bytes, str | None]]:
    """What a batch gives, and the states that it has changed."""
    stage = stage_on(table, **settings)
    for step in batch:
        if isinstance(step, int):
            stage.advance(step)
        elif isinstance(step, Tick):
            stage.tick(step.clock_ms)
        else:
            stage.accept(step)
    found: Any = stage.take_results()
    assert stage.take_results() == []
    stage.finish(0)
    changes = {one.key: None if one.state is None else one.state.value for one in stage.take_changes()}
    return found, changes


def run(batches: Sequence[Sequence[Step]], *, torn: bool = False, **settings: Any) -> tuple[Results, Rows]:
    """What all batches give, and the rows at the end."""
    rows: Rows = {}
    results: Results = []
    for batch in batches:
        table = MemoryTable(rows)
        before = states_in(rows)
        found, changes = run_one(table, batch, **settings)
        if torn:
            again = run_with_partial_writes(rows, partial(run_one, batch=batch, **settings))
            assert again == dict(table.rows())
        results, rows = results + found, dict(table.rows())
        after = states_in(rows)
        differ = {key for key in before | after if before.get(key) != after.get(key)}
        assert differ <= changes.keys(), "changes() tells of each"
        assert all(after.get(key) == state for key, state in changes.items())
    return results, rows


def states_in(rows: Rows) -> dict[bytes, str]:
    own = {name.removeprefix(KEYS): row for name, row in rows.items() if name.startswith(KEYS)}
    return {key: key_in(codec_for(StringValue), None, row).state.value for key, row in own.items()}


ops = st.lists(
    st.tuples(
        st.sampled_from(["set", "set", "set", "clock", "clock", "delete", "unclock", "gone"]),
        st.sampled_from([-5, 0, 1, 7, 20, 30_000, 700_000, FAR_MS]),
        st.sampled_from(sorted(CHAINS)),
    ),
    max_size=3,
)


@st.composite
def batches_of_steps(draw: st.DrawFn) -> list[list[Step]]:
    """Records of three keys, most of them in the order of their times, and moments from outside, in batches."""
    gaps = st.sampled_from([0, 0, 1, 2, 7, 20, 9_000, 80_000, FAR_MS])
    now_ms, steps = draw(st.integers(0, 1_000_000)), list[Step]()
    for _ in range(draw(st.integers(1, 12))):
        now_ms += draw(gaps)
        at_ms = max(0, now_ms - draw(st.sampled_from([0, 0, 0, 0, 3, 50])))
        if draw(st.integers(0, 7)):
            steps.append(record_at(at_ms, *draw(ops), key=draw(st.sampled_from("klm"))))
        else:
            steps.append(at_ms)
    ends = sorted(draw(st.lists(st.integers(0, len(steps)), max_size=4)))
    batches, clock_ms = list[list[Step]](), now_ms - 2_000
    for begin, end in pairwise([0, *ends, len(steps)]):
        batches.append(steps[begin:end])
        if draw(st.booleans()):
            clock_ms = max(0, clock_ms) // 100 * 100 + draw(st.sampled_from([100, 500, 90_000, 2 * FAR_MS]))
            batches[-1] = [*batches[-1], Tick(clock_ms)]
    return batches


@given(batches_of_steps(), st.sampled_from([None, 1, 7, 25, 1_000, 90_000, FAR_MS]))
def test_timers_fire_by_the_definition(batches: list[list[Step]], expire_after_ms: int | None) -> None:
    results, rows = run(batches, torn=True, expire_after_ms=expire_after_ms, clock_ms=0)
    naive = Naive(expire_after_ms)
    for step in [step for batch in batches for step in batch]:
        naive.step(step)
    assert results == naive.results
    assert states_in(rows) == {key: one.state for key, one in naive.keys.items()}


def test_another_length_of_life_holds_for_stored_states_too() -> None:
    rows = run([[record_at(0)]], expire_after_ms=100)[1]
    for settings, at_ms, left in (
        ({"expire_after_ms": 200}, 100, True),
        ({"expire_after_ms": 200}, 200, False),
        ({"expire_after_ms": 5}, 100, False),
        ({}, 1_000, True),
    ):
        table = MemoryTable(rows)
        run_one(table, [at_ms], **settings)
        assert bool(states_in(table.rows())) == left, (settings, at_ms)


def test_timers_without_a_function_are_dropped_when_they_are_due() -> None:
    table = MemoryTable()
    run_one(table, [record_at(0, ("set", 5, "a"))])
    results, _ = run_one(table, [10], on_timer=None)
    assert results == []
    assert run_one(table, [20])[0] == []
    stage = stage_on(MemoryTable(), on_timer=None, stage="totals")
    with pytest.raises(PoisonError, match=r"stage 'totals': set_timer\(\) .* on_timer="):
        stage.accept(record_at(0, ("set", 5, "a")))


def test_what_fails_has_changed_nothing_but_time() -> None:
    def fold_or_fail(state: StringValue, value: tuple[int, list[Op]], timers: KeyTimers) -> list[str]:
        found = list(fold(state, value, timers))
        if value[0] == 13:
            raise ValueError("no")
        return found

    table = MemoryTable()
    stage = TimedAggregate(table, state=StringValue, fold=fold_or_fail, on_timer=fired, guard=None)
    stage.accept(record_at(0))
    with pytest.raises(ValueError, match="no"):
        stage.accept(record_at(13, ("set", 1, "a"), ("gone", 0, "")))
    stage.accept(record_at(15))
    stage.advance(20)
    assert [text for _, text in stage.take_results()] == ["fold 0: 0 ", "fold 15: 0 15 "]
    assert stage.stream_time_ms == 20
    stage.finish(0)
    assert states_in(table.rows()) == {b"k": "0 15 "}


def test_no_function_is_called_on_a_row_that_is_written_already() -> None:
    table = MemoryTable()
    run_one(table, [record_at(0, ("set", 5, "a")), record_at(0, ("set", 5, "a"), key="l")])
    asked = RecordingTable(table.rows(), cursor=KEYS + b"k")
    results, _ = run_one(asked, [record_at(1), record_at(1, key="l"), 9])
    assert {key for key, _ in results} == {b"l"}
    assert [text.partition(":")[0] for _, text in results] == ["fold 1", "a@5"]


def test_no_function_is_called_by_the_clock_on_a_row_that_is_written_already() -> None:
    table = MemoryTable()
    run_one(table, [record_at(0, ("clock", 500, "a")), record_at(0, ("clock", 500, "a"), key="l")])
    asked = RecordingTable(table.rows(), cursor=KEYS + b"k")
    assert [key for key, _ in run_one(asked, [Tick(500)])[0]] == [b"l"]


def test_the_clock_fires_what_was_set_for_a_time_that_the_last_tick_has_reached() -> None:
    batches: list[list[Step]] = [
        [record_at(1_000), Tick(5_000)],
        [record_at(1_001, ("clock", 0, "a"))],
        [Tick(5_100)],
    ]
    results, _ = run(batches, torn=True)
    assert results[-1] == (b"k", "a#1000: 1000 1001 a1000 ")


def test_it_is_known_when_the_clock_reaches_the_next_timer() -> None:
    def two(state: StringValue, value: object, timers: KeyTimers) -> None:
        timers.set_timer(510, "a", "batch")
        timers.set_timer(540, "b", "batch")

    def none(state: StringValue, timer: Timer, timers: KeyTimers) -> None:
        state.value += timer.name

    table, found = MemoryTable(), list[int | None]()
    for clock_ms in (499, 520, 540):
        stage = TimedAggregate(table, state=StringValue, fold=two, on_timer=none, guard=None)
        if clock_ms == 499:
            stage.accept(record_at(0))
        stage.tick(clock_ms)
        stage.finish(0)
        found.append(stage.timer_ms)
    assert found == [510, 540, None]


def test_index_rows_of_the_clock_hold_a_limited_number_of_records() -> None:
    """So that a batch rewrites few listings of earlier ones."""
    table, clock_rows = MemoryTable(), list[int]()
    for begin in range(0, 3 * GROUP_RECORDS, GROUP_RECORDS):
        stage = stage_on(table)
        for number in range(begin, begin + GROUP_RECORDS):
            stage.accept(record_at(0, ("clock", 500, "a"), key=str(number)))
        stage.finish(0)
        clock_rows.append(sum(1 for name in table.rows() if name.startswith(BATCH_CLOCK.listings)))
    assert clock_rows == sorted(set(clock_rows)), "each of these batches has begun rows of its own"


def test_timers_of_the_clock_that_are_far_away_take_few_buckets() -> None:
    minute_ms, table = 60_000, MemoryTable()
    year = range(minute_ms, 365 * 24 * 60 * minute_ms, 97 * minute_ms)
    stage = stage_on(table, clock_ms=0)
    for number, at_ms in enumerate(year):
        stage.accept(record_at(0, ("clock", at_ms, "a"), key=str(number)))
    stage.finish(0)
    assert sum(1 for name in table.rows() if name.startswith(BATCH_CLOCK.listings)) < 600
    found: list[str] = []
    for day in range(5, 371, 5):
        clock_ms = day * 24 * 60 * minute_ms
        stage = stage_on(table, clock_ms=clock_ms)
        stage.tick(clock_ms)
        found += [str(text).partition(":")[0] for _, text in stage.take_results()]
        stage.finish(0)
    assert found == [f"a#{at_ms}" for at_ms in year]


def test_timers_of_both_clocks_that_set_each_other_without_end_are_refused() -> None:
    def again(state: StringValue, timer: Timer, timers: KeyTimers) -> None:
        timers.set_timer(100, "a", "batch" if timer.clock == "event" else "event")

    stage = stage_on(MemoryTable(), on_timer=again)
    stage.accept(record_at(200, ("set", -100, "a")))
    with pytest.raises(TimerFailed, match="more than 10000 times in a row"):
        stage.tick(200)


def test_another_clock_is_refused() -> None:
    timers = KeyTimers(b"k", no_timers(), "totals", allowed=True)
    for call in (timers.set_timer, lambda *args: timers.delete_timer(*args[1:])):
        with pytest.raises(PoisonError, match=r"stage 'totals': the clock .*'wall'"):
            call(5, "a", "wall")  # type: ignore[arg-type]


def test_a_failing_timer_is_named() -> None:
    def fail(state: StringValue, timer: Timer, timers: KeyTimers) -> None:
        raise KeyError("oh")

    stage = stage_on(MemoryTable(), on_timer=fail)
    stage.accept(record_at(0, ("set", 5, "a")))
    with pytest.raises(TimerFailed, match="timer 'a' of key b'k', set for 5 ms") as caught:
        stage.accept(record_at(9, key="l"))
    assert (caught.value.key, caught.value.timer) == (b"k", Timer("a", 5))
    assert isinstance(caught.value.raised, KeyError)


@pytest.mark.parametrize("back_ms", [0, 3])
def test_timers_that_set_each_other_without_end_are_refused(back_ms: int) -> None:
    def again(state: StringValue, timer: Timer, timers: KeyTimers) -> None:
        timers.set_timer(
            timer.at_ms - back_ms if timer.name == "a" else timer.at_ms + back_ms, "ba"[timer.name == "b"]
        )

    stage = stage_on(MemoryTable(), on_timer=again)
    with pytest.raises(TimerFailed, match="more than 10000 times in a row"):
        stage.accept(record_at(90_000, ("set", -50_000, "a")))


def test_a_timer_may_go_on_for_as_long_as_time_does() -> None:
    def every(state: StringValue, timer: Timer, timers: KeyTimers) -> list[str]:
        timers.set_timer(timer.at_ms + 1, timer.name)
        return [str(timer.at_ms)]

    stage = stage_on(MemoryTable(), on_timer=every)
    stage.accept(record_at(0, ("set", 0, "a")))
    stage.advance(30_000)
    assert [text for _, text in stage.take_results()] == ["fold 0: 0 ", *map(str, range(30_001))]


def test_a_timer_that_goes_on_fires_also_where_batches_end_at_its_very_moments() -> None:
    """Its key was listed for the moment that was reached, so it has to be listed again."""

    def every(state: StringValue, timer: Timer, timers: KeyTimers) -> list[str]:
        timers.set_timer(timer.at_ms + 10, timer.name)
        return [str(timer.at_ms)]

    table, results = MemoryTable(), list[str]()
    for at_ms in (0, 10, 20, 30):
        stage = stage_on(table, on_timer=every)
        if at_ms:
            stage.advance(at_ms)
        else:
            stage.accept(record_at(0, ("set", 10, "a")))
        results += [str(text) for _, text in stage.take_results()]
        stage.finish(0)
    assert results == ["fold 0: 0 ", "10", "20", "30"]


def test_with_each_record_of_its_key_a_timer_may_go_back_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for timers that set each other without end, not for many records of one moment."""
    monkeypatch.setattr("sqe_chain.stages.timers.MAX_BACK", 3)

    def once(state: StringValue, timer: Timer, timers: KeyTimers) -> list[str]:
        if timer.name == "a":
            timers.set_timer(timer.at_ms, "b")
        return [timer.name]

    stage = stage_on(MemoryTable(), on_timer=once)
    for _ in range(6):
        stage.accept(record_at(5, ("set", 0, "a")))
    assert [text for _, text in stage.take_results() if text in ("a", "b")] == ["a", "b"] * 6


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda timers: timers.set_timer(1.5), r"set_timer\(at_ms=1.5\); milliseconds since 1970"),
        (lambda timers: timers.set_timer(True), "set_timer"),
        (lambda timers: timers.set_timer(-1), "0 to 281474976710655"),
        (lambda timers: timers.set_timer(1 << 48), "set_timer"),
        (lambda timers: timers.set_timer(1, "n" * 121), "at most 120 characters"),
        (lambda timers: timers.set_timer(1, None), "a timer's name must be text"),
        (lambda timers: timers.delete_timer(b"a"), "a timer's name must be text"),
    ],
)
def test_what_is_no_timer_is_refused(call: Callable[[KeyTimers], None], text: str) -> None:
    timers = KeyTimers(b"k", no_timers(), "totals", allowed=True)
    with pytest.raises(PoisonError, match=text) as caught:
        call(timers)
    assert "stage 'totals'" in str(caught.value)
    assert timers.timers == no_timers()
    timers.set_timer((1 << 48) - 1, "n" * 120)
    timers.set_timer(0)


def test_a_record_from_a_wrong_clock_is_folded_and_moves_nothing() -> None:
    guard = JumpGuard(max_jump_ms=1_000)
    results, rows = run(
        [[record_at(10), record_at(10**12, key="l"), record_at(1_010)]], guard=guard, expire_after_ms=500
    )
    assert [text for _, text in results] == ["fold 10: 10 ", f"fold {10**12}: {10**12} ", "fold 1010: 1010 "]
    assert states_in(rows) == {b"k": "1010 "}, "l expires 500 ms after it came"
    first = stage_on(MemoryTable(), guard=guard, clock_ms=100, expire_after_ms=500)
    assert first.accept(record_at(10**12)).forward
    assert first.stream_time_ms is None
    first.accept(record_at(600, key="l"))
    first.finish(0)
    assert [(one.key, one.state is None) for one in first.take_changes()] == [(b"k", True), (b"l", False)]


def test_a_guard_may_drop_such_a_record_or_stop() -> None:
    stage = stage_on(MemoryTable(), guard=JumpGuard(1_000, policy="drop"))
    stage.accept(record_at(10))
    assert stage.accept(record_at(10**12)).reason is Reason.AHEAD
    stage = stage_on(MemoryTable(), guard=JumpGuard(1_000, policy="stop"), clock_ms=0)
    with pytest.raises(PoisonError, match="ahead of the service's clock"):
        stage.accept(record_at(10**12))
    with pytest.raises(PoisonError, match="has no key, and timers are kept by key"):
        stage.accept(Record(value=(1, []), timestamp_ms=1))


def test_a_state_that_cannot_be_stored_is_its_records_fault() -> None:
    def spoil(state: dict[Any, Any], value: object, timers: KeyTimers) -> None:
        state[7] = "numbers are no names in JSON"

    stage: TimedAggregate[Any] = TimedAggregate(MemoryTable(), state=dict, fold=spoil, stage="totals")
    with pytest.raises(PoisonError, match=r"stage 'totals': .* key b'k' that cannot be stored"):
        stage.accept(record_at(1))


def test_rows_stay_few_however_many_keys_come() -> None:
    """200,000 records, each of a new key: no more rows than keys within the time that a state lives, and the index of those."""
    life_ms, batch_size, per_batch = 6_400, 5_000, 5_000
    table, most, number = MemoryTable(), 0, 0
    for _ in range(200_000 // batch_size):
        stage: TimedAggregate[Int64Value] = TimedAggregate(
            table, state=Int64Value, fold=lambda state, value, timers: None, expire_after_ms=life_ms
        )
        for _ in range(batch_size):
            number += 1
            stage.accept(Record(key=b"%d" % number, timestamp_ms=number))
        stage.finish(0)
        most = max(most, len(table.rows()))
    names = [name[:1] for name in table.rows()]
    assert names.count(KEYS) == life_ms, "those of the last life_ms, a record a millisecond"
    # 64 buckets of a life, and those of the two batches before, which are removed one batch later.
    # A batch adds to each of its buckets index rows of one group, in two parts.
    buckets = (life_ms + 2 * per_batch) // (life_ms // 64) + 2
    assert most <= life_ms + 2 * 2 * buckets + 2
    assert names.count(INDEX) > 0
    assert names.count(MANIFEST) == names.count(CLOCK) == 1


def test_timers_far_away_take_few_buckets() -> None:
    """A year of timers, a minute apart, is listed in some hundred index rows, and each of them fires at its moment."""
    minute_ms, table = 60_000, MemoryTable()
    year = range(minute_ms, 365 * 24 * 60 * minute_ms, 97 * minute_ms)
    stage = stage_on(table)
    for number, at_ms in enumerate(year):
        stage.accept(record_at(0, ("set", at_ms, "a"), key=str(number)))
    stage.finish(0)
    assert sum(1 for name in table.rows() if name.startswith(INDEX)) < 400
    found: list[str] = []
    for day in range(0, 366, 5):
        stage = stage_on(table)
        stage.advance(day * 24 * 60 * minute_ms)
        found += [str(text).partition(":")[0] for _, text in stage.take_results()]
        stage.finish(0)
    assert found == [f"a@{at_ms}" for at_ms in year]


def test_a_key_fires_all_its_timers_of_a_moment_before_the_next_key() -> None:
    """In the order (time, key, name), with those that are set for a time that has been reached."""

    def ring(state: StringValue, timer: Timer, timers: KeyTimers) -> list[str]:
        if timer.name == "x":
            timers.set_timer(timer.at_ms, "z")
            timers.set_timer(timer.at_ms - 5, "late")
        return [f"{timer.name}{timer.at_ms}"]

    def set_two(state: StringValue, value: str, timers: KeyTimers) -> None:
        timers.set_timer(100, "x")
        timers.set_timer(100, "y")

    stage = TimedAggregate(MemoryTable(), state=StringValue, fold=set_two, on_timer=ring)
    for key in (b"b", b"a", b"c"):
        stage.accept(Record(key=key, value="", timestamp_ms=1))
    stage.advance(100)
    each = ["x100", "late95", "y100", "z100"]
    assert stage.take_results() == [(key, results) for key in (b"a", b"b", b"c") for results in each]
