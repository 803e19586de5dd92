"""The generated text of operators gives what closures give that call each other for each value.

Goal: every shape of flow between sources, stages and outputs, errors included. Method: random flows and values, by both ways.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import suppress
from gc import collect
from typing import Any
from weakref import ref

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain.errors import FlowError, PoisonError
from sqe_chain.flow import Flow
from sqe_chain.flow.batches import MapBatchesNode
from sqe_chain.flow.context import Carried, Context, Origin, TopicIdPartition
from sqe_chain.flow.units import number
from sqe_chain.task.collector import Collector
from sqe_chain.task.compiler import Compiler
from sqe_chain.task.operator_text import DEEPEST, operators_after, texts
from sqe_chain.task.poison import place_in_user_code
from sqe_chain.testing import Rehearsal
from tests.support.naive_operators import NaiveCompiler

NOW_MS = 7


def word_of(text: str) -> StringValue:
    return StringValue(value=text)


def refuse(letter: str, value: StringValue) -> None:
    if letter in value.value:
        raise ValueError(f"{letter} in {value.value}")


def louder(value: StringValue) -> StringValue:
    refuse("x", value)
    return word_of(f"{value.value}!")


def where(value: StringValue, context: Context) -> StringValue:
    return word_of(f"{value.value}@{context.offset} {context.key!r} {context.now_ms}")


def short(value: StringValue) -> bool:
    return len(value.value) % 3 != 2


def odd(value: StringValue, context: Context) -> bool:
    return context.offset % 2 == 1 or value.value.startswith("b")


def twice(value: StringValue) -> list[StringValue]:
    refuse("y", value)
    return [word_of(value.value), word_of(f"{value.value}2")]


def same_twice(value: StringValue) -> list[StringValue]:
    return [value, value] if "s" in value.value else [value]


def each(value: StringValue, context: Context) -> list[StringValue]:
    return [word_of(f"{letter}{context.offset}") for letter in value.value[:2]]


def first_letter(value: StringValue) -> str:
    refuse("z", value)
    return value.value[:1]


def as_bytes(value: StringValue) -> bytes:
    return value.value.encode()


def no_text(value: StringValue) -> Any:
    return None if "n" in value.value else 7 if "7" in value.value else value.value[-1:]


def by_offset(value: StringValue, context: Context) -> str:
    return f"{value.value[:1]}{context.offset % 3}"


def softer(batch: Any) -> Any:
    if pc.any(pc.match_substring(batch["value"], "b")).as_py():
        raise ValueError("b in it")
    return pa.record_batch({"value": pc.binary_join_element_wise(batch["value"], "~", "")})


def same(batch: Any) -> Any:
    return batch


def between_a(batch: Any) -> Any:
    """The parts before, between and after each "a": none, one or many."""
    apart = pc.split_pattern(batch["value"], pattern="a")
    parts = pa.record_batch({"from": pc.list_parent_indices(apart), "value": pc.list_flatten(apart)})
    return parts.filter(pc.not_equal(parts["value"], ""))


STEPS: list[Any] = [
    lambda stream: stream.map_batches(softer, StringValue, columns=StringValue),
    lambda stream: stream.map_batches(between_a, StringValue, columns=StringValue, index="from"),
    lambda stream: stream.map(louder),
    lambda stream: stream.map(where),
    lambda stream: stream.filter(short),
    lambda stream: stream.filter(odd),
    lambda stream: stream.flat_map(twice),
    lambda stream: stream.flat_map(same_twice),
    lambda stream: stream.flat_map(each),
    lambda stream: stream.key_by(first_letter),
    lambda stream: stream.key_by(no_text),
    lambda stream: stream.key_by(by_offset),
]
KEYS = [None, first_letter, as_bytes, no_text, by_offset]


def note(state: StringValue, value: StringValue) -> None:
    state.value += value.value


def flow_of(plan: Sequence[tuple[int, int, int]]) -> Flow:
    """A flow: each of its steps continues one of the streams so far, merges two, or ends one in an output or a stage."""
    flow = Flow("f", state_partitions=2)
    streams: list[Any] = [flow.source("in", StringValue)]
    for index, (kind, one, other) in enumerate(plan):
        stream = streams[one % len(streams)]
        if kind < len(STEPS):
            streams.append(STEPS[kind](stream))
        elif kind == len(STEPS) and stream is not streams[other % len(streams)]:
            streams.append(stream.merge(streams[other % len(streams)]))
        elif kind == len(STEPS) + 1:
            stream.to(f"out-{index}", partitions=2, key=KEYS[other % len(KEYS)])
        elif kind == len(STEPS) + 2:
            key = KEYS[other % len(KEYS)]
            stream.aggregate(f"stage-{index}", key=key, state=StringValue, fold=note)
        elif kind == len(STEPS) + 3:
            stream.deduplicate(f"filter-{index}", by_offset if other % 2 else first_letter, 20).to(
                f"out-{index}", partitions=2
            )
    for index, stream in enumerate(streams):
        stream.to(f"end-{index}", partitions=1)
    return flow


plans = st.lists(st.tuples(st.integers(0, len(STEPS) + 3), st.integers(0, 9), st.integers(0, 9)), max_size=9)
words = st.text(alphabet="abxyzns7", max_size=4)


def origin_of(index: int) -> Origin:
    carried = Carried(0, b"", 5, b"k", None, b"e" * 16)
    return ORIGINS.setdefault(
        index, Origin(TopicIdPartition("in", bytes(16), 0), index, 1, 9, b"p", None, None, carried)
    )


ORIGINS: dict[int, Origin] = {}


def ran(
    compiler: type[Compiler | NaiveCompiler],
    flow: Flow,
    values: Sequence[str],
    shuffled: frozenset[int],
    *,
    stop: bool,
) -> object:
    collector, failures = Collector(flow.compile()), dict[int, str]()

    def failed(index: int, error: Exception) -> bool:
        failures.setdefault(index, repr(error))
        return stop

    (source,) = flow.compile().sources
    made: Any = compiler(flow.compile(), collector, NOW_MS, shuffled)
    run = made.after_source(source, origin_of)
    # Two payloads of one record, as in a collection.
    numbers = [index // 2 * 2 if index % 5 == 1 else index for index in range(len(values))]
    paths = [number(index) for index in range(len(values))]
    run(
        numbers,
        [word_of(value) for value in values],
        ([b"own", None] * len(values))[: len(values)],
        paths,
        failed,
    )
    return (
        failures,
        [one for one, index in zip(collector.made, collector.made_of, strict=True) if index not in failures],
        [index for index in collector.made_of if index not in failures],
        {
            stage: [
                unit
                for unit in zip(
                    columns.keys, map(str, columns.values), columns.paths, columns.inputs, strict=True
                )
                if unit[3] not in failures
            ]
            for stage, columns in collector.runs.items()
        },
        {
            stage: [unit for unit in units if unit[4] not in failures]
            for stage, units in collector.units.items()
        },
    )


@settings(max_examples=300, deadline=None)
@given(plans, st.lists(words, max_size=8), st.booleans(), st.booleans())
def test_all_shapes_give_what_closures_give(
    plan: list[tuple[int, int, int]], values: list[str], in_place: bool, stop: bool
) -> None:
    flow = flow_of(plan)
    shuffled = frozenset[int]() if in_place else frozenset(stage.index for stage in flow.compile().stages)
    found: Any = ran(Compiler, flow, values, shuffled, stop=stop)
    expected: Any = ran(NaiveCompiler, flow, values, shuffled, stop=stop)
    if not any(isinstance(node, MapBatchesNode) for node in flow.nodes):
        assert found == expected
        return
    # With functions over batches an input may fail for another reason first, and later ones are tried all the same.
    if not stop:
        assert found[0].keys() == expected[0].keys()
        assert found[1:] == expected[1:]
        return
    (first,) = expected[0] or (len(values),)
    assert min(found[0], default=len(values)) == first
    assert up_to(first, found) == up_to(first, expected)


def up_to(first: int, found: Any) -> object:
    """What was made of the inputs before one."""
    _, made, made_of, runs, units = found
    return (
        [one for one, index in zip(made, made_of, strict=False) if index < first],
        [index for index in made_of if index < first],
        {stage: [unit for unit in own if unit[3] < first] for stage, own in runs.items()},
        {stage: [unit for unit in own if unit[4] < first] for stage, own in units.items()},
    )


@settings(max_examples=100, deadline=None)
@given(plans, st.lists(words, max_size=5))
def test_what_stages_give_is_pushed_as_by_closures(
    plan: list[tuple[int, int, int]], values: list[str]
) -> None:
    flow = Flow("f", state_partitions=2)
    stage = flow.source("in", StringValue).aggregate("first", key=first_letter, state=StringValue, fold=note)
    streams: list[Any] = [stage, stage.changes()]
    for index, (kind, one, other) in enumerate(plan):
        stream = streams[one % len(streams)]
        if kind < len(STEPS):
            with suppress(FlowError):  # changes() take only some of them
                streams.append(STEPS[kind](stream))
        elif kind == len(STEPS) + 1:
            stream.to(f"out-{index}", partitions=2, key=KEYS[other % len(KEYS)])
    for index, stream in enumerate(streams):
        stream.to(f"end-{index}", partitions=1)
    deeper = frozenset(one.index for one in flow.compile().stages)
    for side in ("", "changes"):
        found = []
        for compiler in (Compiler, NaiveCompiler):
            collector, errors = Collector(flow.compile()), list[str]()
            made: Any = compiler(flow.compile(), collector, NOW_MS, deeper)
            push = made.after(flow.compile().stages[0], side)
            for index, value in enumerate(values):
                try:
                    push(
                        None if side and "n" in value else word_of(value),
                        b"key",
                        number(index),
                        origin_of(index),
                    )
                except Exception as error:  # noqa: BLE001 - compared
                    errors.append(repr(error))
                    collector.made.clear()
            found.append((errors, collector.made, collector.units))
        assert found[0] == found[1]


def test_a_long_chain_is_cut_into_functions() -> None:
    """Python nests no more than 20 loops, and 100 levels."""
    flow = Flow("f", state_partitions=1)
    stream: Any = flow.source("in", StringValue)
    for _ in range(10 * DEEPEST):
        stream = stream.filter(short).flat_map(lambda value: [value])
    stream.to("out", partitions=1)
    assert ran(Compiler, flow, ["a", "bb", "abc"], frozenset(), stop=True) == ran(
        NaiveCompiler, flow, ["a", "bb", "abc"], frozenset(), stop=True
    )


def test_streams_that_part_and_merge_again_and_again_are_written_once() -> None:
    flow = Flow("f", state_partitions=1)
    stream: Any = flow.source("in", StringValue)
    for _ in range(15):
        stream = stream.map(louder).merge(stream.filter(short))
    stream.to("out", partitions=1)
    found = operators_after(flow.compile(), flow.compile().sources[0], "", frozenset())
    assert found is not None
    assert len(found.source.splitlines()) < 400


def error_of(flow: Flow, word: str) -> Exception:
    """The error with which the operators after a flow's source fail on a word."""
    errors: list[Exception] = []

    def noted(_: int, error: Exception) -> bool:
        errors.append(error)
        return True

    run = Compiler(flow.compile(), Collector(flow.compile()), NOW_MS, frozenset()).after_source(
        flow.compile().sources[0], origin_of
    )
    run([0], [word_of(word)], [None], [number(0)], noted)
    return errors[0]


