"""Goal: wherever a value meets its codec, what that raises costs the value's own input and no other, and names it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, cast

import msgspec
import pytest

from sqe_chain.codecs import Codec, register
from sqe_chain.errors import ConfigurationError, PoisonError
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Sessions, Tumbling
from sqe_chain.testing import Rehearsal

RECORDS = 6
WRONG = 3


class Degrees:
    """A value with a codec of its own."""

    raises: tuple[str, Exception] = ("", ValueError())

    def __init__(self, n: int = 0) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Degrees) and other.n == self.n

    def __hash__(self) -> int:
        return self.n


@register
class AsText(Codec[Degrees]):
    """It refuses one number, when it writes or when it reads."""

    name = "odd-text"

    @classmethod
    def takes(cls, python_type: type) -> bool:
        return python_type is Degrees

    def encode(self, value: Degrees) -> bytes:
        self._refuse("encode", value.n)
        return str(value.n).encode()

    def decode(self, data: bytes) -> Degrees:
        self._refuse("decode", int(data))
        return Degrees(int(data))

    @staticmethod
    def _refuse(way: str, n: int) -> None:
        if n == WRONG and Degrees.raises[0] == way:
            raise type(Degrees.raises[1])(*Degrees.raises[1].args)


def number(value: Any) -> int:
    """That of a value with one."""
    return value.n if type(value) is Degrees else 0


def count(state: dict[str, int], value: Any) -> None:
    state["n"] = state.get("n", 0) + number(value)


def into(state: Degrees, value: Degrees) -> None:
    state.n = number(value)


def give(state: dict[str, int], value: Degrees) -> list[Degrees]:
    return [value]


def merge(state: dict[str, int], later: dict[str, int]) -> None:
    state["n"] += later["n"]


def _key(value: Degrees) -> str:
    return f"k{number(value)}"


def _one(_: Any) -> str:
    return "k"


def _to(stream: Any) -> None:
    stream.to("out", key=_one, partitions=1)


def _joined(values: Any, how: str) -> None:
    both = values.key_by(_one)
    bounds = {"before_ms": 0, "after_ms": 0} if how == "join_stream" else {}
    first, second = both.map(lambda value: Degrees(-number(value))), both.map(lambda value: value)
    _to(getattr(first, how)("j", second, lambda one, _: one, **bounds))


def _dropped(values: Any) -> None:
    found = values.deduplicate("d", lambda _: "id", 1_000)
    _to(found)
    found.dropped().to("dropped", key=_one, partitions=1)


def _branches(values: Any) -> None:
    _to(values.map(lambda value: value))
    values.map(lambda value: value).to("other", key=_one, partitions=1)


PLACES: dict[str, Callable[[Any], None]] = {
    "output": _to,
    "output after flat_map": lambda values: _to(values.flat_map(lambda value: [Degrees(-1), value])),
    "branches": _branches,
    "aggregate": lambda values: values.aggregate("a", key=_key, state=dict, fold=count),
    "aggregate with expiry": lambda values: values.aggregate(
        "a", key=_key, state=dict, fold=count, expire_after_ms=10
    ),
    "what a fold gives": lambda values: _to(values.aggregate("a", key=_key, state=dict, fold=give)),
    "what a fold gives a stage": lambda values: values.aggregate(
        "a", key=_key, state=dict, fold=give
    ).aggregate("b", key=_one, state=dict, fold=count),
    "state": lambda values: values.aggregate("a", key=_key, state=Degrees, fold=into),
    "state with expiry": lambda values: values.aggregate(
        "a", key=_key, state=Degrees, fold=into, expire_after_ms=10
    ),
    "state of windows": lambda values: _to(
        values.windowed("w", Tumbling(1), key=_key, state=Degrees, fold=into)
    ),
    "windows": lambda values: _to(values.windowed("w", Tumbling(1), key=_key, state=dict, fold=count)),
    "sessions": lambda values: _to(
        values.windowed("w", Sessions(1), key=_key, state=dict, fold=count, merge=merge)
    ),
    "filter": lambda values: _to(values.deduplicate("d", _key, 0)),
    "what a filter drops": _dropped,
    "join_table": lambda values: _joined(values, "join_table"),
    "join_stream": lambda values: _joined(values, "join_stream"),
}
ERRORS = (
    StopIteration("odd"),
    KeyError("odd"),
    RecursionError("odd"),
    OverflowError("odd"),
    UnicodeDecodeError("utf-8", b"odd", 0, 1, "odd"),
    PoisonError("odd"),
    ConfigurationError("odd"),
)


def fed(place: str, poison: Any, partitions: int, block: int, source: str) -> Rehearsal:
    """A flow with values as they are read, or as a function makes them, in a rehearsal."""
    flow = Flow("odd", state_partitions=2, poison=poison)
    values: Any = flow.source("in", Degrees, raw=True)
    if source != "read":
        values = values.map(lambda value: made(value.n - 10, source))
    PLACES[place](values)
    settings = Settings(max_excluded_share=1.0)
    rehearsal = Rehearsal(flow, partitions={"in": partitions}, block_records=block, settings=settings)
    for n in range(RECORDS):
        data = b"%d" % (n if source == "read" else n + 10)
        rehearsal.feed("in", data, partition=0, timestamp_ms=n)
    return rehearsal


class Reading(msgspec.Struct):
    """A value whose constructor checks nothing."""

    n: float


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


def in_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


WRITTEN_ONLY = {("output", "wrong field"), ("output", "wrong text")}
"""What JSON takes, and only a reader of the type refuses."""
ODD_VALUES: dict[str, Callable[[], object]] = {
    "wrong field": lambda: Reading(cast("Any", None)),
    "wrong text": lambda: Reading(cast("Any", "3")),
    "not finite": lambda: Reading(float("nan")),
    "infinite in a dict": lambda: {"n": [float("inf")]},
    "keys that are no text": lambda: {1: 2, None: 3},
    "part of a letter": lambda: {"n": "\ud800"},
    "part of a letter as text": lambda: "\udfff",
    "deep": lambda: {"n": nested(900)},
    "object": object,
    "set": lambda: {1},
    "class": lambda: Reading,
    "iterator": lambda: iter(()),
    "class in a function": lambda: msgspec.defstruct("Local", [("n", int)])(1),
    "list in itself": in_itself,
}


def made(n: int, source: str) -> Any:
    """What a function makes of a number."""
    return ODD_VALUES[source]() if n == WRONG and source in ODD_VALUES else Degrees(n)


CASES = [
    pytest.param(*where, ERRORS[number % len(ERRORS)], id="-".join(where))
    for number, where in enumerate(product(PLACES, ("read", "made"), ("encode", "decode")))
]


def stopped_by(place: str, partitions: int, block: int, source: str) -> str:
    """What stops the flow that leaves nothing out; empty where nobody has to encode the value, or to read it again."""
    try:
        fed(place, "stop", partitions, block, source).run_until_caught_up()
    except PoisonError as stopped:
        return str(stopped)
    return ""


@pytest.mark.parametrize(("place", "source", "way", "error"), CASES)
def test_what_a_codec_raises_costs_the_values_own_input(
    monkeypatch: pytest.MonkeyPatch, place: str, source: str, way: str, error: Exception
) -> None:
    """Under `stop` the error names the input. Under `skip` only that is skipped, with and without a shuffle, wherever a block ends."""
    monkeypatch.setattr(Degrees, "raises", (way, error))
    left_out = set[int]()
    for partitions, block in ((2, 1000), (1, 1000), (1, 1)):
        text = stopped_by(place, partitions, block, source)
        assert not text or ("odd" in text and "in[0]@3" in text and "Degrees" in text), text
        rehearsal = fed(place, "skip", partitions, block, source)
        rehearsal.run_until_caught_up()
        batches: list[Any] = rehearsal.events("committed")
        left_out |= {int(bool(text)), sum(batch.get("excluded", 0) for batch in batches)}
        assert sum(batch["inputs"] for batch in batches) == RECORDS
    assert len(left_out) == 1, "every layout says the same"
    assert left_out == {1} or (way == "decode" and source == "made")


@pytest.mark.parametrize("value", ODD_VALUES)
@pytest.mark.parametrize("place", PLACES)
def test_a_value_that_no_codec_takes_costs_its_own_input(place: str, value: str) -> None:
    """The same for values that functions return and that their codecs do not take, or would not read again."""
    if place.startswith("state") or (place, value) in WRITTEN_ONLY:
        return
    if value == "class in a function" and place in ("output", "branches"):
        return  # no other process has to find it
    for partitions in (2, 1):
        text = stopped_by(place, partitions, 1000, value)
        assert "in[0]@3" in text, text
        if "payloads of two types" in text:
            continue
        assert "test_odd_codecs.py" in text, "the function that made it is named, with its line"
        assert type(ODD_VALUES[value]()).__name__ in text, "and the type of the value"
        rehearsal = fed(place, "skip", partitions, 1000, value)
        rehearsal.run_until_caught_up()
        batches: list[Any] = rehearsal.events("committed")
        assert sum(batch.get("excluded", 0) for batch in batches) == 1
        assert sum(batch["inputs"] for batch in batches) == RECORDS


@pytest.mark.parametrize("expiry", [{}, {"expire_after_ms": 1_000}], ids=["plain", "with expiry"])
@pytest.mark.parametrize("poison", ["stop", "skip"])
def test_a_generator_s_state_is_checked_when_it_has_run_to_its_end(
    poison: Any, expiry: dict[str, int]
) -> None:
    """A fold that yields what it has made, and leaves a state that cannot be stored, is to blame like one that returns a list."""

    def yields(state: dict[str, Any], value: dict[str, Any]) -> Any:
        state["last"] = float(value["x"])
        yield state["last"]

    flow = Flow("odd", state_partitions=1, poison=poison)
    values: Any = flow.source("in", dict, raw=True)
    values.aggregate("a", key=_one, state=dict, fold=yields, **expiry).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    for text in ("1", "2", "nan"):
        rehearsal.feed("in", {"x": text}, timestamp_ms=0)
    if poison == "stop":
        with pytest.raises(PoisonError, match=r"key b'k'|in\[0\]@2"):
            rehearsal.run_until_caught_up()
        return
    rehearsal.run_until_caught_up()
    assert rehearsal.states("a")[b"k"] == {"last": 2.0}
