"""Goal: correct flows pass mypy and pyright, with the types that users expect. Method: both check this file; it is never run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never, assert_type

from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain import Flow
from sqe_chain.ext.wal import epoch_of, log_of, sequence_of
from sqe_chain.flow import (
    Change,
    Changes,
    Context,
    Csv,
    CustomStage,
    Stage,
    Stream,
    Timer,
    count,
    last,
    max_,
    mean,
    sum_,
)
from sqe_chain.stages import Tumbling, Window, WindowResult


def length(word: StringValue) -> Int64Value:
    return Int64Value(value=len(word.value))


def length_in_context(word: StringValue, context: Context) -> Int64Value:
    return Int64Value(value=len(word.value) + context.offset)


def same_batch(batch: Any) -> Any:
    return batch


def characters(word: StringValue) -> Iterable[StringValue]:
    return [StringValue(value=character) for character in word.value]


def add(total: Int64Value, word: StringValue) -> None:
    total.value += len(word.value)


def add_and_emit(total: Int64Value, word: StringValue) -> list[StringValue]:
    total.value += len(word.value)
    return [word]


def add_or_delete(total: Int64Value, word: StringValue, context: Context) -> None:
    if word.value:
        total.value += 1
    else:
        context.delete_state()


def decoded(data: bytes) -> StringValue:
    return StringValue(value=data.decode())


def decoded_or_null(data: bytes | None) -> StringValue:
    return StringValue(value=(data or b"").decode())


flow = Flow("right")
words = flow.source("words", StringValue)
flow.source("times", Int64Value, raw=True, timestamp=lambda number: number.value)
flow.source("named", dict, raw=True, timestamp="time")
flow.source("texts", dict, raw=True, timestamp=lambda order: str(order["time"]), no_timestamp="record")
assert_type(words, Stream[StringValue])
assert_type(flow.source("raw", decoded, raw=True), Stream[StringValue])
assert_type(flow.source("nulls", decoded_or_null, nulls="decode"), Stream[StringValue])
assert_type(flow.files("rows", StringValue, "data/*.csv"), Stream[StringValue])
assert_type(flow.files("lines", decoded, [Path("a.jsonl"), "b.jsonl"]), Stream[StringValue])
flow.files("timed", StringValue, "a.csv", timestamp=lambda word: len(word.value))
assert_type(flow.files("parquet", dict, Path("a.parquet"), csv=Csv(delimiter=";")), Stream[dict[Any, Any]])
assert_type(words.map(length), Stream[Int64Value])
assert_type(words.map_batches(same_batch, Int64Value), Stream[Int64Value])
assert_type(words.map_batches(same_batch, Int64Value, columns=["value"], index="row"), Stream[Int64Value])
assert_type(words.map(length_in_context), Stream[Int64Value])
assert_type(words.map(lambda word: word.value), Stream[str])
assert_type(words.map(lambda word, context: (word.value, context.offset)), Stream[tuple[str, int]])
assert_type(words.filter(lambda word: word.value != ""), Stream[StringValue])
assert_type(
    words.filter(lambda word, context: context.key is not None and word.value != ""), Stream[StringValue]
)
assert_type(words.flat_map(characters), Stream[StringValue])
assert_type(words.key_by(lambda word: word.value), Stream[StringValue])
assert_type(words.key_by(lambda _, context: context.topic), Stream[StringValue])
assert_type(words.map(length).merge(words), Stream[Int64Value | StringValue])

assert_type(words.stage("first", "keep-first", key=lambda word: word.value, count=3), CustomStage)

counted = words.aggregate("counted", key=lambda word: word.value, state=Int64Value, fold=add)
assert_type(counted.changes(), Stream[Int64Value])
counted.changes().map(lambda total: total.value)
counted.changes().to("totals", partitions=1, key=lambda total: str(total.value))

emitted = words.aggregate("emitted", state=Int64Value, fold=add_and_emit)
assert_type(emitted, Stage[Int64Value, StringValue])
assert_type(emitted.map(length), Stream[Int64Value])
emitted.to("words.emitted", partitions=1, key=lambda word, context: word.value + context.topic)

deleting = words.aggregate(
    "deleting", key=lambda _, context: context.topic, state=Int64Value, fold=add_or_delete
)
assert_type(deleting.changes(), Stream[Int64Value | None])
deleting.changes().filter(lambda total: total is not None).to("left", partitions=1)

words.ingest(
    "a-table", partition_key="value", row_key="value2", columns={"value": "string", "value2": "int64"}
)
once = words.deduplicate("once", lambda word: word.value, 60_000)
assert_type(once.map(length), Stream[Int64Value])
words.deduplicate_by_key("timed", 60_000, time=lambda word: len(word.value))
once.dropped().map(lambda dropped: dropped.reason)
words.drop_stale("rising", sequence=lambda _, context: context.offset).to("rising", partitions=1)
words.drop_stale("published-once", sequence=sequence_of, epoch=epoch_of, producer=log_of).to(
    "once", partitions=1
)


def add_and_wait(total: Int64Value, word: StringValue, context: Context) -> None:
    context.set_timer(context.timestamp_ms + len(word.value), "name")
    context.delete_timer("other")


def fire(total: Int64Value, timer: Timer, context: Context) -> list[StringValue]:
    return [StringValue(value=f"{timer.name} {timer.at_ms + 1}")]


def fire_silently(total: Int64Value, timer: Timer) -> None:
    total.value += timer.at_ms


timed = words.aggregate("timed", state=Int64Value, fold=add_and_wait, on_timer=fire)
assert_type(timed, Stage[Int64Value | None, StringValue])
assert_type(timed.changes(), Stream[Int64Value | None])
words.aggregate("silent", state=Int64Value, fold=add_and_wait, on_timer=fire_silently, expire_after_ms=5)
expiring = words.aggregate("expiring", state=Int64Value, fold=add, expire_after_ms=5)
assert_type(expiring.changes(), Stream[Int64Value | None])

windows = words.windowed("windows", Tumbling(1_000), key=lambda word: word.value, state=Int64Value, fold=add)
assert_type(windows.map(lambda result: result), Stream[WindowResult])
windows.to("windows", partitions=1, key=lambda result: result.key)


@dataclass
class Total:
    length: int = 0


def add_length(total: Total, word: StringValue) -> None:
    total.length += len(word.value)


typed = words.windowed("typed", Tumbling(1_000), state=Total, fold=add_length)
assert_type(typed.map(lambda window: window), Stream[Window[Total]])
assert_type(typed.map(lambda window: window.state.length), Stream[int])
assert_type(flow.source("typed-windows", Window[Total]), Stream[Window[Total]])

declared = words.aggregate(
    "declared", key="value", words=count(), longest=max_("value"), buckets=2, view="json"
)
assert_type(declared, Stage[Any, Never])
assert_type(declared.changes(), Stream[Any])
declared.changes().map(lambda total: total.longest).to("longest", partitions=1)
words.aggregate("by-function", key=lambda word: word.value, words=count())
words.aggregate("by-topic", key=lambda _, context: context.topic, words=count())
words.aggregate("expiring-words", expire_after_ms=5, guard=None, words=count(), last=last("value"))
declared_windows = words.windowed(
    "declared-windows", Tumbling(1_000), key="value", mean=mean("n", optional=True)
)
assert_type(declared_windows.map(lambda window: window), Stream[Window[Any]])
assert_type(declared_windows.map(lambda window: window.key), Stream[str])
words.windowed(
    "w", Tumbling(1_000), key=lambda word: word.value, lateness_ms=5, total=sum_("n", optional=True)
)
words.windowed(
    "w2", Tumbling(1_000), key="value", time=lambda word: len(word.value), total=sum_("n", optional=True)
)
words.windowed("w3", Tumbling(1_000), state=Int64Value, fold=add, time=lambda word: len(word.value))

numbers = flow.source("numbers", Int64Value)


@dataclass
class Order:
    customer: str
    amount: int


def spend(total: dict[str, int], part: Change[Order]) -> None:
    if part.row is not None:
        total["amount"] = total.get("amount", 0) + part.sign * part.row.amount


orders = flow.changes_of("shop.public.orders", Order, key=["id", "line"])
assert_type(orders, Changes[Order])
assert_type(orders.map(lambda change: change.after), Stream[Order | None])
orders.deltas().aggregate("spent", key=lambda part: str(part.position), state=dict, fold=spend)
named = orders.join_table(
    "orders-named", orders.table(), lambda change, order: StringValue(value=order.customer)
)
assert_type(named.map(lambda name: name), Stream[StringValue])
orders.dropped().to("orders-dropped", partitions=1)
inner = words.join_table("inner", numbers, lambda word, number: StringValue(value=word.value * number.value))
assert_type(inner.map(lambda word: word), Stream[StringValue])
left = words.join_table("left", numbers, lambda word, number: None if number is None else word, how="left")
assert_type(left.map(lambda word: word), Stream[StringValue])  # None is no output
left.dropped().to("left-late", partitions=1)
near = words.join_stream("near", numbers, lambda _, number: number, before_ms=1, after_ms=1)
words.join_stream(
    "w4",
    numbers,
    lambda _, number: number,
    before_ms=1,
    after_ms=1,
    time=lambda word: len(word.value),
    other_time=lambda number: number.value,
)
assert_type(near.map(lambda number: number), Stream[Int64Value])
words.key_by("value").aggregate("by-field", key="value", state=Int64Value, fold=add)
words.deduplicate("once-by-field", "value", 1).to("fields", partitions=1, key="value")
