"""Goal: a flow that was forgotten has never been, whatever happens on the way; its neighbours do not notice.

Method: flows run in memory, then one is forgotten, with a crash at every single write, and a second time. What is left in
store and broker is compared with what a neighbour alone would have left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sqe_chain.errors import ConfigurationError, Superseded, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.operations.forget import ForgetFlow, known_flow, known_flows
from sqe_chain.ports import Home
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import Crash, FaultScript
from tests.support.forgotten import KEPT, Neighbours, flow_of
from tests.support.word_flows import word


def test_nothing_of_it_is_left_and_everything_of_others() -> None:
    pipeline = Neighbours()
    before = pipeline.left()
    assert {"first", "first.out", *KEPT} < before
    assert any(name.startswith("first.again-") for name in before)
    assert pipeline.forget() == ["first.dead-letters", "first.out"]
    assert pipeline.left() == KEPT
    assert [flow.name for flow in known_flows(pipeline.stores[""])] == ["second"]
    assert sorted(pipeline.second.states("letters")) == [b"a", b"b", b"c"]


def test_topics_stay_unless_they_are_meant() -> None:
    pipeline = Neighbours()
    assert pipeline.forget(topics=False) == []
    assert pipeline.left() == {*KEPT, "first.out", "first.dead-letters"}


def test_a_flow_of_the_same_name_begins_again() -> None:
    pipeline = Neighbours()
    pipeline.forget()
    again = Rehearsal(flow_of("first"), store=pipeline.stores, log=pipeline.first.log)
    again.run_until_caught_up()
    assert {key: state.value for key, state in again.states("letters").items()} == {
        b"a": "a ",
        b"b": "b ",
        b"c": "c ",
    }


def test_a_run_that_slept_changes_nothing_any_more() -> None:
    pipeline = Neighbours()
    run = pipeline.first.start()
    pipeline.first.feed("words", word("d"))
    pipeline.forget(is_dead=lambda _: True)
    with pytest.raises((Superseded, ConfigurationError, Unavailable)):  # its outputs may be created again
        run.batch()
    assert pipeline.left() == KEPT


def test_a_flow_that_is_run_is_not_forgotten() -> None:
    pipeline = Neighbours()
    run = pipeline.first.start()
    before = pipeline.left()
    with pytest.raises(ConfigurationError, match="flow 'first' is running"):
        pipeline.forget(wait=lambda _: run.beat())
    assert pipeline.left() == before
    waited: list[int] = []
    pipeline.forget(wait=waited.append)  # its heartbeat does not move
    assert sum(waited) == 6_000
    assert pipeline.left() == KEPT


def test_a_store_that_was_not_given_is_missed() -> None:
    pipeline = Neighbours()
    before = pipeline.left()
    other = pipeline.stores.pop("other")
    with pytest.raises(ConfigurationError, match=r"stage 'all'.*--store NAME=URL"):
        pipeline.forget()
    pipeline.stores["other"] = other
    assert pipeline.left() == before
    with pytest.raises(ConfigurationError, match="flow 'first': the store knows nothing of it"):
        ForgetFlow(
            "first",
            {"": other},
            pipeline.first.log,
            False,  # noqa: FBT003
            "x",
            lambda _: False,
            lambda _: None,
        ).run()


@pytest.mark.parametrize(
    "make", [lambda: flow_of("user", output="first.out"), lambda: flow_of("user", reads="first.out")]
)
def test_topics_that_others_use_are_not_deleted(make: Callable[[], Flow]) -> None:
    pipeline = Neighbours()
    Rehearsal(make(), store=pipeline.stores, log=pipeline.first.log).run_until_caught_up()
    before = pipeline.left()
    with pytest.raises(ConfigurationError, match=r"topic 'first\.out': flow 'user' uses it as well"):
        pipeline.forget()
    assert pipeline.left() == before
    assert pipeline.forget(topics=False) == []


def test_what_a_store_knows_of_flows_is_listed() -> None:
    pipeline = Neighbours()
    found = {flow.name: flow for flow in known_flows(pipeline.stores[""])}
    assert list(found) == sorted(found)
    assert found["first"].plan is not None
    assert found["first"].plan.layout.sources.keys() == {"words"}
    assert not found["first"].forgotten_in_part
    with pytest.raises(Crash):
        pipeline.forget(FaultScript(writes={(3, "before")}))
    now = known_flow(pipeline.stores[""], "first")
    assert now is not None
    assert now.forgotten_in_part
    assert known_flow(pipeline.stores[""], "nobody") is None


def test_a_plan_that_cannot_be_read_hides_no_other_flow() -> None:
    pipeline = Neighbours()
    home = pipeline.stores[""]
    foreign = Home(1, "", "", 0, "p0")
    assert home.set_home("foreign", None, foreign, b"p0") == foreign
    found = {flow.name: flow for flow in known_flows(home)}
    assert found["first"].plan is not None
    assert found["foreign"].plan is None
    assert "cannot be read" in found["foreign"].unreadable
    before = pipeline.left()
    with pytest.raises(ConfigurationError, match=r"flow 'foreign': .* Do without --topics"):
        pipeline.forget()
    assert pipeline.left() == before
    assert pipeline.forget(topics=False) == []


def test_a_flow_whose_plan_cannot_be_read_is_not_forgotten() -> None:
    pipeline = Neighbours()
    home = pipeline.stores[""]
    stands, _ = home.home("first")
    assert stands is not None
    home.set_home("first", stands, replace(stands, number=stands.number + 1), b"[]")
    before = pipeline.left()
    with pytest.raises(ConfigurationError, match="Nothing was forgotten"):
        pipeline.forget()
    assert pipeline.left() == before
