"""Goal: new code beside a flow changes nothing of it, is compared at equal positions, and takes its place exactly or not at all.

Method: words are noted under their initials. A shadow follows, while the flow goes on; each kind of change is declared by it. What must
come out is computed from the words alone.
"""

from __future__ import annotations

import sys
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.engines.module_sources import digests_of_modules
from sqe_chain.errors import ChainError, ConfigurationError, ServiceStopped, Superseded
from sqe_chain.features.shadowing import Compared
from sqe_chain.operations.following import changed_code
from sqe_chain.operations.shadow import records_behind
from sqe_chain.operations.switching import is_between_batches
from sqe_chain.plans.planning import published_by
from sqe_chain.testing import Crash
from sqe_chain.testing.faults import InjectedFault, PortCall
from tests.support.environments import environment_of
from tests.support.plans import last_plan
from tests.support.rebuilding import AFTER, BEFORE
from tests.support.shadows import (
    flow_of,
    follow,
    has_switched,
    loud_of,
    running,
    shouting,
    switch_while_it_runs,
    switched,
)
from tests.support.word_flows import stored_words, word


def _die_once_the_way_back_is_noted(call: PortCall, _: object) -> None:
    if call.text.startswith("home of notes.before-1"):
        raise Crash("before the cut-over")


def test_a_shadow_publishes_and_changes_nothing_and_is_equal() -> None:
    pipeline = running()
    before = pipeline.published(), pipeline.found.commits()
    follow(pipeline, flow_of())
    assert (pipeline.published(), pipeline.found.commits()) == before
    pipeline.check()
    assert [(result.stage, result.equal, result.same) for result in pipeline.found.compared(flow_of())] == [
        ("letters", len({word[0] for word in BEFORE}), True),
        ("all", 1, True),
    ]


def test_a_shadow_follows_while_the_flow_goes_on() -> None:
    pipeline = running()
    shadow = pipeline.found.shadow(flow_of())
    service = shadow.start()
    for text in AFTER:
        while shadow.batch():
            pass
        pipeline.feed([text])
        moved = pipeline.found.compared(flow_of())
        assert sum(result.moved for result in moved) > 0
        assert records_behind(environment_of(pipeline.found)) == 1
        assert not any(result.different or result.missing or result.added for result in moved)
    pipeline.found.feed("words", word("zoo"), key="z")  # which the flow has not read
    while shadow.batch():
        pass
    assert all(result.same for result in pipeline.found.compared(flow_of()))
    assert records_behind(environment_of(pipeline.found)) == 0
    service.leave()


def test_what_differs_is_named_with_its_states() -> None:
    def backwards(state: StringValue, payload: StringValue) -> list[StringValue]:
        state.value = f"{payload.value} {state.value}"
        return [payload]

    pipeline = running()
    flow = flow_of(fold=backwards)
    follow(pipeline, flow)
    letters, total = pipeline.found.compared(flow)
    twice = {word[0] for word in BEFORE if [other[0] for other in BEFORE].count(word[0]) > 1}
    assert letters.different == len(twice)
    assert ("f", "fig fox ", "fox fig ") in letters.examples
    assert total.same
    with pytest.raises(
        ConfigurationError, match=f"stage 'letters': .*{len(twice)} different.*accept-differences"
    ):
        pipeline.found.switch(flow)
    pipeline.feed(AFTER[:1])  # it goes on with its code
    pipeline.check()
    follow(pipeline, flow)
    pipeline.found.switch(flow, accept_differences=True)
    assert stored_words(pipeline.found)["f"] == "fox fig"


@pytest.mark.parametrize("state_partitions", [2, 3])
def test_a_switch_takes_the_shadows_states_and_publishes_nothing_twice(state_partitions: int) -> None:
    pipeline = running()
    flow = flow_of(state_partitions)
    follow(pipeline, flow)
    pipeline.feed(AFTER[:2])  # the switch folds the rest
    pipeline.found.switch(flow)
    pipeline = pipeline.same(flow)
    pipeline.check()
    pipeline.feed(AFTER[2:])
    pipeline.check()
    with pytest.raises(ConfigurationError, match="has no shadow"):
        pipeline.found.compared(flow)
    follow(pipeline, flow)  # another one
    pipeline.found.switch(flow)
    pipeline.feed(["zoo"])
    pipeline.check()


