"""Goal: a codec or a function that cannot reach what it needs is waited for, as a store is; no record is skipped for it.

A codec fails once at each of its calls, one after the other. Flows decode and encode inputs, outputs, states, shuffles,
windows, and records that wait. The same run goes on, and its outputs and states are those of an undisturbed run.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from sqe_chain.codecs import Codec, register
from sqe_chain.errors import PoisonError, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.suites import points

POLICIES: list[PoisonPolicy] = ["stop", "skip", "dead_letter"]
MINUTE_MS = 60_000


@dataclass
class Registry:
    """What the codec asks for each value.

    Attributes:
        calls: that it has answered.
        fails_at: the call that gets no answer; -1: none.
    """

    calls: int = 0
    fails_at: int = -1

    def ask(self) -> None:
        self.calls += 1
        if self.calls - 1 == self.fails_at:
            raise Unavailable("the registry does not answer")


REGISTRY = Registry()


@dataclass
class Reading:
    robot: str = ""
    count: int = 0


class Registered(Codec[Any]):
    """JSON, for which a registry is asked each time."""

    name = "registered"

    def encode(self, value: Any) -> bytes:
        REGISTRY.ask()
        return msgspec.json.encode(value)

    def decode(self, data: bytes) -> Any:
        REGISTRY.ask()
        return msgspec.json.decode(data, type=self.python_type)

    @classmethod
    def takes(cls, python_type: type) -> bool:
        return python_type is Reading


register(Registered)


def add(state: Reading, reading: Reading) -> None:
    state.robot, state.count = reading.robot, state.count + reading.count


def changes(stream: Any) -> Any:
    return stream.aggregate("f", key=lambda reading: reading.robot, state=Reading, fold=add).changes()


def asked_count(reading: Reading) -> int:
    REGISTRY.ask()
    return reading.count


def windows(stream: Any) -> Any:
    kept = {"key": lambda reading: reading.robot, "state": Reading, "fold": add}
    return stream.windowed("f", Tumbling(MINUTE_MS), **kept).map(lambda window: window.state)


FLOWS: dict[str, Callable[[Any], Any]] = {
    "without stages": lambda stream: stream.map(lambda reading: Reading(reading.robot, reading.count + 1)),
    "changes": changes,
    "shuffled": changes,
    "two stages": lambda stream: changes(
        stream.deduplicate("d", lambda reading: str(reading.count), MINUTE_MS)
    ),
    "windows": windows,
    "stale": lambda stream: stream.drop_stale("f", sequence=asked_count, scope="partition", malformed="drop"),
    "given times": windows,
}


def rehearsed(kind: str, policy: PoisonPolicy) -> Rehearsal:
    flow = Flow("neighbour", state_partitions=3 if kind == "shuffled" else 2, poison=policy)
    given: Any = {"timestamp": lambda reading: reading.count * 1_000} if kind == "given times" else {}
    FLOWS[kind](flow.source("in", Reading, codec="registered", raw=True, **given)).to("out", partitions=1)
    return Rehearsal(flow, partitions={"in": 2})


def outcome(rehearsal: Rehearsal) -> Any:
    for half in range(2):
        for number in range(3):
            count = 70 * half + 20 * number + 1
            value = msgspec.json.encode(Reading(f"r{number % 2}", count))
            rehearsal.feed("in", value, partition=number % 2, timestamp_ms=count * 1_000)
        rehearsal.run_until_caught_up()
    begin = REGISTRY.fails_at
    REGISTRY.fails_at = -1
    out = [(envelope.key, envelope.payloads) for envelope in rehearsal.published("out")]
    states = [rehearsal.states(stage.name) for stage in rehearsal.flow.stages if stage.traits.states_by_key]
    REGISTRY.fails_at = begin
    return out, states, [event["excluded"] for event in rehearsal.events("committed") if event["excluded"]]


@pytest.mark.parametrize(
    ("kind", "policy"),
    [*[(kind, policy) for kind in FLOWS for policy in POLICIES], ("changes", "park"), ("shuffled", "park")],
)
def test_an_outage_of_a_codec_is_waited_for_at_each_of_its_calls(kind: str, policy: PoisonPolicy) -> None:
    REGISTRY.calls, REGISTRY.fails_at = 0, -1
    expected = outcome(rehearsed(kind, policy))
    assert expected[0]
    assert not expected[2]
    calls, waited = REGISTRY.calls, 0
    for at in points(f"{kind} {policy}"):
        if at >= calls:
            break
        rehearsal = rehearsed(kind, policy)
        REGISTRY.calls, REGISTRY.fails_at = 0, at
        assert outcome(rehearsal) == expected, at
        waited += len(rehearsal.events("waiting"))
    assert waited


OUTAGES: list[Exception] = [
    Unavailable("no answer"),
    ConnectionRefusedError(111, "refused"),
    TimeoutError("timed out"),
    socket.gaierror(-3, "no name"),
]


def caused(cause: Exception) -> Exception:
    try:
        try:
            raise cause
        except type(cause):
            raise KeyError("schema 7")  # noqa: B904 - as libraries do
    except KeyError as error:
        return error


@pytest.mark.parametrize("error", [*OUTAGES, *map(caused, OUTAGES)], ids=repr)
def test_what_python_raises_for_an_outage_is_one_and_so_is_what_came_from_it(error: Exception) -> None:
    errors = [error]

    def look_up(value: dict[str, Any]) -> dict[str, Any]:
        if errors:
            raise errors.pop()
        return value

    flow = Flow("neighbour", poison="skip")
    flow.source("in", dict, raw=True).map(look_up).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("in", {"a": 1})
    rehearsal.run_until_caught_up()
    assert len(rehearsal.published("out")) == 1
    (waiting,) = rehearsal.events("waiting")
    assert waiting["what"] == "publish"
    assert "in[0]@0" in str(waiting["reason"])


@pytest.mark.parametrize(
    "error", [KeyError("a"), OSError(2, "no file"), OSError("Invalid data stream")], ids=repr
)
def test_any_other_error_is_poison(error: Exception) -> None:
    def refuse(_: object) -> object:
        raise error

    flow = Flow("neighbour", poison="stop")
    flow.source("in", dict, raw=True).map(refuse).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("in", {"a": 1})
    with pytest.raises(PoisonError, match=type(error).__name__):
        rehearsal.run_until_caught_up()