def test_an_error_is_placed_in_the_users_code_and_its_trace_shows_the_text() -> None:
    flow = Flow("f", state_partitions=1)
    flow.source("in", StringValue).map(louder).to("out", partitions=1)
    error = error_of(flow, "x")
    assert "in refuse (map, declared at" in place_in_user_code(flow.compile(), error)
    assert all(frame.line for frame in traceback.extract_tb(error.__traceback__))


def test_an_error_of_the_text_itself_is_not_the_users() -> None:
    flow = Flow("f", state_partitions=1)
    flow.source("in", StringValue).map(no_text).to("out", partitions=1)
    error = error_of(flow, "n")
    assert isinstance(error, PoisonError)
    assert place_in_user_code(flow.compile(), error) == ""


def test_the_text_names_what_it_calls() -> None:
    flow = Flow("f", state_partitions=1)
    stage = (
        flow.source("in", StringValue).key_by(first_letter).aggregate("sums", state=StringValue, fold=note)
    )
    stage.changes().filter(short).to("out", partitions=1)
    titles = [text.title for text in texts(flow.compile())]
    assert titles == [
        "operators after source 'in'",
        "operators after changes() of aggregate 'sums'",
    ]
    first, second = (text.source for text in texts(flow.compile()))
    for name in ("# key_by, ", "# into aggregate 'sums', "):
        assert name in first
    assert "test_operator_text.py" in first
    assert "# filter, " in second