def test_a_follower_that_wakes_after_the_switch_changes_nothing() -> None:
    pipeline = running()
    zombie = pipeline.found.shadow(flow_of())
    zombie.start()
    pipeline.feed(AFTER[:1])
    follower = pipeline.found.shadow(flow_of())
    follower.start()
    pipeline.found.switch(flow_of())
    pipeline.feed(AFTER[1:])
    for late in (zombie, follower):
        with pytest.raises((ServiceStopped, Superseded)):
            late.batch()
    pipeline.check()


def test_a_new_stage_is_there_after_the_switch_with_all_inputs() -> None:
    pipeline = running()
    flow = flow_of(more="more")
    follow(pipeline, flow)
    assert [result.stage for result in pipeline.found.compared(flow) if result.new] == ["more"]
    pipeline.found.switch(flow)
    pipeline.feed(AFTER)
    pipeline.check()
    assert stored_words(pipeline.found, "more") == stored_words(pipeline.found)


@pytest.mark.parametrize("then", ["end", "rebuild", "back", "switch"])
def test_a_stage_and_its_output_that_the_new_code_has_not_need_a_flag_and_stay_as_long_as_there_is_a_way_back(
    then: str,
) -> None:
    before, flow = flow_of(more="more", published=True), flow_of()
    pipeline = running(before)
    follow(pipeline, flow)
    assert [(result.stage, result.same) for result in pipeline.found.compared(flow) if result.gone] == [
        ("more", False)
    ]
    refused = "stage 'more' is not in the new code.*output 'mores' is not in the new code: readers of 'mores'"
    with pytest.raises(ConfigurationError, match=refused):
        pipeline.found.switch(flow)
    pipeline.found.switch(flow, accept_differences=True)
    pipeline = pipeline.same(flow)
    pipeline.feed(AFTER[:1])
    assert ("notes", "more") in pipeline.stored_stages()
    if then == "back":
        pipeline.found.switch_back(before)
        pipeline = pipeline.same(before)
        assert stored_words(pipeline.found, "more") == stored_words(pipeline.found)
    elif then == "end":
        pipeline.found.end_shadow(flow)
    elif then == "rebuild":
        pipeline.found.rebuild()
    else:
        follow(pipeline, flow)
        pipeline.found.switch(flow)
        pipeline.found.end_shadow(flow)
    assert (("notes", "more") in pipeline.stored_stages()) == (then == "back")
    pipeline.feed(AFTER[1:])
    pipeline.check()


def test_a_rebuild_deletes_the_states_of_a_stage_that_the_code_has_no_more() -> None:
    pipeline = running(flow_of(more="more"))
    pipeline.found.service = None
    pipeline = pipeline.same(flow_of())
    pipeline.found.rebuild()
    assert "more" not in {stage for _, stage in pipeline.stored_stages()}
    pipeline.feed(AFTER)
    pipeline.check()


def test_a_shadow_that_is_ended_leaves_nothing_and_its_follower_changes_nothing() -> None:
    pipeline = running()
    follower = pipeline.found.shadow(flow_of())
    follower.start()
    pipeline.found.end_shadow(flow_of())
    pipeline.feed(AFTER[:1])
    with pytest.raises((ServiceStopped, Superseded)):
        follower.batch()
    assert {name for (name, _, _), part in pipeline.store.copy_all().parts.items() if part.states} == {
        "notes"
    }
    with pytest.raises(ConfigurationError, match="has no shadow"):
        pipeline.found.switch(flow_of())
    follow(pipeline, flow_of())
    pipeline.found.switch(flow_of())
    pipeline.feed(AFTER[1:])
    pipeline.check()


