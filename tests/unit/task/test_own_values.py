"""What a function gets is what a codec reads, and nobody else has it: on every layout, in blocks and batches of any length.

Method: the same records and functions by every way; all give the same states and outputs, which are also written out here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from math import nan
from typing import Any, cast

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import PoisonError
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Hopping, Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.number_flows import add

pytestmark = pytest.mark.filterwarnings("ignore::sqe_chain.testing.ValueChanged")

RECORDS = 5


@dataclass
class Reading:
    bar: float
    tags: list[str] = field(default_factory=list)


@dataclass
class Scaled:
    bar: float

    def __post_init__(self) -> None:
        self.bar /= 10


class Level(StrEnum):
    HIGH = "high"


def by_every_way(declare: Callable[[Any], object], event: Callable[[int], object]) -> dict[str, Any]:
    """What a flow leaves and publishes, which is the same by every way.

    Args:
        declare: takes the stream of a raw source of dicts.
        event: number of a record -> its payload.
    """
    found = []
    for in_place in (True, False):
        for block in (1, 2, 1_000):
            for batch in (1, 1_000):
                flow = Flow("ways", state_partitions=1, poison="skip")
                declare(flow.source("in", dict, raw=True))
                service = Rehearsal(
                    flow, settings=Settings(in_place=in_place, max_records=batch), block_records=block
                )
                for number in range(RECORDS):
                    service.feed("in", event(number), partition=0)
                service.run_until_caught_up()
                left_out = sum(int(str(one["excluded"])) for one in service.events("committed"))
                said = {
                    output.name: [
                        payload
                        for envelope in service.published(output.topic)
                        for payload in envelope.payloads
                    ]
                    for output in flow.compile().outputs
                }
                states = {stage.name: service.states(stage.name) for stage in flow.compile().stages}
                found.append({"states": states, "said": said, "left out": left_out})
    assert all(one == found[0] for one in found)
    return found[0]


def remember(state: dict[str, Any], value: Any) -> None:
    state["seen"] = [*state.get("seen", ()), repr(value)]


def append(state: dict[str, Any], value: dict[str, Any]) -> None:
    """Keeps a part of the first value, and changes that."""
    if "items" in state:
        state["items"] += value["items"]
    else:
        state["items"] = value["items"]


def numbers(number: int) -> dict[str, Any]:
    return {"items": [number]}


@pytest.mark.parametrize(
    ("made", "seen"),
    [
        ({"cell": (1, 2)}, "{'cell': [1, 2]}"),
        ({"level": Level.HIGH}, "{'level': 'high'}"),
        ({"at": datetime.fromtimestamp(0, UTC)}, "{'at': '1970-01-01T00:00:00Z'}"),
        (Reading(3), "Reading(bar=3.0, tags=[])"),
        (Scaled(300), "Scaled(bar=3.0)"),
        ([{"deep": ({"x": nan},)}], None),
        ({1: 2}, None),
        ({3}, None),
        (Reading(cast("Any", "no number")), None),
    ],
)  # fmt: skip
def test_a_fold_gets_what_the_codec_reads(made: object, seen: str | None) -> None:
    found = by_every_way(
        lambda stream: stream.map(lambda _: made).aggregate(
            "all", key=lambda _: "k", state=dict, fold=remember
        ),
        numbers,
    )
    assert found["states"]["all"] == ({} if seen is None else {b"k": {"seen": [seen] * RECORDS}})
    assert found["left out"] == (RECORDS if seen is None else 0)


def test_parts_that_values_share_are_copies_in_each() -> None:
    def spread(event: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"to": to, "items": event["items"]} for to in "ab"]

    found = by_every_way(
        lambda stream: stream.flat_map(spread).aggregate(
            "all", key=lambda v: v["to"], state=dict, fold=append
        ),
        numbers,
    )
    assert found["states"]["all"] == {key: {"items": [0, 1, 2, 3, 4]} for key in (b"a", b"b")}


def test_stages_of_one_source_do_not_share_its_values() -> None:
    def declare(stream: Any) -> None:
        for name in ("a", "b"):
            stream.aggregate(name, key=lambda _: "k", state=dict, fold=append)
        stream.filter(bool).aggregate("c", key=lambda _: "k", state=dict, fold=remember)

    found = by_every_way(declare, numbers)["states"]
    assert found["a"] == found["b"] == {b"k": {"items": [0, 1, 2, 3, 4]}}
    assert found["c"][b"k"]["seen"][0] == "{'items': [0]}"


KEPT = Int64Value()


def refill(event: dict[str, Any]) -> Int64Value:
    KEPT.Clear()
    KEPT.value = 2 * event["items"][0]
    return KEPT


def refill_twice(event: dict[str, Any]) -> Iterator[Int64Value]:
    for _ in range(2):
        KEPT.value = event["items"][0]
        yield KEPT


@pytest.mark.parametrize(
    "declare",
    [
        lambda stream: stream.map(refill),
        lambda stream: stream.flat_map(refill_twice),
        lambda stream: stream.map(refill).map_batches(pa_same, Int64Value, columns=Int64Value),
    ],
)
def test_a_function_may_fill_one_message_again_and_again(declare: Callable[[Any], Any]) -> None:
    found = by_every_way(
        lambda stream: declare(stream).aggregate("all", key=lambda _: "k", state=Int64Value, fold=add),
        numbers,
    )
    assert found["states"]["all"][b"k"].value == 20


def pa_same(batch: Any) -> Any:
    return batch


def empty(value: dict[str, Any]) -> dict[str, Any]:
    value["items"].clear()
    return value


@pytest.mark.parametrize("made", [False, True])
def test_branches_do_not_see_what_others_do_to_a_value(made: bool) -> None:
    def declare(stream: Any) -> None:
        values = stream.map(lambda event: {"items": [*event["items"]]}) if made else stream
        shown = values.filter(bool)
        shown.map(empty).to("first", partitions=1)
        values.to("whole", partitions=1)
        values.aggregate("all", key=lambda _: "k", state=dict, fold=append)
        values.filter(bool).merge(shown).map(empty).to("both", partitions=1)
        values.map(lambda value: value["items"]).to("last", partitions=1)

    found = by_every_way(declare, numbers)
    assert found["states"]["all"] == {b"k": {"items": [0, 1, 2, 3, 4]}}
    said = found["said"]
    assert said["whole"] == [b'{"items":[%d]}' % number for number in range(RECORDS)]
    assert said["first"] == [b'{"items":[]}'] * RECORDS
    assert said["both"] == [b'{"items":[]}'] * 2 * RECORDS
    assert said["last"] == [b"[%d]" % number for number in range(RECORDS)]


def test_what_follows_a_stage_cannot_change_its_state() -> None:
    def fold(state: dict[str, Any], value: dict[str, Any]) -> list[dict[str, Any]]:
        append(state, value)
        return [state]

    def declare(stream: Any) -> None:
        states = stream.aggregate("all", key=lambda _: "k", state=dict, fold=fold)
        states.map(empty).to("emptied", partitions=1)

    found = by_every_way(declare, numbers)
    assert found["states"]["all"] == {b"k": {"items": [0, 1, 2, 3, 4]}}
    assert found["said"]["emptied"] == [b'{"items":[]}'] * RECORDS


def test_what_follows_changes_cannot_change_the_state_of_others() -> None:
    flow = Flow("changes", state_partitions=1)
    stage = flow.source("in", dict, raw=True).aggregate("all", key=lambda _: "k", state=dict, fold=append)
    stage.changes().map(empty).to("emptied", partitions=1)
    stage.changes().to("whole", partitions=1)
    service = Rehearsal(flow)
    service.feed("in", {"items": [1]})
    service.run_until_caught_up()
    assert service.published("whole")[0].payloads == (b'{"items":[1]}',)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_class_that_no_other_process_finds_is_refused_on_every_layout(in_place: bool) -> None:
    @dataclass
    class Local:
        bar: float

    flow = Flow("local", state_partitions=1)
    flow.source("in", dict, raw=True).map(lambda _: Local(1.0)).aggregate(
        "all", key=lambda _: "k", state=dict, fold=remember
    )
    service = Rehearsal(flow, settings=Settings(in_place=in_place))
    service.feed("in", {})
    with pytest.raises(PoisonError, match=r"stage 'all' got a Local from map .*not inside a function"):
        service.run_until_caught_up()


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_a_value_that_would_have_to_wait_is_refused_when_it_is_made(policy: Any, partitions: int) -> None:
    flow = Flow("joined", state_partitions=1, poison=policy)
    names = flow.source("names", dict, raw=True).key_by(lambda one: one["k"])
    values = flow.source("values", dict, raw=True)
    made = values.map(lambda one: {"k": one["k"], "v": nan if one["n"] == 1 else 1.0})
    made.key_by(lambda one: one["k"]).join_table("named", names, lambda value, name: [value, name]).to(
        "out", partitions=1
    )
    service = Rehearsal(flow, partitions={"names": partitions, "values": partitions})
    for n in range(3):
        service.feed("names", {"k": str(n)}, timestamp_ms=1, partition=0)
        service.feed("values", {"k": str(n), "n": n}, timestamp_ms=1_000 + n, partition=0)
    service.run_until_caught_up()
    assert len(service.published("out")) == 2
    assert sum(int(str(event["excluded"])) for event in service.events("committed")) == 1


def with_first(value: dict[str, Any], partner: dict[str, Any] | None) -> dict[str, Any]:
    """Takes the first item from its partner, which it may: both are its own."""
    return {
        "n": value.pop("items"),
        "first": partner["items"].pop(0) if partner and partner["items"] else None,
    }


def filled(value: dict[str, Any], partner: dict[str, Any] | None) -> Int64Value:
    KEPT.value = value["items"][0] * 10 + (partner["items"][0] if partner else 9)
    return KEPT


def joined(declare: Callable[[Any, Any], Any], batch: int, values: int = 3, partners: int = 1) -> list[bytes]:
    """What a join publishes: partners come first, and another partition of theirs keeps time."""
    flow = Flow("joined", state_partitions=1)
    streams = [flow.source(name, dict, raw=True).key_by(lambda _: "k") for name in ("values", "partners")]
    declare(*streams).to("out", partitions=1)
    service = Rehearsal(flow, settings=Settings(max_records=batch))
    for number in range(partners):
        service.feed("partners", {"items": [number, 7]}, timestamp_ms=1 + number)
    for number in range(values):
        service.feed("values", {"items": [number]}, timestamp_ms=1_000 + number)
    service.run_until_caught_up()
    for name in ("values", "partners"):
        service.feed(name, {"items": [8, 9]}, timestamp_ms=10**6)
    service.run_until_caught_up()
    return [payload or b"" for envelope in service.published("out") for payload in envelope.payloads]


@pytest.mark.parametrize("batch", [1, 1_000])
def test_each_call_of_combine_has_values_of_its_own(batch: int) -> None:
    by_table = joined(lambda one, other: one.join_table("j", other, with_first), batch)
    assert by_table[:3] == [b'{"first":0,"n":[%d]}' % number for number in range(3)]
    by_time = joined(
        lambda one, other: one.join_stream("j", other, with_first, before_ms=10_000, after_ms=10_000),
        batch,
        partners=2,
    )
    assert by_time[:6] == [b'{"first":%d,"n":[%d]}' % (first, n) for n in range(3) for first in range(2)]


@pytest.mark.parametrize("batch", [1, 1_000])
def test_combine_may_fill_one_message_again_and_again(batch: int) -> None:
    def declare(one: Any, other: Any) -> Any:
        return one.join_stream("j", other, filled, before_ms=10_000, after_ms=10_000, how="left").map(
            lambda value: value.value
        )

    assert joined(declare, batch, partners=2)[:6] == [b"%d" % n for n in (0, 1, 10, 11, 20, 21)]
    assert joined(declare, batch, partners=0)[:3] == [b"9", b"19", b"29"]


def test_what_a_fold_with_the_context_or_timers_gives_may_be_one_message_again_and_again() -> None:
    def fold(state: Int64Value, value: dict[str, Any], context: Any) -> Iterator[Int64Value]:
        for number in value["items"]:
            KEPT.value = number
            yield KEPT

    flow = Flow("refilled", state_partitions=1)
    stream = flow.source("in", dict, raw=True).key_by(lambda _: "k")
    stream.aggregate("with-context", state=Int64Value, fold=fold).to("by-context", partitions=1)
    stream.aggregate("with-timers", state=Int64Value, fold=fold, expire_after_ms=1_000).map(
        lambda value: value.value
    ).to("by-timers", partitions=1)
    service = Rehearsal(flow)
    service.feed("in", {"items": [1, 2]}, timestamp_ms=1)
    service.run_until_caught_up()
    (by_context,) = service.published("by-context")
    assert by_context.payloads_as(Int64Value) == (Int64Value(value=1), Int64Value(value=2))
    assert [envelope.payloads for envelope in service.published("by-timers")] == [(b"1", b"2")]


@dataclass
class Mean:
    total: float = 0
    words: dict[str, int] = field(default_factory=dict)


def add_up(state: Mean, value: dict[str, Any]) -> Iterator[Any]:
    yield state
    if value["items"][0] != 3:
        state.total = value["items"][0]
    yield state


def test_a_number_in_a_field_of_floats_is_a_float_wherever_batches_end() -> None:
    found = by_every_way(
        lambda stream: stream.aggregate("all", key=lambda _: "k", state=Mean, fold=add_up).to(
            "out", partitions=1
        ),
        numbers,
    )
    assert found["states"]["all"] == {b"k": Mean(4.0)}
    totals = [0, 0, 0, 1, 1, 2, 2, 2, 2, 4]
    assert found["said"]["out"] == [b'{"total":%d.0,"words":{}}' % total for total in totals]


def count_words(state: dict[str, Any], value: dict[str, Any]) -> None:
    state["words"] = Counter(value["items"])


def keep_default(state: dict[str, Any], value: dict[str, Any]) -> None:
    state.setdefault("by_name", defaultdict(int))["a"] += 1


def keep_twice(state: dict[str, Any], value: dict[str, Any]) -> None:
    state["last"] = state["first"] = value["items"]


def spoil(state: Mean, value: dict[str, Any]) -> None:
    state.total = value["items"]


@pytest.mark.parametrize("policy", ["skip", "stop"])
@pytest.mark.parametrize("batch", [1, 1_000])
@pytest.mark.parametrize("fold", [count_words, keep_default, keep_twice, spoil])
def test_a_state_that_a_store_would_give_back_otherwise_is_poison(fold: Any, batch: int, policy: Any) -> None:
    flow = Flow("exact", state_partitions=1, poison=policy)
    state = Mean if fold is spoil else dict
    flow.source("in", dict, raw=True).aggregate("all", key=lambda _: "k", state=state, fold=fold)
    service = Rehearsal(flow, settings=Settings(max_records=batch, max_excluded_share=1.0))
    for number in range(3):
        service.feed("in", {"items": [str(number)]})
    if policy == "stop":
        with pytest.raises(
            PoisonError, match=f"fold {fold.__name__} at .* left a state of key b'k' that cannot"
        ):
            service.run_until_caught_up()
    else:
        service.run_until_caught_up()
        assert sum(int(str(event["excluded"])) for event in service.events("committed")) == 3
    assert service.states("all") == {}


SHARED: list[str] = []


@pytest.mark.parametrize("kind", ["aggregate", "windows", "timers"])
@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_states_never_share_an_object(kind: str, policy: Any) -> None:
    """What a fold does to an object that it has put into two states: the batch fails, or each state has its own."""

    def share(state: dict[str, Any], value: dict[str, Any]) -> None:
        state.setdefault("items", SHARED).append(value["items"][0])

    SHARED.clear()
    flow = Flow("sharing", state_partitions=1, poison=policy)
    keyed: Any = flow.source("in", dict, raw=True).key_by(lambda value: str(value["items"][0] % 2))
    if kind == "windows":
        keyed.windowed("all", Tumbling(10**9), state=dict, fold=share).to("out", partitions=1)
    else:
        keyed.aggregate(
            "all", state=dict, fold=share, **({"expire_after_ms": 10**9} if kind == "timers" else {})
        )
    service = Rehearsal(flow)
    for number in range(4):
        service.feed("in", {"items": [number]}, timestamp_ms=number)
    if kind == "aggregate" and policy == "stop":
        with pytest.raises(PoisonError, match="an object that another state holds, too"):
            service.run_until_caught_up()
        return
    service.run_until_caught_up()
    found = (
        [window.state for window in service.windows("all")]
        if kind == "windows"
        else service.states("all").values()
    )
    # The list of the module is the function's own: the second key begins with what the first one has put there.
    assert sorted(map(str, found)) == ["{'items': [0, 1, 3]}", "{'items': [0, 2]}"]


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize(("depth", "taken"), [(200, RECORDS), (201, 0), (600, 0)])
def test_how_deep_a_value_may_be_nested_does_not_depend_on_the_stack(
    made: bool, depth: int, taken: int
) -> None:
    deep: list[Any] = []
    for _ in range(depth - 2):
        deep = [deep]
    found = by_every_way(
        lambda stream: (stream.map(lambda _: {"deep": deep}) if made else stream).aggregate(
            "all", key=lambda _: "k", state=dict, fold=lambda state, _: state.update(n=state.get("n", 0) + 1)
        ),
        numbers if made else lambda _: msgspec.json.encode({"deep": deep}),
    )
    assert found["states"]["all"] == ({b"k": {"n": taken}} if taken else {})
    assert found["left out"] == RECORDS - taken


def test_windows_that_overlap_fold_values_of_their_own() -> None:
    def take(state: dict[str, Any], value: dict[str, Any]) -> None:
        state["n"] = state.get("n", 0) + value.pop("items")[0]

    flow = Flow("overlap", state_partitions=1)
    flow.source("in", dict, raw=True).windowed(
        "all", Hopping(size_ms=20, advance_ms=10), key=lambda _: "k", state=dict, fold=take
    ).map(lambda window: [window.start_ms, window.state["n"]]).to("out", partitions=1)
    service = Rehearsal(flow)
    for at_ms in (12, 25, 1_000):
        service.feed("in", {"items": [at_ms]}, timestamp_ms=at_ms)
    service.run_until_caught_up()
    found = [payload for envelope in service.published("out") for payload in envelope.payloads]
    assert found == [b"[0,12]", b"[10,37]", b"[20,25]"]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    ("made", "text"),
    [
        ({"cell": [1, nan]}, r"from map make at .*: \['cell'\]\[1\] is a float"),
        (Reading(nan), r"from map make at .*: \.bar is a float"),
        ({"by_name": {1: 2}}, r"from map make at .*: \['by_name'\] is a dict"),
    ],
)
def test_the_part_of_a_value_that_its_codec_refuses_is_named(made: object, text: str, in_place: bool) -> None:
    def make(_: object) -> object:
        return made

    flow = Flow("named", state_partitions=1)
    flow.source("in", dict, raw=True).map(make).aggregate("all", key=lambda _: "k", state=dict, fold=remember)
    service = Rehearsal(flow, settings=Settings(in_place=in_place))
    service.feed("in", {})
    with pytest.raises(PoisonError, match=text):
        service.run_until_caught_up()
