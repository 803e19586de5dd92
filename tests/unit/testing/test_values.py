"""Rehearsals and proofs report values that their codec changes, and functions that change what they only look at."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from sqe_chain import Flow
from sqe_chain.errors import NotDeterministic, NotExact
from sqe_chain.flow import Context
from sqe_chain.task import operator_text
from sqe_chain.testing import Rehearsal, ValueChanged, prove


def add(state: dict[str, Any], value: dict[str, Any]) -> None:
    state["n"] = state.get("n", 0) + 1


def located(value: dict[str, Any]) -> dict[str, Any]:
    return {"robot": value["robot"], "cell": (value["n"], 0), "none": None, "speed": 1}


def rehearsed(flow: Flow) -> Rehearsal:
    service = Rehearsal(flow)
    for number in range(3):
        service.feed("in", {"robot": "r", "n": number})
    service.run_until_caught_up()
    return service


def test_a_value_that_its_codec_changes_is_reported_once_for_each_place() -> None:
    flow = Flow("changed", state_partitions=1)
    flow.source("in", dict, raw=True).map(located).aggregate(
        "all", key=lambda v: v["robot"], state=dict, fold=add
    )
    with pytest.warns(ValueChanged) as reported:
        service = rehearsed(flow)
    (warning,) = reported
    assert "map located at" in str(warning.message)
    assert str(warning.message).endswith("-> stage 'all': ['cell'] is a tuple, read back a list")
    assert service.states("all") == {b"r": {"n": 3}}


def test_a_value_that_is_read_back_the_same_is_not_reported() -> None:
    flow = Flow("same", state_partitions=1)
    flow.source("in", dict, raw=True).map(dict).aggregate(
        "all", key=lambda v: v["robot"], state=dict, fold=add
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rehearsed(flow)


def forgets(value: dict[str, Any]) -> bool:
    return bool(value.pop("n") >= 0)


def names(value: dict[str, Any]) -> str:
    value["seen"] = True
    return "r"


def names_in_context(value: dict[str, Any], context: Context) -> str:
    return f"{names(value)}{context.partition}"


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda stream: stream.filter(forgets).to("out", partitions=1), "filter.*calls forgets at"),
        (lambda stream: stream.key_by(names).to("out", partitions=1), "key_by.*calls names at"),
        (
            lambda stream: stream.to("out", partitions=1, key=names_in_context),
            "output 'out'.*calls names_in_context at",
        ),
        (
            lambda stream: stream.aggregate("all", key=names, state=dict, fold=add),
            "aggregate 'all'.*calls names at",
        ),
    ],
)
def test_a_function_that_changes_what_it_only_looks_at_is_an_error(declare: Any, text: str) -> None:
    flow = Flow("looking", state_partitions=1)
    declare(flow.source("in", dict, raw=True))
    with pytest.raises(NotDeterministic, match=text):
        rehearsed(flow)


def test_a_proof_compares_layouts_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a stage without a shuffle takes the very object that a function has returned."""
    flow = Flow("layouts", state_partitions=1)
    flow.source("in", dict, raw=True).map(located).aggregate(
        "all", key=lambda v: v["robot"], state=dict, fold=kinds
    )
    events = [{"robot": "r", "n": number} for number in range(3)]
    with pytest.warns(ValueChanged):
        prove(flow, {"in": events}, schedules=2, other_processes=False)
    monkeypatch.setattr(operator_text.OperatorWriter, "_read_back", staticmethod(lambda _, value: value))
    again = Flow("layouts", state_partitions=1)
    again.source("in", dict, raw=True).map(located).aggregate(
        "all", key=lambda v: v["robot"], state=dict, fold=kinds
    )
    named = rf"map located at .* -> stage 'all', folded by kinds at {__file__}(.|\s)*after a shuffle"
    with pytest.raises(NotExact, match=named):
        prove(again, {"in": events}, schedules=2, other_processes=False)


def kinds(state: dict[str, Any], value: dict[str, Any]) -> None:
    state["kind"] = type(value["cell"]).__name__