def test_a_follower_that_claims_a_shadow_after_the_switch_is_refused_before_it_touches_a_state() -> None:
    """It has seen the shadow open, hangs before its claim, and wakes when the shadow's states are the flow's."""
    pipeline = running()
    follow(pipeline, flow_of())
    late = pipeline.same(flow_of())

    def meanwhile() -> None:
        pipeline.found.switch(flow_of())
        pipeline.feed(AFTER[:1])

    late.found.script.injected.append(InjectedFault(meanwhile, "store", "before", writes=True))
    with pytest.raises(ServiceStopped, match="this shadow was ended, or the flow was switched"):
        follow(late, flow_of())
    pipeline.feed(AFTER[1:])  # by the same run: nothing was stamped
    pipeline.check()


@pytest.mark.parametrize("more", [0, 1])
def test_outputs_are_compared_from_when_the_shadow_is_where_the_flow_is(more: int) -> None:
    pipeline, other = running(), flow_of(fold=loud_of(more))
    follow(pipeline, flow_of())
    for text in AFTER:
        pipeline.feed([text])
        follow(pipeline, flow_of())  # by another process each time
    # Each word is published, and then all words: once for each plan.
    found = pipeline.found.compared_outputs(flow_of())
    assert (found.counts.equal, found.same, found.counts.gaps, found.left) == (2 * len(AFTER), True, 0, 0)
    pipeline.found.end_shadow(flow_of())
    follow(pipeline, other)
    pipeline.feed(["zoo"])
    assert pipeline.found.compared_outputs(other).left == 1
    follow(pipeline, other)
    counts = pipeline.found.compared_outputs(other).counts
    assert (counts.equal, counts.different, counts.missing, counts.added) == (0, 2, 0, more)
    assert "outputs: 0 equal, 2 different" in counts.text()


@pytest.mark.parametrize("killed", [False, True])
def test_a_switch_compares_the_last_outputs_and_is_refused_where_readers_would_see_others(
    killed: bool,
) -> None:
    pipeline, flow = running(), flow_of(fold=loud_of(0))
    follow(pipeline, flow)
    pipeline.feed(AFTER[:2])  # while no shadow follows
    if killed:  # what was compared is not lost with the process
        pipeline.found.script.watch = _die_once_the_way_back_is_noted
        with pytest.raises(Crash):
            pipeline.found.switch(flow, accept_differences=True)
        pipeline.found.script.watch = None
    with pytest.raises(ConfigurationError, match=r"outputs: 0 equal, 3 different.*Readers keep what"):
        pipeline.found.switch(flow)
    pipeline.check()
    pipeline.found.switch(flow, accept_differences=True)
    pipeline = pipeline.same(flow)
    pipeline.feed(AFTER[2:])
    assert pipeline.published()[AFTER[2].upper()] == 1
    assert "compared" not in last_plan(pipeline.store, "notes").sections


def test_outputs_that_a_killed_shadow_has_not_compared_are_reported_as_a_gap() -> None:
    pipeline = running()
    follow(pipeline, flow_of())
    pipeline.feed(AFTER[:1])
    shadow = pipeline.found.shadow(flow_of())
    shadow.start()
    assert shadow.batch()  # its process dies before it has noted what it has compared
    pipeline.feed(AFTER[1:2])
    follow(pipeline, flow_of())
    pipeline.feed(AFTER[2:])
    follow(pipeline, flow_of())
    counts = pipeline.found.compared_outputs(flow_of()).counts
    assert (counts.equal, counts.same, counts.gaps) == (2, True, 1)


def test_a_switch_ends_a_run_that_is_alive_and_the_run_changes_nothing_after_it() -> None:
    pipeline = running()
    follow(pipeline, flow_of())
    live = pipeline.found.service
    assert live is not None
    pipeline.words.append("zoo")
    pipeline.found.feed("words", word("zoo"), key="z")  # which the run has not read
    switch_while_it_runs(pipeline, flow_of())
    with pytest.raises(Superseded):
        live.batch()
    with pytest.raises(ConfigurationError, match="has no shadow"):
        switch_while_it_runs(pipeline, flow_of())  # as a second operator: no run is ended for nothing
    pipeline = pipeline.same(flow_of())
    pipeline.feed(AFTER)
    pipeline.check()


