"""Goal: a codec that is used only where it is named serves its values, or the flow is refused where it is declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sqe_chain.codecs import Codec, register
from sqe_chain.errors import FlowError
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal
from tests.unit.flow.test_odd_codecs import PLACES, Degrees


class Kelvin:
    """A value whose type names no codec."""

    def __init__(self, n: int = 0) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kelvin) and other.n == self.n

    def __hash__(self) -> int:
        return self.n


class Numbers(Codec[Kelvin]):
    """Kelvin as text, only where it is named."""

    name = "named-numbers"

    def encode(self, value: Kelvin) -> bytes:
        return b"%d" % value.n

    def decode(self, data: bytes) -> Kelvin:
        return Kelvin(int(data))


@register
class Careless(Numbers):
    """What it reads it writes again as it was."""

    name = "careless-numbers"
    reads_back = True


register(Numbers)

CODECS = (Numbers.name, Careless.name)


@register
class Unstable(Codec["Unsteady"]):
    """It takes its type, and reads alone."""

    name = "unstable-numbers"
    deterministic = False

    @classmethod
    def takes(cls, python_type: type) -> bool:
        return python_type is Unsteady

    def encode(self, value: Unsteady) -> bytes:
        return b"%d" % value.n

    def decode(self, data: bytes) -> Unsteady:
        return Unsteady(int(data))


class Unsteady(Kelvin):
    """A value whose bytes may differ each time."""


def add(state: Kelvin, n: int) -> None:
    state.n += n


def _key(_: object) -> str:
    return "k"


def _sums(values: Any, codec: str) -> Any:
    return values.map(lambda value: value.n).aggregate("sums", key=_key, state=Kelvin, codec=codec, fold=add)


def _two_outputs(values: Any, codec: str) -> None:
    for topic in ("out", "again"):
        values.to(topic, key=_key, codec=codec, partitions=1)


Declare = Callable[[Any, str], object]


def _of_any_codec(place: Callable[[Any], None]) -> Declare:
    return lambda values, _: place(values)


SERVED: dict[str, Declare] = {
    "output": lambda values, codec: values.to("out", key=_key, codec=codec, partitions=1),
    "two outputs": _two_outputs,
    "filter": lambda values, codec: values.filter(lambda _: True).to(
        "out", key=_key, codec=codec, partitions=1
    ),
    "map": lambda values, codec: values.map(lambda value: value.n).to("out", key=_key, partitions=1),
    "state": _sums,
    "changed states": lambda values, codec: (
        _sums(values, codec).changes().to("out", codec=codec, partitions=1)
    ),
}
BY_TYPE = {name: place for name, place in PLACES.items() if name != "output after flat_map"}
"""Where values of the source come by their type. Only a run knows the type of what a function gives."""
REFUSED: dict[str, Declare] = {
    **{name: _of_any_codec(place) for name, place in BY_TYPE.items()},
    "map_batches": lambda values, _: values.map_batches(lambda batch: batch, int, columns=int).to(
        "out", key=_key, partitions=1
    ),
    "a map beside an output": lambda values, codec: (
        values.to("out", key=_key, codec=codec, partitions=1),
        values.map(lambda value: value.n).to("other", key=_key, partitions=1),
    ),
    "changed states in an output": lambda values, codec: (
        _sums(values, codec).changes().to("out", partitions=1)
    ),
    "changed states that are filtered": lambda values, codec: (
        _sums(values, codec).changes().filter(lambda _: True).to("out", codec=codec, partitions=1)
    ),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("place", SERVED)
def test_it_serves_where_it_is_named_with_and_without_a_shuffle_and_in_a_later_batch(
    place: str, partitions: int, codec: str
) -> None:
    flow = Flow("named", state_partitions=2)
    SERVED[place](flow.source("in", Kelvin, codec=codec, raw=True), codec)
    service = Rehearsal(flow, partitions={"in": partitions})
    for number in (1, 2):
        service.feed("in", b"%d" % number, partition=0, timestamp_ms=number)
        service.run_until_caught_up()
    if "state" in place:
        assert service.states("sums") == {b"k": Kelvin(3)}
    if place != "state":
        sums = [b"1", b"3"] if "states" in place else [b"1", b"2"]
        assert [payload for envelope in service.published("out") for payload in envelope.payloads] == sums


@pytest.mark.parametrize("place", REFUSED)
def test_a_place_that_finds_codecs_by_type_is_refused_where_it_is_declared(place: str) -> None:
    for codec in CODECS:
        flow = Flow("named", state_partitions=2)
        REFUSED[place](flow.source("in", Kelvin, codec=codec, raw=True), codec)
        with pytest.raises(FlowError, match=rf"\.py:\d+: .*Kelvin: codec '{codec}' is used only where"):
            flow.compile()


@pytest.mark.parametrize("place", BY_TYPE)
def test_a_codec_that_is_not_deterministic_is_refused_there_too(place: str) -> None:
    flow = Flow("unsteady", state_partitions=2)
    PLACES[place](flow.source("in", Unsteady, raw=True))
    with pytest.raises(FlowError, match="does not give the same bytes each time"):
        flow.compile()


@pytest.mark.parametrize("place", PLACES)
def test_behind_a_map_to_a_type_with_a_codec_every_place_takes_its_values(place: str) -> None:
    flow = Flow("mapped", state_partitions=2)
    values = flow.source("in", Kelvin, codec=Careless.name, raw=True)
    PLACES[place](values.map(lambda value: Degrees(value.n)))
    service = Rehearsal(flow, partitions={"in": 2})
    for number in (1, 2):
        service.feed("in", b"%d" % number, timestamp_ms=number)
    service.run_until_caught_up()
    batches: list[Any] = service.events("committed")
    assert sum(batch["inputs"] for batch in batches) == 2
