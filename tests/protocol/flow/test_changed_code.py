"""Goal: code that was exchanged at the wrong moment, or reads states wrongly, is stopped by name; all else goes on.

Method: a run crashes around each step; the next one has another declaration of the same flow. Either it ends
exactly, or it stops with an error that names what to run, and the code before then ends exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import DoubleValue, Int64Value, UInt64Value

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ChangedType, PartitionsMismatch, PlanMismatch, ServiceStopped
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow, Stage, Stream
from sqe_chain.plans.events import When
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.dynamic_messages import message_type
from tests.support.plans import last_plan, reseal_last_plan


def add(total: Int64Value, number: Int64Value) -> list[Int64Value]:
    total.value += number.value
    return [number]


def keep(_total: object, _number: object) -> None:
    pass


def residue(number: Int64Value) -> str:
    return str(number.value % 3)


def everything(_number: Int64Value) -> str:
    return "all"


Numbers = Stream[Int64Value]
Counts = Stage[Int64Value, Int64Value]
Change = Callable[[Flow, Numbers, Counts, Stage[Int64Value, Any]], object]


def flow_of(change: Change = lambda *_: None, **settings: Any) -> Flow:
    flow = Flow("sums", **{"state_partitions": 2, "poison": "skip", **settings})
    source = flow.source("numbers", Int64Value)
    first = source.aggregate("first", key=residue, state=Int64Value, fold=add)
    first.to("out", partitions=2)
    second = first.aggregate("second", key=everything, state=Int64Value, fold=add)
    change(flow, source, first, second)
    return flow


def another_source(flow: Flow, *_: object) -> None:
    flow.source("other", Int64Value).aggregate("more", key=everything, state=Int64Value, fold=keep)


CHANGES: dict[str, tuple[Change, str]] = {
    "stage of level 1": (
        lambda _f, source, *_: source.aggregate("more", key=everything, state=Int64Value, fold=keep),
        "stage/more is new",
    ),
    "stage of level 2": (
        lambda _f, _s, first, _t: first.aggregate("more", key=everything, state=Int64Value, fold=keep),
        "stage/more is new",
    ),
    "filter": (
        lambda _f, source, *_: source.deduplicate("once", residue, 10).to("more", partitions=1),
        "stage/once is new; output/more is new",
    ),
    "output": (lambda _f, _s, first, _t: first.to("more", partitions=1), "output/more is new"),
    "changes": (lambda *a: a[3].changes().to("more", partitions=1), "output/more is new"),
    "source": (another_source, "stage/more is new; source/other is new"),
}
MOMENTS: list[tuple[int, When]] = [(4, "after"), (5, "after"), (6, "before"), (6, "after")]


def crashed(step: int, when: When, change: Change = lambda *_: None) -> Rehearsal:
    """A run that has counted 0 to 5, and has crashed in the batch of 6 to 11."""
    rehearsal = Rehearsal(flow_of(change), partitions={"numbers": 2})
    for topic in ("more", "other"):
        rehearsal.log.create_topic(topic, 1)
    for first in (0, 6):
        for number in range(first, first + 6):
            rehearsal.feed("numbers", Int64Value(value=number), partition=number % 2)
        rehearsal.feed("numbers", b"rubbish")
        if first:
            rehearsal.crash(step=step, when=when)
            rehearsal.run_until_crash()
            assert rehearsal.crashes == 1
        else:
            rehearsal.run_until_caught_up()
    return rehearsal


def check(rehearsal: Rehearsal) -> None:
    sums = {key: state.value for key, state in rehearsal.states("first").items()}
    assert sums == {b"0": 18, b"1": 22, b"2": 26}
    assert rehearsal.states("second")[b"all"].value == 66
    assert {envelope.payload_as(Int64Value).value for envelope in rehearsal.published("out")} == set(
        range(12)
    )


@pytest.mark.parametrize(("step", "when"), MOMENTS)
@pytest.mark.parametrize("what", CHANGES)
def test_code_with_more_in_it_waits_for_what_the_code_before_has_begun(
    what: str, step: int, when: When
) -> None:
    change, text = CHANGES[what]
    rehearsal = crashed(step, when)
    rehearsal.flow = flow_of(change)
    with pytest.raises(PlanMismatch, match="Run the code that sealed it") as stopped:
        rehearsal.run_until_caught_up()
    assert text in str(stopped.value)
    rehearsal.flow = flow_of()
    rehearsal.start()
    rehearsal.flow = flow_of(change)
    rehearsal.run_until_caught_up()
    check(rehearsal)


@pytest.mark.parametrize(("step", "when"), MOMENTS)
@pytest.mark.parametrize("what", CHANGES)
def test_code_with_less_in_it_waits_too(what: str, step: int, when: When) -> None:
    """What was sealed with a stage or an output is not half done because they are gone."""
    change, _ = CHANGES[what]
    rehearsal = crashed(step, when, change)
    rehearsal.flow = flow_of()
    drop = tuple(stage.name for stage in flow_of(change).compile().stages if stage.name in ("more", "once"))
    with pytest.raises(ServiceStopped, match=r"is gone|no longer"):
        rehearsal.start(settings_of(takeover=True, allow_weak_durability=True, drop_stages=drop))
    rehearsal.flow = flow_of(change)
    rehearsal.run_until_caught_up()
    check(rehearsal)


def test_when_a_stage_is_fed_from_elsewhere_the_plan_is_finished_first() -> None:
    def beside(_flow: Flow, source: Numbers, first: Counts, _second: Counts) -> None:
        source.aggregate("more", key=everything, state=Int64Value, fold=add)

    def behind(_flow: Flow, source: Numbers, first: Counts, _second: Counts) -> None:
        first.aggregate("more", key=everything, state=Int64Value, fold=add)

    rehearsal = crashed(6, "after", beside)  # else: "a store lost acknowledged writes"
    rehearsal.flow = flow_of(behind)
    with pytest.raises(PlanMismatch, match="stage/more"):
        rehearsal.start()
    rehearsal.flow = flow_of(beside)
    rehearsal.start()
    rehearsal.flow = flow_of(behind)
    rehearsal.run_until_caught_up()
    check(rehearsal)


@pytest.mark.parametrize(("step", "when"), MOMENTS)
def test_another_policy_for_poison_does_not_matter_to_a_sealed_plan(step: int, when: When) -> None:
    rehearsal = crashed(step, when)
    rehearsal.flow = flow_of(poison="stop")
    rehearsal.run_until_caught_up()
    check(rehearsal)


@pytest.mark.parametrize(("step", "when"), MOMENTS)
def test_another_number_of_state_partitions_is_refused_by_name(step: int, when: When) -> None:
    rehearsal = crashed(step, when)
    rehearsal.flow = flow_of(state_partitions=3)
    with pytest.raises(PartitionsMismatch):
        rehearsal.start()
    rehearsal.flow = flow_of()
    rehearsal.run_until_caught_up()
    check(rehearsal)


def test_a_plan_that_only_brings_in_a_stage_may_be_finished_by_code_with_one_more() -> None:
    rehearsal = crashed(7, "after")
    rehearsal.flow = flow_of(CHANGES["stage of level 1"][0])
    rehearsal.crash(step=6)
    rehearsal.run_until_crash()

    def two(flow: Flow, source: Numbers, first: Counts, second: Counts) -> None:
        CHANGES["stage of level 1"][0](flow, source, first, second)
        source.aggregate("third", key=everything, state=Int64Value, fold=keep)

    rehearsal.flow = flow_of(two)
    rehearsal.run_until_caught_up()
    check(rehearsal)


def forget_layouts(rehearsal: Rehearsal) -> None:
    """The last plan as an import of an older export leaves it: what was not noted there is not known."""
    forgotten: dict[str, Any] = {"ways": {}, "types": {}}
    rehearsal.log.forget("sums")  # it has the plan's id; an import ends with a commit of its own
    reseal_last_plan(rehearsal.stores[""], "sums", lambda plan: plan["layout"].update(forgotten))


# --- types ------------------------------------------------------------------------------------------


def totals_of(state: type[Message], name: str = "totals", **settings: Any) -> Flow:
    def total(found: Any, number: Int64Value) -> None:
        found.miles += number.value

    flow = Flow("sums", state_partitions=1)
    source = flow.source("numbers", Int64Value)
    if settings:
        keyed = source.windowed(name, key=everything, state=state, fold=total, **settings)
        keyed.to("out", partitions=1)
    else:
        source.aggregate(name, key=everything, state=state, fold=total)
    return flow


WHOLE, WIDE, FLOATING = (
    message_type({"State": f"string name = 1; {kind} miles = 2"}) for kind in ("uint32", "int64", "double")
)


def counted(state: type[Message]) -> Rehearsal:
    rehearsal = Rehearsal(totals_of(state), store=MemoryStore(f"types-{id(state)}-{object()!r}"))
    for number in (1, 2, 3):
        rehearsal.feed("numbers", Int64Value(value=number))
    rehearsal.run_until_caught_up()
    return rehearsal


def miles(rehearsal: Rehearsal, stage: str = "totals") -> float:
    return float(rehearsal.states(stage)[b"all"].miles)


def test_states_that_would_be_read_as_zero_are_not_touched_and_rebuild_takes_the_type_over() -> None:
    rehearsal = counted(WHOLE)
    rehearsal.flow = totals_of(FLOATING)
    with pytest.raises(
        ChangedType,
        match=r"'totals'.*field 2 .*rebuild",
    ):
        rehearsal.start()
    with pytest.raises(ChangedType):
        rehearsal.exported()
    rehearsal.flow = totals_of(WHOLE)
    assert miles(rehearsal) == 6
    rehearsal.flow = totals_of(FLOATING)
    rehearsal.rebuild()
    rehearsal.feed("numbers", Int64Value(value=4))
    rehearsal.run_until_caught_up()
    assert miles(rehearsal) == 10
    rehearsal.flow = totals_of(WHOLE)
    with pytest.raises(ChangedType, match="was double, now it is uint32"):
        rehearsal.start()


def test_a_stage_of_another_name_begins_empty_with_another_type() -> None:
    rehearsal = counted(WHOLE)
    rehearsal.flow = totals_of(FLOATING, "floating")
    rehearsal.start(settings_of(takeover=True, allow_weak_durability=True, drop_stages=("totals",)))
    rehearsal.feed("numbers", Int64Value(value=4))
    rehearsal.run_until_caught_up()
    assert miles(rehearsal, "floating") == 4


def test_what_reads_the_same_goes_on_and_is_known_from_then_on() -> None:
    rehearsal = counted(WHOLE)
    for state in (WIDE, message_type({"State": "string name = 1"}), FLOATING):
        rehearsal.flow = totals_of(WHOLE) if state is not WIDE else totals_of(WIDE)
        if state is FLOATING:  # its number is still taken
            rehearsal.flow = totals_of(FLOATING)
            with pytest.raises(ChangedType):
                rehearsal.start()
            continue
        if not hasattr(state(), "miles"):
            flow = Flow("sums", state_partitions=1)
            flow.source("numbers", Int64Value).aggregate("totals", key=everything, state=state, fold=keep)
            rehearsal.flow = flow
        rehearsal.start()
        rehearsal.run_until_caught_up()
    rehearsal.flow = totals_of(WIDE)
    rehearsal.feed("numbers", Int64Value(value=4))
    rehearsal.run_until_caught_up()
    assert miles(rehearsal) == 10


def test_a_layout_without_types_learns_them_and_is_compared_from_then_on() -> None:
    rehearsal = counted(WHOLE)
    forget_layouts(rehearsal)
    rehearsal.start()
    assert last_plan(rehearsal.stores[""], "sums").layout.types["stage/totals"].name == "made.State"
    rehearsal.flow = totals_of(FLOATING)
    with pytest.raises(ChangedType):
        rehearsal.start()


def test_windows_and_aggregates_are_no_states_of_each_other() -> None:
    rehearsal = counted(WHOLE)
    windows: dict[str, Any] = {"windows": Tumbling(1_000)}
    rehearsal.flow = totals_of(WHOLE, **windows)
    rehearsal.log.create_topic("out", 1)
    with pytest.raises(ChangedType, match="it was aggregate, now it is windows"):
        rehearsal.start()


def test_states_of_windows_are_compared() -> None:
    windows: dict[str, Any] = {"windows": Tumbling(1_000)}
    rehearsal = Rehearsal(totals_of(WHOLE, **windows))
    rehearsal.start()
    rehearsal.flow = totals_of(FLOATING, **windows)
    with pytest.raises(ChangedType, match="was uint32, now it is double"):
        rehearsal.start()


@pytest.mark.parametrize("raw", [True, False])
def test_inputs_whose_type_reads_something_else_are_refused(raw: bool) -> None:
    def flow(payload: type[Message]) -> Flow:
        made = Flow("sums", state_partitions=1)
        made.source("numbers", payload, raw=raw).aggregate(
            "all", key=lambda _: "all", state=Int64Value, fold=lambda *_: None
        )
        return made

    rehearsal = Rehearsal(flow(WHOLE))
    rehearsal.start()
    rehearsal.flow = flow(WIDE)
    rehearsal.start()
    rehearsal.flow = flow(FLOATING)
    with pytest.raises(ChangedType, match=r"'numbers'.*was int64.*rebuild"):
        rehearsal.start()
    rehearsal.rebuild()
    rehearsal.start()


@pytest.mark.parametrize("raw", [True, False])
def test_an_envelope_names_its_type_itself(raw: bool) -> None:
    """So a topic may go on with another type; where it has none, another type must read the same."""

    def flow(payload: type[Message]) -> Flow:
        made = Flow("sums", state_partitions=1)
        made.source("numbers", payload, raw=raw).aggregate(
            "all", key=lambda _: "all", state=Int64Value, fold=lambda *_: None
        )
        return made

    rehearsal = Rehearsal(flow(UInt64Value))
    rehearsal.start()
    rehearsal.flow = flow(DoubleValue)
    if raw:
        with pytest.raises(ChangedType, match=r"UInt64Value.*DoubleValue"):
            rehearsal.start()
    else:
        rehearsal.start()


def passing(payload: Any, *, raw: bool) -> Flow:
    """A flow without stages, which keeps its place in its group's commits alone."""
    made = Flow("passing")
    made.source("numbers", payload, raw=raw).map(lambda value: Int64Value(value=int(value.miles))).to(
        "passed", partitions=1
    )
    return made