@pytest.mark.parametrize("at", [1, 2, 4, 7, 10])
def test_of_two_switches_at_once_one_wins_and_nothing_counts_twice(at: int) -> None:
    """The second one runs as a whole after some write of the first one."""
    pipeline = running()
    follow(pipeline, flow_of())
    pipeline.feed(AFTER[:1])
    writes = 0

    def watch(call: PortCall, _: object) -> None:
        nonlocal writes
        writes += call.write
        if call.write and writes == at:
            pipeline.same(flow_of()).found.switch(flow_of())

    pipeline.found.script.watch = watch
    with pytest.raises(ChainError):
        pipeline.found.switch(flow_of())
    assert has_switched(pipeline)
    pipeline = pipeline.same(flow_of())
    pipeline.feed(AFTER[1:])
    pipeline.check()


def test_a_run_is_taken_from_between_its_batches_only() -> None:
    pipeline = running()
    env = environment_of(pipeline.found)
    taken: list[tuple[str, bool]] = []

    def watch(call: PortCall, _: object) -> None:
        home, _ = pipeline.store.home("notes")
        if call.write and home is not None:
            taken.append((call.name, is_between_batches(env, home)))

    pipeline.found.script.watch = watch
    pipeline.feed(["zoo"])
    names = [name for name, _ in taken]
    last = max(at for at, name in enumerate(names) if name == "write")
    assert names[0] == "set_home"
    assert "publish" in names[:last]
    # After each call: from the seal until the last state is written it is in the middle of a batch.
    assert [between for _, between in taken] == [at >= last for at in range(len(taken))], taken


def test_a_switch_that_is_refused_ends_no_run() -> None:
    pipeline = running()
    flow = flow_of(fold=loud_of(0))
    follow(pipeline, flow)
    pipeline.feed(AFTER[:1])
    follow(pipeline, flow)
    live, home = pipeline.found.service, pipeline.store.home("notes")
    with pytest.raises(ConfigurationError, match="outputs: 0 equal, 2 different"):
        switch_while_it_runs(pipeline, flow)
    assert pipeline.store.home("notes") == home, "the run still has the flow"
    pipeline.feed(AFTER[1:])
    assert pipeline.found.service is live
    assert pipeline.found.crashes == 0
    pipeline.check()


def test_a_shadow_whose_code_has_changed_since_it_began_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "code_of_a_shadow.py"
    known = []
    for number in (1, 2):
        file.write_text(f"HOW = {number}")
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
        invalidate_caches()
        import_module(file.stem)
        known.append(Compared(code=digests_of_modules()))
    assert [changed_code(compared) for compared in known] == [[file.stem], []]
    pipeline = running()
    follow(pipeline, flow_of())
    shadow = next(name for name, _ in pipeline.stored_stages() if name != "notes")
    assert file.stem in Compared.of(last_plan(pipeline.store, shadow)).code
    del sys.modules[file.stem]


def test_a_shadow_that_begins_again_with_a_further_stage_keeps_what_it_has_compared() -> None:
    pipeline = running()
    follow(pipeline, flow_of())
    pipeline.feed(AFTER)
    follow(pipeline, flow_of())
    known = pipeline.found.compared_outputs(flow_of()).counts
    assert known.equal > 0
    service = pipeline.found.shadow(flow_of(more="more")).start()  # it seals a plan with the stage
    assert Compared.of(service.owned.last) == known
    service.leave()


def test_outputs_on_other_lanes_or_new_ones_are_named_and_not_compared() -> None:
    pipeline = running(flow_of(more="more", published=True))
    flow = flow_of(3)
    follow(pipeline, flow)
    pipeline.feed(AFTER)
    follow(pipeline, flow)
    found = pipeline.found.compared_outputs(flow)
    assert found.counts.since == -1
    assert found.texts()[0] == "outputs were not compared"
    assert any("now 3: not compared" in text for text in found.others)
    assert found.gone
    pipeline.found.end_shadow(flow)


