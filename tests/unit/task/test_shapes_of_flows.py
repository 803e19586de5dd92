"""What the short way of ordinary messages knows nothing of goes record by record, and gives what that gives.

Goal: each condition of `OrderedPath.of`, and what a run must do beside folding. Method: the same messages by the short way,
as far as it is taken, and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.flow import Context, Flow
from sqe_chain.stages import Tumbling
from sqe_chain.stages.record_work import RecordKind
from sqe_chain.stages.table_join import TableJoinKind
from sqe_chain.stages.windowed import WindowsKind
from sqe_chain.task import stage_part
from sqe_chain.task.event_times import EventTimes, Hop
from sqe_chain.task.exclusion import Exclusion
from tests.support.block_ways import one_by_one, taken_as
from tests.support.read_in_blocks import Scripted, outcome, records_of

WORDS = ("ant", "bee", "asp", "boa", "bad", "ape", "bug", "cat")
LEFT_OUT = Exclusion("words", 0, 5, "skip", "ValueError", "too bad")


def write(state: StringValue, word: StringValue) -> None:
    if word.value == "bad":
        raise ValueError("too bad")
    state.value += f"{word.value} "


def note(state: StringValue, word: StringValue) -> None:
    state.value += f"{word.value} "


def first_letter(word: StringValue) -> str:
    return word.value[:1]


def rank(word: StringValue) -> int:
    return ord(word.value[1])


def both(one: StringValue, other: StringValue) -> StringValue:
    return StringValue(value=f"{one.value} {other.value}")


def words(flow: Flow, topic: str = "words", **more: Any) -> Any:
    return flow.source(topic, StringValue, **more)


def keyed(flow: Flow, topic: str = "words") -> Any:
    return words(flow, topic).key_by(first_letter)


def windows(source: Any, **more: Any) -> None:
    declared: dict[str, Any] = {"key": first_letter, "state": StringValue, "fold": note} | more
    source.windowed("letters", Tumbling(10), retention_ms=30, **declared).to("closed", partitions=2)


def more_windows(source: Any, length_ms: int = 20, **more: Any) -> None:
    source.windowed("more", Tumbling(length_ms), state=StringValue, fold=note, retention_ms=30, **more)


def first_character_or_none(word: StringValue) -> Any:
    return None if word.value == "bad" else word.value[:1]


def second_of(word: StringValue, context: Context) -> str:
    return str(context.timestamp_ms % 2)


def two_stages(flow: Flow) -> None:
    source = words(flow)
    more_windows(source, 10, key=lambda word: str(len(word.value)))
    windows(source)


def two_stages_of_a_key(flow: Flow) -> None:
    by_letter = keyed(flow)
    more_windows(by_letter)
    windows(by_letter, key=None)


def two_keys_of_a_source(flow: Flow) -> None:
    source = words(flow)
    more_windows(source.key_by(lambda word: word.value[1:]))
    windows(source.key_by(first_letter), key=None)


def in_units(flow: Flow) -> None:
    """No stage goes by event time, so none of its lanes is kept."""

    def fold(state: StringValue, word: StringValue, context: Context) -> None:
        state.value += f"{word.value}{context.timestamp_ms} "

    words(flow).aggregate("letters", key=first_letter, state=StringValue, fold=fold)


def streams(flow: Flow) -> None:
    pairs = keyed(flow).join_stream("pairs", keyed(flow, "others"), both, before_ms=4, after_ms=4)
    pairs.to("joined", partitions=2)


def table(flow: Flow) -> None:
    keyed(flow).join_table("joined", keyed(flow, "others"), both).to("joined", partitions=2)


def timers(flow: Flow, key: Callable[[StringValue], Any] = first_letter) -> None:
    def fold(state: StringValue, word: StringValue, context: Context) -> None:
        state.value += f"{word.value} "
        context.set_timer(context.timestamp_ms + 7)

    words(flow).aggregate(
        "letters",
        key=key,
        state=StringValue,
        fold=fold,
        on_timer=lambda state, timer: [StringValue(value=f"{state.value}at {timer.at_ms}")],
        expire_after_ms=40,
    ).to("silent", partitions=2)


class Foreign:
    """A type that has no codec."""

    def __init__(self, data: bytes) -> None:
        self.value = StringValue.FromString(data).value


Declare = Callable[[Flow], None]


def of_words(flow: Flow) -> None:
    windows(words(flow), fold=write)


def key_that_is_bad(flow: Flow) -> None:
    windows(words(flow), key=lambda word: 7 if word.value == "bad" else word.value[:1])


SHAPES: dict[str, Declare] = {
    "stop": of_words,
    "skip": of_words,
    "dead_letter": of_words,
    "key, skip": key_that_is_bad,
    "key, stop": key_that_is_bad,
    "key_by, stop": lambda flow: windows(words(flow).key_by(first_character_or_none), key=None),
    "timestamp": lambda flow: windows(words(flow, timestamp=lambda word: 7 * ord(word.value[1]))),
    "heartbeat": lambda flow: windows(words(flow), heartbeat=lambda word: word.value == "bug"),
    "key in context": lambda flow: windows(words(flow), key=second_of),
    "key_by in context": lambda flow: windows(words(flow).key_by(second_of), key=None),
    "two keys": lambda flow: windows(words(flow).key_by(lambda word: word.value[1:])),
    "no key": lambda flow: windows(words(flow), key=None),
    "two stages": two_stages,
    "two stages of a key": two_stages_of_a_key,
    "two keys of a source": two_keys_of_a_source,
    # The state partition is that of the id.
    "by id": lambda flow: (
        keyed(flow).deduplicate("once", lambda word: word.value[1:], 20).to("kept", partitions=2)
    ),
    "by partition": lambda flow: keyed(flow).drop_stale("rising", sequence=rank).to("kept", partitions=2),
    # The short way is taken, into a stage that takes records one by one.
    "by key": lambda flow: (
        keyed(flow).drop_stale("rising", sequence=rank, scope="key").to("kept", partitions=2)
    ),
    "in units": in_units,
    "streams": streams,
    "table": table,
    "timers": timers,
    "timers without a key": lambda flow: timers(flow, first_character_or_none),
}
"""Shapes of flows; a policy for poison is a part of the name."""


def flow_of(declare: Declare, name: str = "") -> Flow:
    policies: list[Any] = ["skip", "dead_letter"]
    flow = Flow("notes", state_partitions=1, poison=next((one for one in policies if one in name), "stop"))
    declare(flow)
    return flow


def shape(name: str) -> Callable[[], Flow]:
    return lambda: flow_of(SHAPES[name], name)


def ways(
    make: Callable[[], Flow],
    batches: Sequence[Sequence[Scripted]],
    exclusions: tuple[Exclusion, ...] = (),
    last: Callable[[], Flow | None] = lambda: None,
) -> tuple[object, object, list[int]]:
    """What comes of messages by the short way and without it, and the lengths of the runs that were taken by it."""
    records = records_of([one for batch in batches for one in batch])
    parts = [[records.pop(0) for _ in batch] for batch in batches]
    with taken_as() as taken:
        quick = outcome(make(), parts, None, 9, exclusions, last=last())
    with one_by_one(), pytest.MonkeyPatch.context() as patch:
        for kind in (WindowsKind, TableJoinKind):
            patch.setattr(kind, "start", RecordKind.start)
        return quick, outcome(make(), parts, None, 9, exclusions, last=last()), taken


def lanes_of(*words: str, step_ms: int = 3) -> list[Scripted]:
    """The words, each on the next of three lanes."""
    return [Scripted(number % 3, "plain", word, 5 + number * step_ms, 0) for number, word in enumerate(words)]


def begun(words: Sequence[Scripted]) -> list[list[Scripted]]:
    """As a second batch: its lanes are known. One more message of each writer makes sure that no other waits."""
    last = [Scripted(lane, "plain", "axe", words[-1].at_ms + 1, 0) for lane in (0, 2)]
    return [[Scripted(lane, "plain", "axe", 1, 0) for lane in range(3)], [*words, *last]]


@pytest.mark.parametrize("name", SHAPES)
def test_each_flow_gives_what_it_gives_record_by_record(name: str) -> None:
    quick, general, taken = ways(shape(name), begun(lanes_of(*WORDS, *WORDS)))
    assert quick == general
    assert taken


def same(word: StringValue) -> StringValue:
    return word


def same_batch(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize("name", SHAPES)
def test_each_flow_gives_the_same_after_a_function_over_batches(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It is compared with a function over values, record by record."""
    source = Flow.source

    def with_batches(flow: Flow, *args: Any, **settings: Any) -> Any:
        found: Any = source(flow, *args, **settings)
        return found.map_batches(same_batch, StringValue) if batches else found.map(same)

    monkeypatch.setattr(Flow, "source", with_batches)
    batches = True
    quick, alone, taken = ways(shape(name), begun(lanes_of(*WORDS, *WORDS)))
    assert quick == alone
    assert taken
    batches = False
    assert quick == ways(shape(name), begun(lanes_of(*WORDS, *WORDS)))[1]


