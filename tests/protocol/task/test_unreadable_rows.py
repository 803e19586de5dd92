"""Goal: what is stored and cannot be read any more stops the service with a documented error that names it, or is poison of its input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import msgspec
import pytest

from sqe_chain.errors import ChangedType, PoisonError
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Sessions, Tumbling
from sqe_chain.testing import Rehearsal


class Strict(msgspec.Struct):
    """A type that from some release on refuses values of before; no field has changed."""

    refuses: ClassVar[bool] = False
    n: int = 0

    def __post_init__(self) -> None:
        """What was below zero once is refused."""
        if Strict.refuses and self.n < 0:
            raise ValueError("it is below zero")


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    Strict.refuses = False
    yield
    Strict.refuses = False


def count(state: Strict, value: dict[str, Any]) -> None:
    state.n -= 1


def merge(state: Strict, later: Strict) -> None:
    state.n += later.n


def key(value: dict[str, Any]) -> str:
    return str(value["k"])


STAGES: dict[str, Callable[[Any], Any]] = {
    "aggregate": lambda stream: stream.aggregate("s", key=key, state=Strict, fold=count),
    "aggregate with expiry": lambda stream: stream.aggregate(
        "s", key=key, state=Strict, fold=count, expire_after_ms=10_000
    ),
    "windows": lambda stream: stream.windowed("s", Tumbling(10_000), key=key, state=Strict, fold=count),
    "sessions": lambda stream: stream.windowed(
        "s", Sessions(10_000), key=key, state=Strict, fold=count, merge=merge
    ),
}


@pytest.mark.parametrize("poison", ["stop", "skip", "dead_letter"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_stored_state_that_its_type_refuses_stops_the_service_by_name(stage: str, poison: Any) -> None:
    """No input is to blame, so no policy leaves one out; a type that takes it again goes on where it was."""
    flow = Flow("strict", state_partitions=1, poison=poison)
    STAGES[stage](flow.source("in", dict, raw=True)).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("in", {"k": "R7"}, timestamp_ms=1_000)
    rehearsal.run_until_caught_up()
    Strict.refuses = True
    rehearsal.service = None
    rehearsal.feed("in", {"k": "R7"}, timestamp_ms=1_001)
    with pytest.raises(ChangedType, match=r"stage 's'.*R7.*it is below zero.*sqe-chain rebuild"):
        rehearsal.run_until_caught_up()
    Strict.refuses = False
    rehearsal.service = None
    rehearsal.run_until_caught_up()
    found = rehearsal.windows("s") if stage in ("windows", "sessions") else None
    assert [one.state.n for one in found] == [-2] if found else rehearsal.states("s")[b"R7"] == Strict(-2)


@pytest.mark.parametrize("poison", ["stop", "skip"])
@pytest.mark.parametrize("how", ["join_table", "join_stream"])
def test_a_row_of_a_join_that_its_type_refuses_stops_the_service_by_name(how: str, poison: Any) -> None:
    flow = Flow("strict", state_partitions=1, poison=poison)
    first, second = (
        flow.source(topic, dict, raw=True).map(negated).key_by(lambda _: "k") for topic in ("in", "of")
    )
    bounds = {"before_ms": 1_000, "after_ms": 1_000} if how == "join_stream" else {}
    getattr(first, how)("s", second, lambda one, other: [one.n, other.n], **bounds).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("of", {"n": 7}, timestamp_ms=1_000)
    rehearsal.run_until_caught_up()
    Strict.refuses = True
    rehearsal.service = None
    rehearsal.feed("in", {"n": 0}, timestamp_ms=1_001)
    with pytest.raises(ChangedType, match=r"stage 's'.*it is below zero"):
        rehearsal.run_until_caught_up()
    Strict.refuses = False
    rehearsal.service = None
    rehearsal.run_until_caught_up()
    assert [envelope.payload_as(list) for envelope in rehearsal.published("out")] == [[0, -7]]


def negated(value: dict[str, Any]) -> Strict:
    return Strict(-value["n"])


def add(state: dict[str, int], value: Strict) -> None:
    state["n"] = state.get("n", 0) + value.n


@pytest.mark.parametrize("poison", ["stop", "skip"])
def test_a_value_that_waits_and_that_its_type_refuses_then_is_poison_of_its_input(poison: Any) -> None:
    flow = Flow("strict", state_partitions=1, poison=poison)
    values = flow.source("in", dict, raw=True).map(negated)
    values.windowed("w", Tumbling(1_000), key=lambda _: "k", state=dict, fold=add, retention_ms=10**9).to(
        "out", partitions=1
    )
    settings = Settings(idle_ms=10**9, max_excluded_share=1.0)
    rehearsal = Rehearsal(flow, partitions={"in": 2}, settings=settings)
    for n in (0, 5, 0):
        rehearsal.feed("in", {"n": n}, partition=0, timestamp_ms=100)
    rehearsal.batch()
    Strict.refuses = True
    rehearsal.service = None
    rehearsal.feed("in", {"n": 0}, partition=1, timestamp_ms=300)
    if poison == "stop":
        with pytest.raises(PoisonError, match=r"in\[0\]@1 .*it is below zero"):
            rehearsal.run_until_caught_up()
        return
    rehearsal.run_until_caught_up()
    excluded: list[Any] = [
        event["excluded_sample"] for event in rehearsal.events("committed") if event.get("excluded")
    ]
    assert [one[0]["input"] for one in excluded] == ["in[0]@1"]
    assert [window.state for window in rehearsal.windows("w")] == [{"n": 0}]