def test_a_failing_record_leaves_the_others_alone() -> None:
    flow = Flow("f", state_partitions=1)
    flow.source("in", StringValue).map(louder).to("out", partitions=1)
    found: Any = ran(Compiler, flow, ["a", "b", "x", "c"], frozenset(), stop=False)
    assert list(found[0]) == [2]
    assert [one[3] for one in found[1]] == [word_of(f"{word}!").SerializeToString() for word in "abc"]


def merged_flow(*, again: bool) -> Flow:
    """Values that have passed a function over batches, and others, come into one stage."""
    flow = Flow("f", state_partitions=2)
    source = flow.source("in", StringValue)
    merged: Any = source.map_batches(softer, StringValue).merge(source)
    if again:
        merged = merged.map_batches(softer, StringValue, columns=StringValue)
    merged.aggregate("stage", key=first_letter, state=StringValue, fold=note)
    return flow


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_a_stage_gets_values_in_order_though_some_pass_functions_over_batches(
    in_place: bool, again: bool
) -> None:
    flow = merged_flow(again=again)
    shuffled = frozenset[int]() if in_place else frozenset(stage.index for stage in flow.compile().stages)
    values = ["a", "c", "b", "n", "x7"]
    found: Any = ran(Compiler, flow, values, shuffled, stop=False)
    expected: Any = ran(NaiveCompiler, flow, values, shuffled, stop=False)
    assert found == expected
    (units,) = found[3 if in_place else 4].values()
    assert [unit[3 if in_place else 4] for unit in units] == [0, 0, 0, 0, 3, 3, 4, 4]