def loud(batch: Any) -> Any:
    if "bad" in batch["value"].to_pylist():
        raise ValueError("too bad")
    return pa.record_batch({"value": pc.utf8_upper(batch["value"])})


def without_a(batch: Any) -> Any:
    """Words without an a twice, others not at all, but for cats."""
    rows = [
        row
        for row, one in enumerate(batch["value"].to_pylist())
        for _ in range(2 * ("a" not in one) or one == "cat")
    ]
    return batch.take(pa.array(rows, pa.int64())).append_column("row", pa.array(rows, pa.int64()))


def batches_that_fail(flow: Flow) -> None:
    source = words(flow)
    source.map_batches(loud, StringValue).to("loud", partitions=2)
    windows(source.map_batches(without_a, StringValue, index="row"), fold=write)


def batches_of_batches(flow: Flow) -> None:
    source = words(flow)
    some = source.map_batches(without_a, StringValue, index="row")
    merged = source.merge(some.map_batches(same_batch, StringValue)).merge(some)
    merged.to("merged", partitions=2, key=first_letter)
    windows(merged.map_batches(same_batch, StringValue))


@pytest.mark.parametrize("size", [1, 2, 9, 100])
@pytest.mark.parametrize(
    ("declare", "policy"),
    [
        *((batches_that_fail, policy) for policy in ("skip", "dead_letter", "stop")),
        (batches_of_batches, "stop"),
    ],
)
def test_functions_over_batches_give_what_they_give_for_each_row(
    declare: Declare, policy: str, size: int
) -> None:
    def make() -> Flow:
        return flow_of(declare, policy)

    records = records_of([one for batch in begun(lanes_of(*WORDS, *WORDS)) for one in batch])
    with taken_as() as taken:
        quick = outcome(make(), [records[:3], records[3:]], None, size)
    with one_by_one():
        assert quick == outcome(make(), [records[:3], records[3:]], None, size)
    assert taken


