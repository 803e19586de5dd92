"""A function that wants to end the process, as sys.exit does, ends the service with an error: never with its own status."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sqe_chain.engines.spark.tasks import _pack, _settled, _single
from sqe_chain.engines.task import failure_of
from sqe_chain.errors import ChainError, from_record
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal
from tests.support.user_functions import PLACES, Place, fed, like


def leave(*_: object) -> Any:
    sys.exit(0)


def close(*_: object) -> Any:
    raise GeneratorExit


def interrupt(*_: object) -> Any:
    raise KeyboardInterrupt


def cancel(*_: object) -> Any:
    raise asyncio.CancelledError


def parse(*_: object) -> Any:
    argparse.ArgumentParser().parse_args(["--unknown"])


EXITS = [leave, close, interrupt, cancel, parse]


Function = Callable[..., Any]


@pytest.mark.parametrize("function", EXITS)
@pytest.mark.parametrize("poison", ["stop", "dead_letter", "skip"])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_it_ends_with_an_error_that_names_the_function(place: Place, poison: Any, function: Function) -> None:
    rehearsal = fed(place, like(place, function), poison)
    with pytest.raises(ChainError, match=rf"exit.py:\d+: {function.__name__}\(\) has") as caught:
        rehearsal.run_until_caught_up()
    assert caught.value.exit_status == 1
    assert all(commit.offset == 0 for commit in rehearsal.commits().values())


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As in a terminal: what a shell starts in the background ignores this signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stays_what_it_is() -> None:
    def pressed(_: bytes) -> Any:
        signal.raise_signal(signal.SIGINT)

    flow = Flow("interrupted", state_partitions=1)
    flow.source("in", bytes, raw=True).map(pressed).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("in", b"1")
    with pytest.raises(KeyboardInterrupt):
        rehearsal.run_until_caught_up()


@pytest.mark.parametrize("function", EXITS)
def test_so_it_does_in_a_task_of_spark(function: Function) -> None:
    """Its rows name what has failed; the process of the task goes on."""
    text = f"{function.__name__}() has raised"
    work: Any = SimpleNamespace(packed=SimpleNamespace(digest="settled"), parts=1, inline=0, shared_file=None)
    _settled.add("settled")
    assert text in str([batch.to_pylist() for batch in _single(function, work)])

    def blocks() -> Any:
        yield from ()
        function()

    assert text in str([batch.to_pylist() for batch in _pack(blocks, work, 0, [])])


@pytest.mark.parametrize("function", EXITS)
def test_so_it_does_in_the_process_of_a_worker(function: Function) -> None:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - what the worker catches
        function()
    assert f"{function.__name__}() has raised" in str(from_record(*failure_of(caught.value)))