@pytest.mark.parametrize("raw", [True, False])
def test_a_flow_without_stages_refuses_a_type_that_reads_something_else_in_the_rest(raw: bool) -> None:
    rehearsal = Rehearsal(passing(WHOLE, raw=raw))
    rehearsal.feed("numbers", WHOLE(miles=1))
    rehearsal.run_until_caught_up()
    rehearsal.feed("numbers", WHOLE(miles=2))
    rehearsal.flow, rehearsal.service = passing(FLOATING, raw=raw), None
    with pytest.raises(ChangedType, match=r"'numbers'.*field 2 of made\.State"):
        rehearsal.start()
    rehearsal.flow = passing(WIDE, raw=raw)
    rehearsal.start()
    rehearsal.run_until_caught_up()
    rehearsal.feed("numbers", WIDE(miles=3))
    rehearsal.flow, rehearsal.service = passing(WHOLE, raw=raw), None
    with pytest.raises(ChangedType, match="was int64, now it is uint32"):
        rehearsal.start()


@pytest.mark.parametrize("raw", [True, False])
def test_a_flow_without_stages_that_has_read_all_may_go_on_with_any_type(raw: bool) -> None:
    """From its start on, not only from its next batch on."""
    rehearsal = Rehearsal(passing(WHOLE, raw=raw))
    rehearsal.feed("numbers", WHOLE(miles=1))
    rehearsal.run_until_caught_up()
    rehearsal.flow, rehearsal.service = passing(FLOATING, raw=raw), None
    rehearsal.start()
    rehearsal.feed("numbers", FLOATING(miles=2))
    rehearsal.start()
    rehearsal.run_until_caught_up()
    assert [one.payload_as(Int64Value).value for one in rehearsal.published("passed")] == [1, 2]