def test_a_record_that_the_plan_skips_is_skipped_though_the_policy_is_stop_by_now() -> None:
    """The batch is redone by a flow that is declared otherwise."""
    quick, general, taken = ways(shape("table"), begun(lanes_of(*WORDS)), (LEFT_OUT,))
    assert quick == general
    assert taken
    assert general != ways(shape("table"), begun(lanes_of(*WORDS)))[0]


def test_envelopes_on_a_topic_that_is_declared_raw_by_now_stop_the_service() -> None:
    """Their lanes are known from before."""
    quick, general, taken = ways(
        shape("stop"),
        begun(lanes_of(*WORDS)),
        last=lambda: flow_of(lambda flow: windows(words(flow, raw=True))),
    )
    assert quick == general
    assert not taken
    assert "was declared raw. Its chain would be lost" in str(quick)


def test_values_that_cannot_be_units_are_poison() -> None:
    """They came as values that can, until the source was declared otherwise: of a type that cannot wait."""

    def foreign(flow: Flow) -> None:
        windows(flow.source("words", lambda data: Foreign(data)))  # noqa: PLW0108 - a decoder, whose values only a run knows

    quick, general, taken = ways(shape("stop"), begun(lanes_of(*WORDS)), last=lambda: flow_of(foreign))
    assert quick == general
    assert taken
    assert "PoisonError" in str(quick)


