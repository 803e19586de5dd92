"""Goal: an error of user code names its place: file, line, function, the step that called it, the input, and the key of its unit."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.errors import PoisonError, text_of
from sqe_chain.flow import Flow
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal


class Odd(Exception):
    """Its `__str__` raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def fails(*_: Any) -> Any:
    raise ValueError("distanc")  # the line that is named


LINE = fails.__code__.co_firstlineno + 1


def decoded(value: bytes) -> StringValue:
    return StringValue(value=json.loads(value)["text"])


def declared(where: str, poison: Any) -> Flow:
    """A flow whose function at this place fails."""
    flow = Flow("typo", state_partitions=1, poison=poison)
    if where == "source":
        source: Any = flow.source("in", fails, raw=True)
    elif where == "library":
        source = flow.source("in", decoded, raw=True)
    else:
        source = flow.source("in", StringValue)
    steps: dict[str, Any] = {
        "map": lambda: source.map(fails),
        "filter": lambda: source.filter(fails),
        "flat_map": lambda: source.flat_map(partial(fails)),
        "key_by": lambda: source.key_by(fails),
    }
    stream = steps[where]() if where in steps else source
    if where == "window":
        stream.windowed(
            "w",
            Tumbling(1),
            key=lambda _: "k",
            state=Int64Value,
            fold=fails,
        ).to("out", partitions=1)
        return flow
    if where == "id":
        stream.deduplicate("once", fails, 1_000).to("out", partitions=1)
        return flow
    key: Any = fails if where == "key" else (lambda _: "k")
    fold: Any = fails if where == "fold" else (lambda state, value: [value])
    stage = stream.aggregate("sum", key=key, state=Int64Value, fold=fold)
    if where == "after":
        stage = stage.map(fails)
    stage.to("out", partitions=1)
    return flow


PLACES = {
    "source": "decoder of source 'in'",
    "map": "map",
    "filter": "filter",
    "flat_map": "flat_map",
    "key_by": "key_by",
    "key": "aggregate 'sum'",
    "fold": "aggregate 'sum'",
    "after": "map",
    "window": "filter 'w'",
    "id": "filter 'once'",
}


UNITS = {
    "fold": "stage 'sum', key b'k'",
    "after": "stage 'sum', key b'k'",
    "window": "stage 'w', key b'k'",
}
"""Stage and key of the unit, where it has come to one; all else is named by the key of its record."""


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("poison", ["stop", "dead_letter"])
def test_the_place_of_an_error_is_named(where: str, poison: Any) -> None:
    rehearsal = Rehearsal(declared(where, poison))
    payload: Any = b"x" if where == "source" else StringValue(value="x")
    rehearsal.feed("in", payload, key="of-record")
    unit = UNITS.get(where, "key b'of-record'")
    if poison == "stop":
        with pytest.raises(PoisonError) as raised:
            rehearsal.run_until_caught_up()
        text = str(raised.value)
        assert "in[0]@0 cannot be processed: ValueError: distanc, at " in text
    else:
        rehearsal.run_until_caught_up()
        (letter,) = rehearsal.log.records("typo.dead-letters")
        text = (dict(letter.headers() or [])["sqe-text"] or b"").decode()
        assert text == f"distanc, at {Path(__file__).name}:{LINE} in fails, {unit}"
        return
    assert text.endswith(
        f", {unit}. Fix the code. To pass over the record, declare poison='dead_letter' for one run; other policies are 'skip' and 'park'"
    )
    assert f"{__file__}:{LINE} in fails ({PLACES[where]}, declared at {__file__}:" in text


def test_of_a_library_that_user_code_calls_the_line_of_the_user_is_named() -> None:
    rehearsal = Rehearsal(declared("library", "stop"))
    rehearsal.feed("in", b"{")
    with pytest.raises(PoisonError, match=rf"JSONDecodeError.*, at {__file__}:\d+ in decoded \(decoder of"):
        rehearsal.run_until_caught_up()


def test_where_no_user_code_ran_no_place_is_named() -> None:
    rehearsal = Rehearsal(declared("map", "stop"))
    rehearsal.feed("in", b"rubbish")
    with pytest.raises(PoisonError) as raised:
        rehearsal.run_until_caught_up()
    assert ", at " not in str(raised.value)


def surrogates(*_: Any) -> Any:
    raise ValueError("no such file: " + b"caf\xe9".decode("utf-8", "surrogateescape"))


def odd(*_: Any) -> Any:
    raise Odd


@pytest.mark.parametrize("function", [surrogates, odd])
@pytest.mark.parametrize("where", ["map", "fold", "changes"])
@pytest.mark.parametrize("poison", ["stop", "skip", "dead_letter"])
def test_texts_that_cannot_be_had_or_written_stop_nothing(function: Any, where: str, poison: Any) -> None:
    """File names that are no text, and exceptions that fail while they format their message."""
    flow = Flow("odd", state_partitions=1, poison=poison)
    source: Any = flow.source("in", Int64Value)
    if where == "map":
        source = source.map(function)
    fold: Any = function if where == "fold" else (lambda state, value: None)
    stage = source.aggregate("sum", key=lambda _: "k", state=Int64Value, fold=fold)
    if where == "changes":
        stage.changes().map(function).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("in", Int64Value(value=1))
    if poison == "stop" or where == "changes":
        with pytest.raises(PoisonError) as raised:
            rehearsal.run_until_caught_up()
        str(raised.value).encode()
        assert where == "map" or "key b'k'" in str(raised.value)
    else:
        rehearsal.run_until_caught_up()
        assert [event["excluded"] for event in rehearsal.events("committed")] == [1]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("plain"), "plain"),
        (ValueError("half \udc80"), "half \\udc80"),
        (Odd(), "(no text: its __str__ raised RuntimeError)"),
    ],
)
def test_text_of_an_error_can_always_be_written(error: Exception, text: str) -> None:
    assert text_of(error) == text
