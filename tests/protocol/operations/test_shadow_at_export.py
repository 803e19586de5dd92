"""Goal: a shadow that begins at an export folds on from there exactly, needs no older inputs, and never begins at states that do not fit.

Method: words are noted under their initials, as in `test_shadow.py`. What must come out is computed from the words alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.envelope.revisions import Revision
from sqe_chain.errors import ConfigurationError, LostOffsets
from sqe_chain.flow import Flow
from sqe_chain.operations.copied_states import check_can_begin_at
from sqe_chain.operations.shadow import records_behind
from sqe_chain.plans.mirrors import Mirrors
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.revisions import Revisions
from sqe_chain.testing import Crash
from tests.support.environments import environment_of
from tests.support.plans import last_plan
from tests.support.rebuilding import AFTER, BEFORE, Pipeline
from tests.support.shadows import exported, flow_of, follow, insert_word, running, shouting
from tests.support.word_flows import append_word, first_letter, same_key, stored_words


def stored_names(pipeline: Pipeline) -> set[str]:
    """The names under which there are states."""
    return {name for name, _ in pipeline.stored_stages()}


def lose_what_is_there(pipeline: Pipeline) -> None:
    """Retention deletes all inputs up to now."""
    log = pipeline.found.log
    for tp, bounds in log.bounds([("words", 0), ("words", 1)]).items():
        log.truncate_before(*tp, bounds.stable_end)


def test_it_needs_no_older_inputs_takes_the_place_of_the_flow_and_goes_back() -> None:
    pipeline = running()
    lines = exported(pipeline)
    lose_what_is_there(pipeline)
    with pytest.raises(LostOffsets):
        follow(pipeline, flow_of())
    pipeline.feed(AFTER[:1])
    before = pipeline.published(), pipeline.found.commits()
    follow(pipeline, flow_of(), lines)
    assert (pipeline.published(), pipeline.found.commits()) == before
    assert records_behind(environment_of(pipeline.found)) == 0
    assert [(result.equal, result.same) for result in pipeline.found.compared(flow_of())] == [
        (len({text[0] for text in pipeline.words}), True),
        (1, True),
    ]
    pipeline.feed(AFTER[1:2])
    follow(pipeline, flow_of())  # it goes on without the file, and with it
    follow(pipeline, flow_of(), lines)
    found = pipeline.found.compared_outputs(flow_of())
    assert (found.counts.equal, found.same) == (2, True)
    assert "copied from an export" in found.texts()[-1]
    pipeline.found.switch(flow_of())
    pipeline = pipeline.same(flow_of())
    pipeline.feed(AFTER[2:])
    pipeline.check()
    pipeline.found.switch_back(flow_of())
    pipeline = pipeline.same(flow_of())
    pipeline.feed(["zoo"])
    pipeline.check()
    assert stored_names(pipeline) == {"notes"}


def test_only_what_has_changed_since_can_differ_and_it_is_refused_without_the_flag() -> None:
    pipeline, flow = running(), flow_of(fold=shouting)
    lines = exported(pipeline)
    pipeline.feed(["zoo", "fly"])
    follow(pipeline, flow, lines)
    letters, _ = pipeline.found.compared(flow)
    initials = {text[0] for text in [*BEFORE, "zoo"]}
    assert (letters.equal, letters.different) == (len(initials) - 2, 2)
    assert {key for key, _, _ in letters.examples} == {"f", "z"}
    with pytest.raises(ConfigurationError, match=r"stage 'letters': .* 2 different"):
        pipeline.found.switch(flow)
    pipeline.feed(AFTER[:1])
    pipeline.check()
    pipeline.found.switch(flow, accept_differences=True)
    assert stored_words(pipeline.found)["f"] == "fig fox FLY"


def test_it_begins_at_states_of_a_rebuild_and_of_a_switch() -> None:
    pipeline = running()
    pipeline.found.rebuild()
    pipeline.feed(AFTER[:1])
    for more in (AFTER[1:2], AFTER[2:]):
        lines = exported(pipeline)
        pipeline.feed(more)
        follow(pipeline, flow_of(), lines)
        pipeline.found.switch(flow_of())
        pipeline = pipeline.same(flow_of())
        pipeline.check()
    pipeline.feed(["zoo"])
    pipeline.check()


# ---------------------------------------------------------------------- what does not fit


def rebuilt(pipeline: Pipeline) -> None:
    pipeline.found.rebuild()


def rewound(pipeline: Pipeline) -> None:
    pipeline.found.rebuild(to={("words", 0): 1})


def went_over(pipeline: Pipeline) -> None:
    follow(pipeline, flow_of())
    pipeline.found.switch(flow_of())


@pytest.mark.parametrize("then", [rebuilt, rewound, went_over])
def test_an_export_of_before_a_rebuild_rewind_or_switch_is_refused(
    then: Callable[[Pipeline], None],
) -> None:
    pipeline = running()
    lines = exported(pipeline)
    then(pipeline)
    pipeline.found.run_until_caught_up()
    before = pipeline.store.copy_all()
    with pytest.raises(ConfigurationError, match="is of before the flow was rebuilt, rewound, switched"):
        follow(pipeline, flow_of(), lines)
    assert pipeline.store.copy_all() == before


def of_a_later_plan(plan: Plan) -> Plan:
    return replace(plan, number=plan.number + 100)


def of_another_plan(plan: Plan) -> Plan:
    return replace(plan, plan_id="another")


def of_other_births(plan: Plan) -> Plan:
    """The flow was forgotten, and has begun again."""
    stages = {name: replace(stage, birth=stage.birth + 1) for name, stage in plan.layout.stages.items()}
    return replace(plan, layout=replace(plan.layout, stages=stages))


def of_another_beginning(plan: Plan) -> Plan:
    return replace(plan, layout=replace(plan.layout, starts={("words", 1): 2}))


def of_another_topic(plan: Plan) -> Plan:
    return replace(plan, layout=replace(plan.layout, sources={"words": ("00" * 16, 2)}))


def of_another_cluster(plan: Plan) -> Plan:
    return replace(plan, layout=replace(plan.layout, cluster="another"))


def of_before_a_failover(plan: Plan) -> Plan:
    return plan.with_sections(Mirrors("another"))


def of_other_revisions(plan: Plan) -> Plan:
    return plan.with_sections(Revisions({"words": (Revision(2, {}),)}))


def ahead(plan: Plan) -> Plan:
    return replace(plan, ranges=tuple(replace(planned, stop=planned.stop + 9) for planned in plan.ranges))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (of_a_later_plan, "is not of this flow's past: the flow is at plan"),
        (of_another_plan, "is not of this flow's past"),
        (of_other_births, "rebuilt, rewound, switched or begun again"),
        (of_another_beginning, r"has counted words\[1\] from offset 2 to \d+, and the flow from 0"),
        (of_another_topic, "inputs that the flow does not read now, or that were created again"),
        (of_another_cluster, "before the flow went on in another cluster"),
        (of_before_a_failover, "before the flow went on in another cluster"),
        (of_other_revisions, "before the flow followed the revisions"),
        (ahead, r"has counted words\[0\] from offset 0 to \d+, and the flow"),
    ],
)
def test_an_export_that_is_not_of_the_flow_as_it_is_now_is_refused(
    changed: Callable[[Plan], Plan], named: str
) -> None:
    pipeline = running()
    env, live = environment_of(pipeline.found), last_plan(pipeline.store, "notes")
    check_can_begin_at(env, live, live)
    with pytest.raises(ConfigurationError, match=named):
        check_can_begin_at(env, changed(live), live)


def other_stages(how: str) -> Flow:
    """The flow, declared otherwise."""
    if how == "partitions":
        return flow_of(3)
    if how == "new":
        return flow_of(more="more")
    flow = Flow("notes", state_partitions=2)
    words = flow.source("words", StringValue)
    state = Int64Value if how == "type" else StringValue
    first = words.aggregate("letters", key=first_letter, state=state, fold=append_word)  # type: ignore[arg-type]
    first.to("firsts", key=first_letter, partitions=2)
    if how != "gone":
        stream = words if how == "way" else first
        stream.aggregate("all", key=same_key, state=StringValue, fold=insert_word).changes().to(
            "totals", partitions=1
        )
    return flow


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("partitions", "2 state partitions, declared are now 3"),
        ("new", "stage 'more' is new: it would lack all that was counted before"),
        ("gone", "stage 'all', which the flow no longer has"),
        ("type", "stage 'letters' holds states of type"),
        ("way", "stage 'all' came from .*letters.*, now from .*words"),
    ],
)
def test_new_code_that_cannot_take_up_the_states_is_refused_and_nothing_is_stored(
    how: str, named: str
) -> None:
    pipeline = running()
    lines = exported(pipeline)
    before = pipeline.store.copy_all()
    with pytest.raises(ConfigurationError, match=f"{named}.*without --from-export"):
        follow(pipeline, other_stages(how), lines)
    assert pipeline.store.copy_all() == before


def test_an_export_that_is_older_than_the_inputs_is_refused_as_a_start_would() -> None:
    pipeline = running()
    lines = exported(pipeline)
    pipeline.feed(AFTER)
    lose_what_is_there(pipeline)
    before = pipeline.store.copy_all()
    with pytest.raises(LostOffsets, match="the log begins at"):
        follow(pipeline, flow_of(), lines)
    assert pipeline.store.copy_all() == before
    follow(pipeline, flow_of(), exported(pipeline))


def cut(lines: list[str]) -> list[str]:
    return lines[:-2]


def changed_row(lines: list[str]) -> list[str]:
    return [*lines[:2], lines[2].replace('"state": "', '"state": "AAAA'), *lines[3:]]


def of_another_flow(lines: list[str]) -> list[str]:
    return [lines[0].replace('"flow": "notes"', '"flow": "other"'), *lines[1:]]


@pytest.mark.parametrize("tamper", [cut, changed_row, of_another_flow])
def test_what_is_no_whole_export_of_the_flow_leaves_no_state_and_no_shadow(
    tamper: Callable[[list[str]], list[str]],
) -> None:
    pipeline = running()
    lines = exported(pipeline)
    with pytest.raises(ConfigurationError, match=r"was changed|Expected one of 'notes'"):
        follow(pipeline, flow_of(), tamper(lines))
    assert stored_names(pipeline) == {"notes"}
    with pytest.raises(ConfigurationError, match="has no shadow"):
        pipeline.found.switch(flow_of())
    follow(pipeline, flow_of(), lines)
    pipeline.found.switch(flow_of())
    pipeline = pipeline.same(flow_of())
    pipeline.feed(AFTER)
    pipeline.check()


@pytest.mark.parametrize("at_export", [False, True])
def test_a_shadow_that_has_begun_elsewhere_is_not_gone_on_with(*, at_export: bool) -> None:
    pipeline = running()
    lines = exported(pipeline)
    follow(pipeline, flow_of(), lines if at_export else None)
    pipeline.feed(AFTER[:1])
    later = exported(pipeline)
    with pytest.raises(ConfigurationError, match="is there, and has not begun at this export"):
        follow(pipeline, flow_of(), later)
    follow(pipeline, flow_of())
    pipeline.found.end_shadow(flow_of())
    follow(pipeline, flow_of(), later)
    assert all(result.same for result in pipeline.found.compared(flow_of()))


# ---------------------------------------------------------------------- kills


def interrupted(pipeline: Pipeline, lines: list[str]) -> None:
    """A start that is killed when it has copied some states."""
    pipeline.found.crash_at_write(7)
    with pytest.raises(Crash):
        follow(pipeline, flow_of(), lines)
    assert len(stored_names(pipeline)) > 1


def test_states_that_were_half_copied_are_no_shadow_and_are_deleted_by_what_comes_next() -> None:
    pipeline = running()
    lines = exported(pipeline)
    for then in ("end", "start", "rebuild"):
        interrupted(pipeline, lines)
        with pytest.raises(ConfigurationError, match="has no shadow"):
            pipeline.found.switch(flow_of())
        pipeline.feed([f"x{then}"])
        if then == "end":
            pipeline.found.end_shadow(flow_of())
        elif then == "start":
            follow(pipeline, flow_of())
            pipeline.found.end_shadow(flow_of())
        else:
            pipeline.found.rebuild()
        assert len(stored_names(pipeline)) == 1
    pipeline.check()


def test_an_end_of_what_was_half_copied_leaves_the_way_back() -> None:
    pipeline = running()
    follow(pipeline, flow_of())
    pipeline.found.switch(flow_of())
    pipeline = pipeline.same(flow_of())
    interrupted(pipeline, exported(pipeline))
    pipeline.found.end_shadow(flow_of())
    pipeline.found.switch_back(flow_of())
    pipeline = pipeline.same(flow_of())
    pipeline.feed(AFTER)
    pipeline.check()
