"""Goal: functions over batches give for each row what they give for it alone, or the error names the row.

Method: functions that fail, that give something else than was declared, and that look at the rows beside a row.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.errors import ServiceStopped
from sqe_chain.flow import Flow
from sqe_chain.flow.batches import MapBatchesNode
from sqe_chain.flow.units import number
from sqe_chain.task.batch_steps import BatchStep
from sqe_chain.task.collector import RunColumns

Seen = tuple[list[Any], list[Any], list[Any], list[int], dict[int, str]]


class Number(msgspec.Struct):
    n: int


def step_of(function: Any, index: str | None = None, gives: Any = Number) -> BatchStep:
    flow = Flow("f")
    node = flow.source("in", Number).map_batches(function, gives, index=index).node
    assert isinstance(node, MapBatchesNode)
    return BatchStep(node)


def applied(
    step: BatchStep, numbers: list[int], *, stop: bool = False, inputs: list[int] | None = None
) -> Seen:
    failures: dict[int, str] = {}

    def failed(at: int, error: Exception) -> bool:
        failures.setdefault(at, f"{type(error).__name__}: {error}")
        return stop

    count = len(numbers)
    given = RunColumns(
        [b"%d" % one for one in numbers],
        [Number(one) for one in numbers],
        [number(one) for one in range(count)],
        inputs or list(range(count)),
    )
    made = step.apply(given, failed)
    return [getattr(value, "n", value) for value in made.values], made.keys, made.paths, made.inputs, failures


def doubled(batch: Any) -> Any:
    if pc.any(pc.equal(pc.bit_wise_and(batch["n"], 7), 7)).as_py():
        raise ValueError("a seven")
    return pa.record_batch({"n": pc.multiply(batch["n"], 2)})


def repeated(batch: Any) -> Any:
    """Each number, repeated by the value of its last two bits."""
    rows = [row for row, one in enumerate(batch["n"].to_pylist()) for _ in range(one & 3)]
    return batch.take(pa.array(rows, pa.int64())).append_column("row", pa.array(rows, pa.int8()))


@given(st.lists(st.integers(0, 30), max_size=20), st.booleans())
def test_rows_that_fail_are_found_and_the_others_go_on(numbers: list[int], stop: bool) -> None:
    values, keys, paths, inputs, failures = applied(step_of(doubled), numbers, stop=stop)
    bad = [at for at, one in enumerate(numbers) if one & 7 == 7]
    if stop and bad:
        bad = bad[:1]
        numbers = numbers[: bad[0]]
    good = [at for at in range(len(numbers)) if at not in bad]
    assert failures == dict.fromkeys(bad, "ValueError: a seven")
    assert (inputs, values) == (good, [2 * numbers[at] for at in good])
    assert keys == [b"%d" % numbers[at] for at in good]
    assert paths == [number(at) for at in good]


@given(st.lists(st.integers(0, 30), max_size=20))
def test_rows_come_from_the_row_that_the_index_names(numbers: list[int]) -> None:
    values, keys, paths, inputs, failures = applied(step_of(repeated, "row"), numbers)
    expected = [(at, count) for at, one in enumerate(numbers) for count in range(one & 3)]
    assert values == [numbers[at] for at, _ in expected]
    assert keys == [b"%d" % numbers[at] for at, _ in expected]
    assert paths == [number(at) + number(count) for at, count in expected]
    assert inputs == [at for at, _ in expected]
    assert not failures


def test_nobody_is_asked_for_no_values() -> None:
    calls: list[int] = []
    assert applied(step_of(lambda batch: calls.append(1)), [])[0] == []
    assert not calls


def test_an_error_costs_few_calls() -> None:
    calls: list[int] = []

    def fails(batch: Any) -> Any:
        calls.append(batch.num_rows)
        return doubled(batch)

    numbers = [0] * 1000
    numbers[400] = 7
    assert list(applied(step_of(fails), numbers)[4]) == [400]
    assert len(calls) < 25


@pytest.mark.parametrize("container", [lambda one: one, lambda one: pa.Table.from_batches([one])])
def test_tables_are_taken_as_batches_are(container: Any) -> None:
    assert applied(step_of(lambda batch: container(doubled(batch))), [1, 2])[0] == [2, 4]
    table = step_of(
        lambda batch: pa.concat_tables([pa.Table.from_batches([one]) for one in (batch, batch)]).slice(
            1, batch.num_rows
        )
    )
    assert applied(table, [5])[0] == [5]


@pytest.mark.parametrize(
    ("function", "index", "text"),
    [
        (lambda batch: None, None, "returned a NoneType, not a pyarrow.RecordBatch"),
        (lambda batch: {"n": [1]}, None, "returned a dict, not"),
        (lambda batch: batch.slice(1), None, "returned 0 rows for 1: without index="),
        (lambda batch: batch.rename_columns(["m"]), None, "returned: Number has n, and no m"),
        (lambda batch: batch, "row", "returned no column 'row', but n"),
        (lambda batch: batch.append_column("row", pa.nulls(1)), "row", "returned None in column 'row'"),
        (lambda batch: batch.append_column("row", pa.array(["0"])), "row", "returned '0' in column 'row'"),
        (
            lambda batch: batch.append_column("row", pa.array([False])),
            "row",
            "returned False in column 'row'",
        ),
        (
            lambda batch: batch.append_column("row", pa.array([1])),
            "row",
            "returned rows 1 to 1 in column 'row'",
        ),
        (lambda batch: batch.append_column("row", pa.array([-1])), "row", "returned rows -1 to -1"),
        (
            lambda batch: batch.append_column("row", pa.array([2**64 - 1], pa.uint64())),
            "row",
            "returned rows",
        ),
    ],
)
def test_what_was_not_declared_is_refused_for_each_row(function: Any, index: str | None, text: str) -> None:
    values, _, _, _, failures = applied(step_of(function, index), [1])
    assert not values
    (error,) = failures.values()
    assert error.startswith("PoisonError: map_batches (declared at ")
    assert text in error


def test_the_function_is_named() -> None:
    (error,) = applied(step_of(doubled, "row"), [1])[4].values()
    assert "map_batches doubled (declared at" in error


def test_of_a_payload_that_fails_nothing_else_counts_but_the_others_are_tried() -> None:
    values, _, _, inputs, failures = applied(step_of(doubled), [1, 7, 7, 2], inputs=[0, 0, 1, 2])
    assert (values, inputs, list(failures)) == ([2, 4], [0, 2], [0, 1])


def total(batch: Any) -> Any:
    return pa.record_batch({"n": [pc.sum(batch["n"]).as_py()]})


def backwards(batch: Any) -> Any:
    rows = list(range(batch.num_rows))[::-1]
    return batch.take(rows).append_column("row", pa.array(rows))


@pytest.mark.parametrize(
    ("function", "index", "text"),
    [(total, None, "returned 1 rows for 2"), (backwards, "row", "returned rows in another order")],
)
def test_rows_that_depend_on_others_stop_the_service(function: Any, index: str | None, text: str) -> None:
    with pytest.raises(ServiceStopped, match=f"{function.__name__} .*{text}.*depends on the rows beside it"):
        applied(step_of(function, index), [1, 2, 3, 4])


def test_a_row_that_gives_too_much_is_poison_and_no_more() -> None:
    def repeat_threes(batch: Any) -> Any:
        many = [one for one in batch["n"].to_pylist() for _ in range(2 if one == 3 else 1)]
        return pa.record_batch({"n": many})

    values, _, _, _, failures = applied(step_of(repeat_threes), [1, 2, 3, 4])
    assert values == [1, 2, 4]
    assert list(failures) == [2]


def test_a_value_without_columns_is_poison() -> None:
    values, _, _, _, failures = applied(step_of(doubled), [1, 2**63, 3])
    assert values == [2, 6]
    assert "n of Number: " in failures[1]


def test_null_where_none_can_be_is_poison() -> None:
    def odd(batch: Any) -> Any:
        return pa.record_batch({"n": pc.if_else(pc.equal(batch["n"], 2), None, batch["n"])})

    values, _, _, _, failures = applied(step_of(odd), [1, 2, 3])
    assert values == [1, 3]
    assert "column 'n' of Number is null" in failures[1]


def test_dicts_are_given_by_a_schema() -> None:
    step = step_of(doubled, gives=pa.schema([("n", pa.int64())]))
    assert applied(step, [1, 2])[0] == [{"n": 2}, {"n": 4}]