def test_lanes_that_a_run_meets_are_introduced_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes 0 and 1 are of one writer, by two topics. Both are known from the batch before, but not by which ways they come."""
    introduced: list[tuple[str, tuple[Hop, ...]]] = []
    introduce = EventTimes.introduce

    def noted(own: EventTimes, name: str, hops: tuple[Hop, ...]) -> None:
        introduced.append((name, hops))
        introduce(own, name, hops)

    monkeypatch.setattr(EventTimes, "introduce", noted)
    first = [Scripted(1, "plain", "ant", 1, 0), Scripted(0, "plain", "bee", 2, 0)]
    second = [Scripted(lane, "plain", "asp", 5 + number, 0) for number, lane in enumerate([0, 1, 0, 1])]
    quick, general, taken = ways(shape("stop"), [first, second])
    assert quick == general
    assert taken == [4]
    assert introduced[:4] == introduced[4:]
    assert [hops[-1][1] for _, hops in introduced[:4]] == ["raw-1", "raw-0", "raw-0", "raw-1"]


# --- two reasons to stop: the first input is to blame ---------------------------------------------


def closing_in_two_types(flow: Flow) -> None:
    """What a window of `b` gives cannot go out."""
    words(flow).windowed("letters", Tumbling(10), key=first_letter, state=StringValue, fold=write).flat_map(
        in_two_types
    ).to("closed", partitions=2)


CLOSED = "what came of the window from 0 to 10 ms of key b"


def in_two_types(result: Any) -> list[Any]:
    return [StringValue(value="closed"), Int64Value(value=1)][: 2 if result.key == b"b" else 1]


def joined_in_two_types(flow: Flow) -> None:
    """What `boa` gives cannot go out; `asp` gives nothing; `bad` fails."""

    def combine(word: StringValue, _: StringValue) -> StringValue | None:
        if word.value == "bad":
            raise ValueError("too bad")
        return None if word.value == "asp" else word

    joined = keyed(flow).join_table("joined", keyed(flow, "others"), combine)
    joined.flat_map(boa_in_two_types).to("joined", partitions=2)


def late_in_two_types(flow: Flow) -> None:
    """What is dropped as late cannot go out."""

    def combine(word: StringValue, _: StringValue) -> StringValue:
        if word.value == "bad":
            raise ValueError("too bad")
        return word

    joined = keyed(flow).join_table("joined", keyed(flow, "others"), combine)
    joined.to("joined", partitions=2)
    joined.dropped().flat_map(lambda _: [StringValue(), Int64Value()]).to("late", partitions=2)


LATE = [
    Scripted(lane, "plain", word, at_ms, 0)
    for lane, word, at_ms in ((0, "ant", 9), (0, "ant", 5), (1, "bad", 9))
]


def boa_in_two_types(word: Any) -> list[Any]:
    return [word, Int64Value(value=1)][: 2 if word.value == "boa" else 1]


@pytest.mark.parametrize("block", [1, 2, 3, 4, 1000])
@pytest.mark.parametrize(
    ("declare", "batch", "blamed"),
    [
        (closing_in_two_types, lanes_of("ant", "bee", "asp", "bad", step_ms=3), CLOSED),
        (closing_in_two_types, lanes_of("bee", "ant", "asp", "cat", "bad", step_ms=4), CLOSED),
        (joined_in_two_types, lanes_of("asp", "asp", "boa", "bad", step_ms=0), "@5 "),
        (joined_in_two_types, lanes_of("ant", "asp", "boa", "asp", "bad", step_ms=0), "@5 "),
        (joined_in_two_types, lanes_of("ant", "boa", "bad", "asp", step_ms=3), "@4 "),
        (late_in_two_types, LATE, "others[0]@4 "),
    ],
)
def test_of_two_inputs_that_cannot_be_processed_the_first_is_named(
    monkeypatch: pytest.MonkeyPatch, declare: Declare, batch: list[Scripted], blamed: str, block: int
) -> None:
    """What an input gives is gathered before the next one can fail, also where runs end between the two."""
    monkeypatch.setattr(stage_part, "_BLOCK", block)
    quick, general, taken = ways(lambda: flow_of(declare), begun(batch))
    assert quick == general
    assert taken
    assert blamed in str(quick)
    assert "payloads of two types" in str(quick)


@pytest.mark.parametrize("block", [1, 2, 3, 1000])
def test_outputs_of_a_run_are_those_of_their_own_inputs(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(stage_part, "_BLOCK", block)

    def no_asp(flow: Flow) -> None:
        joined = keyed(flow).join_table(
            "joined", keyed(flow, "others"), lambda one, _: None if one.value == "asp" else one
        )
        joined.to("joined", partitions=2)

    batch = lanes_of("asp", "asp", "ant", "asp", "boa", "bee", "asp", "cat", "asp", step_ms=0)
    quick, general, taken = ways(lambda: flow_of(no_asp), begun(batch))
    assert quick == general
    assert taken
