"""Goal: functions of the wrong type are refused. Method: both checkers must find an error at every line marked, and no other.

`type: ignore` and `pyright: ignore` without an error on their line are errors themselves. The file is never run.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain import Flow
from sqe_chain.ext.wal import log_of
from sqe_chain.flow import Context, count, sum_
from sqe_chain.stages import Tumbling


def length_of_number(number: Int64Value) -> int:
    return number.value


def number_in_context(number: Int64Value, context: Context) -> int:
    return number.value + context.offset


def join_words(word: StringValue, other: StringValue) -> StringValue:
    return StringValue(value=word.value + other.value)


def add_numbers(total: Int64Value, number: Int64Value) -> None:
    total.value += number.value


def join(text: StringValue, word: StringValue) -> None:
    text.value += word.value


def add(total: Int64Value, word: StringValue) -> None:
    total.value += len(word.value)


def same_batch(batch: Any) -> Any:
    return batch


def time_of_text(text: StringValue) -> int:
    return int(text.value)


flow = Flow("wrong")
words = flow.source("words", StringValue)
flow.source("t1", Int64Value, timestamp=time_of_text)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
flow.source("t2", Int64Value, timestamp=lambda number: 1.5)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]

flow.files("f1", Int64Value, "a.csv", timestamp=time_of_text)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
flow.files("f2", Int64Value, 7)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
flow.source("a", 7)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
words.map(length_of_number)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
words.map(number_in_context)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
words.map(lambda word: word.no_such_field)  # type: ignore[attr-defined]  # pyright: ignore
words.filter(length_of_number)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
words.filter(lambda word: word.value)  # type: ignore[arg-type, return-value]  # pyright: ignore
words.flat_map(lambda word: len(word.value))  # type: ignore[arg-type, return-value]  # pyright: ignore
words.map_batches(same_batch, Int64Value, index=0)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
words.map_batches(same_batch, Int64Value).map(lambda number: number.no_such_field)  # type: ignore[attr-defined]  # pyright: ignore
words.key_by(lambda word: len(word.value))  # type: ignore[arg-type, return-value]  # pyright: ignore
words.key_by(lambda word: word.no_such_field)  # type: ignore[attr-defined]  # pyright: ignore
words.to("o1", partitions=1, key=lambda word: word.no_such_field)  # type: ignore[attr-defined]  # pyright: ignore

words.ingest("t", partition_key=lambda word: word.value, row_key="value")  # type: ignore[arg-type]  # pyright: ignore
words.aggregate("a", state=Int64Value, fold=add_numbers)  # type: ignore[arg-type]  # pyright: ignore
words.aggregate("b", state=Int64Value, fold=join)  # type: ignore[arg-type]  # pyright: ignore
words.aggregate("c", state=str, fold=add)  # type: ignore[arg-type]  # pyright: ignore
words.aggregate("d", state=Int64Value, fold=add, key=lambda word: len(word.value))  # type: ignore[arg-type, return-value]  # pyright: ignore
words.aggregate("d2", state=Int64Value, fold=add, key=lambda word: word.no_such_field)  # type: ignore[attr-defined]  # pyright: ignore
words.aggregate("d4", key=lambda word: word.no_such_field, words=count())  # type: ignore[attr-defined]  # pyright: ignore
words.aggregate("g", state=Int64Value, fold=add, expire_after_ms=1.5)  # type: ignore[call-overload]  # pyright: ignore
words.aggregate("h", state=Int64Value, fold=add, on_timer=add)  # type: ignore[arg-type]  # pyright: ignore
words.aggregate("f", state=Int64Value, fold=add).changes().map(lambda total: total.valeu)  # type: ignore[attr-defined]  # pyright: ignore
words.to("out", partitions=1, key=length_of_number)  # type: ignore[arg-type]  # pyright: ignore

words.deduplicate("g", length_of_number, 1)  # type: ignore[arg-type]  # pyright: ignore
words.drop_stale("h", sequence=number_in_context)  # type: ignore[arg-type]  # pyright: ignore
words.drop_stale("n", sequence=log_of)  # type: ignore[arg-type]  # pyright: ignore
words.windowed("i", Tumbling(1), state=Int64Value, fold=add_numbers)  # type: ignore[arg-type]  # pyright: ignore
words.windowed("j", Tumbling(1), state=Int64Value, fold=add, heartbeat=length_of_number)  # type: ignore[arg-type]  # pyright: ignore
words.windowed("j5", Tumbling(1), state=Int64Value, fold=add, time=length_of_number)  # type: ignore[arg-type]  # pyright: ignore
words.windowed("j6", Tumbling(1), key="value", time=lambda word: 1.5, words=count())  # type: ignore[arg-type]  # pyright: ignore
words.join_table("k2", words, join_words, time="value")  # type: ignore[call-overload]  # pyright: ignore
words.join_stream("m2", words, join_words, before_ms=1, after_ms=1, time=length_of_number)  # type: ignore[arg-type]  # pyright: ignore
words.deduplicate_by_key("g2", 1, time=length_of_number)  # type: ignore[arg-type]  # pyright: ignore
words.windowed("j2", Tumbling(1), state=Int64Value, fold=add, key=lambda word: word.no_such_field)  # type: ignore[attr-defined]  # pyright: ignore
words.windowed("j3", Tumbling(1), state=Int64Value, fold=lambda a, word: a.MergeFrom(word.wrong))  # type: ignore[attr-defined]  # pyright: ignore
words.windowed("j4", Tumbling(1), key=lambda word: word.no_such_field, words=count())  # type: ignore[attr-defined]  # pyright: ignore
words.join_table("k", words, add_numbers)  # type: ignore[arg-type]  # pyright: ignore
words.join_table("l", words, join_words, how="left")  # type: ignore[call-overload]  # pyright: ignore
words.join_stream("m", words, length_of_number, before_ms=1, after_ms=1)  # type: ignore[arg-type]  # pyright: ignore

words.aggregate("n", key="value", words=5)  # type: ignore[call-overload]  # pyright: ignore
words.aggregate("o", key=lambda word: len(word.value), words=count())  # type: ignore[arg-type, return-value]  # pyright: ignore
words.aggregate("q", key="value", words=count(), state=Int64Value, fold=add)  # type: ignore[call-overload]  # pyright: ignore
words.aggregate("r", key=length_of_number, words=count())  # type: ignore[arg-type]  # pyright: ignore
words.windowed("t", Tumbling(1), key="value", words=sum_)  # type: ignore[call-overload]  # pyright: ignore
words.windowed("u", Tumbling(1), key="value", words=sum_(5))  # type: ignore[arg-type]  # pyright: ignore