def test_outputs_that_the_flow_publishes_again_after_a_crash_are_compared_once() -> None:
    pipeline = running()
    shadow = pipeline.found.shadow(flow_of())
    shadow.start()
    while shadow.batch():
        pass
    pipeline.found.feed("words", word("zoo"), key="z")
    pipeline.found.crash(step=5, when="after")
    pipeline.found.run_until_crash()
    while shadow.batch():
        pass
    pipeline.found.run_until_caught_up()
    while shadow.batch():
        pass
    shadow.batch()
    assert (shadow.outputs.equal, shadow.outputs.same) == (2, True)


def test_a_rebuild_does_not_resume_a_shadow_and_ends_it() -> None:
    pipeline = running()
    follow(pipeline, flow_of())
    with pytest.raises(ConfigurationError, match="there is no interrupted attempt"):
        pipeline.found.rebuild(resume=True)
    pipeline.found.rebuild()
    pipeline.check()
    with pytest.raises(ConfigurationError, match="has no shadow"):
        pipeline.found.compared(flow_of())


def test_the_way_back_folds_what_the_new_code_has_counted_and_publishes_nothing_twice() -> None:
    pipeline = switched()
    pipeline.found.switch_back(flow_of())
    pipeline = pipeline.same(flow_of())
    pipeline.check()
    assert {name for (name, _, _), part in pipeline.store.copy_all().parts.items() if part.states} == {
        "notes"
    }
    pipeline.feed(AFTER[1:])
    pipeline.check()
    with pytest.raises(ConfigurationError, match="no states of before a switch"):
        pipeline.found.switch_back(flow_of())
    follow(pipeline, flow_of(3))  # it may be switched again, and go back again
    pipeline.found.switch(flow_of(3))
    pipeline = pipeline.same(flow_of(3))
    pipeline.feed(["zoo"])
    pipeline.found.switch_back(flow_of())
    pipeline = pipeline.same(flow_of())
    pipeline.feed(["yak"])
    pipeline.check()


def test_the_way_back_leads_to_the_states_before_the_last_switch_only() -> None:
    pipeline = switched()
    follow(pipeline, flow_of(4))
    pipeline.found.switch(flow_of(4), accept_differences=True)
    pipeline = pipeline.same(flow_of(4))
    pipeline.feed(AFTER[1:2])
    names = {name for (name, _, _), part in pipeline.store.copy_all().parts.items() if part.states}
    assert names == {"notes.shadow-1", "notes.shadow-2"}, "the oldest states are deleted"
    pipeline.found.switch_back(flow_of(3, fold=shouting))
    assert stored_words(pipeline.found)["f"] == "FIG FOX"
    assert stored_words(pipeline.found)["b"] == "BEE BOA"


def test_after_the_way_back_nobody_takes_the_ends_of_lanes_of_before_the_switch_for_the_last() -> None:
    """A failover would else find everything in a mirror that lacks what the newer code has published."""
    pipeline = running()
    follow(pipeline, flow_of())
    pipeline.found.switch(flow_of())
    pipeline = pipeline.same(flow_of())
    pipeline.feed(AFTER)
    pipeline.found.switch_back(flow_of())
    last = last_plan(pipeline.store, "notes")
    assert published_by(last).since > last.number - 10, "nothing is known of what was published before"


@pytest.mark.parametrize("how", ["rebuild", "end", "killed", "lost"])
def test_the_way_back_is_refused_where_not_all_states_of_before_are_there(how: str) -> None:
    pipeline, refused = switched(), "no states of before a switch"
    if how == "rebuild":
        pipeline.found.rebuild()
    elif how == "end":
        pipeline.found.end_shadow(pipeline.flow)
    elif how == "lost":
        pipeline.store.restore_part("notes", "letters", 1)
        refused = "notes/letters/1: is at None"
    else:  # a switch that was killed right before its cut-over: the flow is where it was
        pipeline = running()
        follow(pipeline, flow_of(3))
        pipeline.found.script.watch = _die_once_the_way_back_is_noted
        with pytest.raises(Crash):
            pipeline.found.switch(flow_of(3))
        pipeline.found.script.watch = None
    before = stored_words(pipeline.found)
    with pytest.raises(ConfigurationError, match=refused):
        pipeline.found.switch_back(flow_of())
    assert stored_words(pipeline.found) == before
