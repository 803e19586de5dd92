"""A function that wants to end the process, as sys.exit does, ends the service with an error: never with its own status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from sqe_chain.engines.task import failure_of
from sqe_chain.errors import ChainError, from_record
from sqe_chain.flow import Flow
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal


def leave(*_: object) -> Any:
    sys.exit(0)


def close(*_: object) -> Any:
    raise GeneratorExit


Function = Callable[..., Any]


def nothing(state: dict[str, Any], value: object) -> None: ...


def of_operators(flow: Flow, function: Function) -> None:
    flow.source("in", bytes, raw=True).map(function).to("out", partitions=1)


def of_keys_of_outputs(flow: Flow, function: Function) -> None:
    flow.source("in", bytes, raw=True).to("out", key=function, partitions=1)


def of_decoders(flow: Flow, function: Function) -> None:
    flow.source("in", function, raw=True).to("out", partitions=1)


def of_times(flow: Flow, function: Function) -> None:
    flow.source("in", bytes, raw=True, timestamp=function).to("out", partitions=1)


def of_keys(flow: Flow, function: Function) -> None:
    flow.source("in", bytes, raw=True).aggregate("sum", key=function, state=dict, fold=nothing)


def of_folds(flow: Flow, function: Function) -> None:
    def fold(state: dict[str, Any], value: bytes) -> None:
        function(value)

    flow.source("in", bytes, raw=True).aggregate("sum", key=lambda _: "k", state=dict, fold=fold)


def of_changes(flow: Flow, function: Function) -> None:
    def fold(state: dict[str, Any], value: bytes) -> None:
        state["n"] = 1

    summed = flow.source("in", bytes, raw=True).aggregate("sum", key=lambda _: "k", state=dict, fold=fold)
    summed.changes().map(function).to("out", partitions=1)


def of_windows(flow: Flow, function: Function) -> None:
    def fold(state: dict[str, Any], value: bytes) -> None:
        function(value)

    source = flow.source("in", bytes, raw=True)
    source.windowed("sum", Tumbling(1_000), key=lambda _: "k", state=dict, fold=fold).to("out", partitions=1)


@pytest.mark.parametrize("function", [leave, close])
@pytest.mark.parametrize("poison", ["stop", "dead_letter", "skip"])
@pytest.mark.parametrize(
    "declare",
    [
        of_operators,
        of_keys_of_outputs,
        of_decoders,
        of_times,
        of_keys,
        of_folds,
        of_changes,
        of_windows,
    ],
)
def test_it_ends_with_an_error_that_names_the_function(
    declare: Callable[[Flow, Function], None], poison: Any, function: Function
) -> None:
    flow = Flow("leaving", state_partitions=1, poison=poison)
    declare(flow, function)
    found = Rehearsal(flow)
    found.feed("in", b"1")
    with pytest.raises(
        ChainError, match=rf"test_functions_that_exit.py:\d+: {function.__name__}\(\) has"
    ) as caught:
        found.run_until_caught_up()
    assert caught.value.exit_status == 1
    assert all(commit.offset == 0 for commit in found.commits().values())


@pytest.mark.parametrize("function", [leave, close])
def test_so_it_does_in_the_process_of_a_worker(function: Function) -> None:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - what the worker catches
        function()
    assert f"{function.__name__}() has raised" in str(from_record(*failure_of(caught.value)))