def test_of_values_that_come_to_a_function_over_batches_by_two_ways_the_first_that_fails_is_blamed() -> None:
    flow = Flow("f", state_partitions=2)
    source = flow.source("in", StringValue)
    late = source.filter(lambda value: "7" in value.value).map_batches(same, StringValue)
    soon = source.filter(lambda value: "7" not in value.value)
    soon.merge(late).map_batches(softer, StringValue, columns=StringValue).to("out", partitions=1)
    found: Any = ran(Compiler, flow, ["a", "a", "b7", "b"], frozenset(), stop=True)
    assert min(found[0]) == 2


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x0c", "\x85", "\u2028", "\ud800", "\\\n"])
def test_a_folder_s_name_is_no_code_of_the_generated_text(end: str) -> None:
    ran: list[str] = []
    folder = f"/x{end}{' ' * 4}ran.append('ran'){end}{' ' * 16}ran.append('ran') #{end}"
    text = (
        "s = flow.source('t', dict, raw=True).map(one).flat_map(many).filter(bool); s.to('o', partitions=1); "
        "s.aggregate('sums', key=str, state=dict, fold=one2); s.map_batches(one, schema, columns=schema).to('p', partitions=1)"
    )
    flow = Flow("f", state_partitions=1)
    names = {"schema": pa.schema([("a", pa.int64())]), "one2": lambda state, value: None}
    code = compile(text, f"{folder}/flow.py", "exec")
    exec(code, {"flow": flow, "one": lambda value: value, "many": lambda value: [value], "ran": ran, **names})  # noqa: S102
    assert flow.nodes[1].declared_at.startswith("/x")
    service = Rehearsal(flow)
    service.feed("t", {"a": 1})
    service.run_until_caught_up()
    assert [envelope.payload_as(dict) for envelope in service.published("o")] == [{"a": 1}]
    assert [envelope.payload_as(dict) for envelope in service.published("p")] == [{"a": 1}]
    assert not ran


def test_a_flow_is_freed_with_what_was_compiled_for_it() -> None:
    """`rebuild`, `prove` and tests compile one flow after the other in a process."""
    declared = Flow("f", state_partitions=2)
    declared.source("in", StringValue).map(louder).to("out", partitions=1)
    flow = declared.compile()
    Compiler(flow, Collector(flow), NOW_MS, frozenset()).after_source(flow.sources[0], origin_of)
    assert flow.operators
    left = ref(flow)
    del flow, declared
    collect()
    assert left() is None
