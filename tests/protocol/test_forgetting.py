"""Goal: a flow that was forgotten has never been, whatever happens on the way; its neighbours do not notice.

Method: flows run in memory, then one is forgotten, with a crash at every single write, and a second time. What is left in
store and broker is compared with what a neighbour alone would have left.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ConfigurationError, ServiceStopped, Superseded, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.operations.forget import ForgetFlow, known_flow, known_flows
from sqe_chain.ports import Home, StateStore
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import Crash, FaultScript, InjectedFault
from sqe_chain.testing.faulty_ports import faulty_log, faulty_store
from tests.support.suites import points
from tests.support.word_flows import append_word, first_letter, same_key, word


def flow_of(name: str, output: str = "", reads: str = "words") -> Flow:
    flow = Flow(name, poison="dead_letter", state_partitions=2)
    first = flow.source(reads, StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word, view="hash", buckets=2
    )
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word, store="other")
    first.changes().to(output or f"{name}.out", key=same_key, partitions=1)
    return flow


class Pipeline:
    """Two flows in two stores; the first was rebuilt once."""

    def __init__(self) -> None:
        self.stores = {name: MemoryStore(f"forgetting-{name}", max_rows=1) for name in ("", "other")}
        for store in self.stores.values():
            store.restore_all()
        self.first = Rehearsal(flow_of("first"), store=self.stores)
        self.second = Rehearsal(flow_of("second"), store=self.stores, log=self.first.log)
        for text in ("a", "b", "c"):
            self.first.feed("words", word(text))
        self.first.run_until_caught_up()
        self.first.rebuild()
        self.second.run_until_caught_up()
        for service in (self.first, self.second):
            service.start()
            service.service.leave()  # type: ignore[union-attr]

    def forget(self, script: FaultScript | None = None, *, topics: bool = True, **more: object) -> list[str]:
        script = script or FaultScript()
        stores: dict[str, StateStore] = {
            name: faulty_store(store, script) for name, store in self.stores.items()
        }
        settings: dict[str, Any] = {"is_dead": lambda _: False, "wait": lambda _: None, **more}
        return ForgetFlow(
            "first", stores, faulty_log(self.first.log, script), topics, "forgets", **settings
        ).run()

    def left(self) -> set[str]:
        """Everything that is stored, or committed, by the name of its flow."""
        found = set()
        for store in self.stores.values():
            copy = store.copy_all()
            found |= set(copy.locations)
            found |= {flow for flow, home in copy.homes.items() if home.home or home.plans}
            found |= {
                place[0] for place, part in copy.parts.items() if part.header or part.states or part.views
            }
        log = self.first.log
        for group in ("first", "second", "first.dead-letters-replay"):
            found |= {group} if log.committed(group, [("words", 0)]) else set()
        topics = ("words", "first.out", "first.dead-letters", "second.out", "second.dead-letters")
        return found | {topic for topic in topics if topic in log.describe([topic])}


KEPT = {"words", "second", "second.out", "second.dead-letters"}


def test_nothing_of_it_is_left_and_everything_of_others() -> None:
    pipeline = Pipeline()
    before = pipeline.left()
    assert {"first", "first.out", *KEPT} < before
    assert any(name.startswith("first.again-") for name in before)
    assert pipeline.forget() == ["first.dead-letters", "first.out"]
    assert pipeline.left() == KEPT
    assert [flow.name for flow in known_flows(pipeline.stores[""])] == ["second"]
    assert sorted(pipeline.second.states("letters")) == [b"a", b"b", b"c"]


def test_topics_stay_unless_they_are_meant() -> None:
    pipeline = Pipeline()
    assert pipeline.forget(topics=False) == []
    assert pipeline.left() == {*KEPT, "first.out", "first.dead-letters"}


def test_killed_at_every_write_and_repeated_it_is_complete() -> None:
    for number in count():
        for when in ("before", "after"):
            pipeline = Pipeline()
            try:
                pipeline.forget(FaultScript(writes={(number, when)}))
            except Crash:
                if known_flow(pipeline.stores[""], "first") is not None:
                    pipeline.forget()
                assert pipeline.left() == KEPT, (number, when)
            else:
                assert number > 20
                return


def test_no_run_starts_on_what_a_killed_forgetting_has_left() -> None:
    """A supervisor starts the service between the two; the second one finishes nevertheless."""
    for number in count():
        for when in ("before", "after"):
            pipeline = Pipeline()
            try:
                pipeline.forget(FaultScript(writes={(number, when)}), topics=False)
            except Crash:
                known = known_flow(pipeline.stores[""], "first")
                if known is None or not known.forgotten_in_part:
                    continue
                with pytest.raises(ServiceStopped, match="'first': it is being forgotten, and parts"):
                    pipeline.first.restart()
                pipeline.forget(topics=False)
                assert pipeline.left() == {*KEPT, "first.out", "first.dead-letters"}, (number, when)
            else:
                assert number > 20
                return


def test_a_rebuild_keeps_a_flow_that_was_half_forgotten() -> None:
    for number in count(1):  # after the claim
        pipeline = Pipeline()
        try:
            pipeline.forget(FaultScript(writes={(number, "before")}), topics=False)
        except Crash:
            pipeline.first.rebuild()
            pipeline.first.run_until_caught_up()
            assert sorted(pipeline.first.states("letters")) == [b"a", b"b", b"c"], number
            (known,) = (flow for flow in known_flows(pipeline.stores[""]) if flow.name == "first")
            assert not known.forgotten_in_part
        else:
            assert number > 20
            return


def test_a_rebuild_that_is_killed_leaves_a_flow_half_forgotten_until_it_has_cut_over() -> None:
    outcomes = set()
    for number in count():
        pipeline = Pipeline()
        with pytest.raises(Crash):
            pipeline.forget(FaultScript(writes={(20, "before")}), topics=False)
        pipeline.first.crash_at_write(number)
        try:
            pipeline.first.rebuild()
        except Crash:
            try:
                pipeline.first.restart()
            except ServiceStopped as error:
                outcomes.add(str(error).split(",")[0])
            else:
                assert sorted(pipeline.first.states("letters")) == [b"a", b"b", b"c"], number
                outcomes.add("it starts")
            pipeline.forget(topics=False)
            assert pipeline.left() == {*KEPT, "first.out", "first.dead-letters"}, number
        else:
            assert outcomes == {"flow 'first': it is being forgotten", "it starts"}
            return


def test_a_flow_of_the_same_name_begins_again() -> None:
    pipeline = Pipeline()
    pipeline.forget()
    again = Rehearsal(flow_of("first"), store=pipeline.stores, log=pipeline.first.log)
    again.run_until_caught_up()
    assert {key: state.value for key, state in again.states("letters").items()} == {
        b"a": "a ",
        b"b": "b ",
        b"c": "c ",
    }


def test_a_run_that_slept_changes_nothing_any_more() -> None:
    pipeline = Pipeline()
    run = pipeline.first.start()
    pipeline.first.feed("words", word("d"))
    pipeline.forget(is_dead=lambda _: True)
    with pytest.raises((Superseded, ConfigurationError, Unavailable)):  # its outputs may be created again
        run.batch()
    assert pipeline.left() == KEPT


def test_a_forgetting_that_another_one_overtakes_keeps_the_flow_that_began_again() -> None:
    """It hung, was repeated, and wakes when a new flow of that name has states of its own."""
    for at in points("a forgetting that is overtaken"):
        pipeline = Pipeline()
        again = Rehearsal(flow_of("first"), store=pipeline.stores, log=pipeline.first.log)

        def overtake(pipeline: Pipeline = pipeline, again: Rehearsal = again) -> None:
            pipeline.forget(topics=False)
            again.run_until_caught_up()

        script = FaultScript()
        script.injected.append(InjectedFault(overtake, passes=at))
        with suppress(Superseded, ConfigurationError):  # it is run now
            pipeline.forget(script, topics=False)
        if script.injected:
            assert at > 40
            return
        if (
            known_flow(pipeline.stores[""], "first") is not None
        ):  # else that one was meant: it was there before the claim
            again.restart()
            assert sorted(again.states("letters")) == [b"a", b"b", b"c"], at


def test_a_flow_that_is_run_is_not_forgotten() -> None:
    pipeline = Pipeline()
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
    pipeline = Pipeline()
    before = pipeline.left()
    other = pipeline.stores.pop("other")
    with pytest.raises(
        ConfigurationError, match=r"stage 'all' is in none of the stores given.*--store NAME=URL"
    ):
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
    pipeline = Pipeline()
    Rehearsal(make(), store=pipeline.stores, log=pipeline.first.log).run_until_caught_up()
    before = pipeline.left()
    with pytest.raises(ConfigurationError, match=r"topic 'first\.out': flow 'user' uses it as well"):
        pipeline.forget()
    assert pipeline.left() == before
    assert pipeline.forget(topics=False) == []


def test_what_a_store_knows_of_flows_is_listed() -> None:
    pipeline = Pipeline()
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
    pipeline = Pipeline()
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
    pipeline = Pipeline()
    home = pipeline.stores[""]
    stands, _ = home.home("first")
    assert stands is not None
    home.set_home("first", stands, replace(stands, number=stands.number + 1), b"[]")
    before = pipeline.left()
    with pytest.raises(
        ConfigurationError, match=r"flow 'first': a stored plan cannot be read .*Nothing was forgotten"
    ):
        pipeline.forget()
    assert pipeline.left() == before
