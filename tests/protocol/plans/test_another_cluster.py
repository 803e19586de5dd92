"""Goal: a store is never used with another Kafka cluster than the one whose records it has counted.

Method: two brokers in memory and one store, as when staging is given the addresses of production.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory._broker import BROKERS
from sqe_chain.errors import AnotherCluster, RecreatedTopic
from sqe_chain.flow import Flow
from sqe_chain.plans.plan import Plan
from sqe_chain.testing import Rehearsal


def add(state: dict[str, int], event: dict[str, Any]) -> None:
    state["n"] = state.get("n", 0) + 1


def totals() -> Flow:
    flow = Flow("totals", state_partitions=2)
    source = flow.source("in", dict, raw=True)
    source.aggregate("s", key=lambda event: event["k"], state=dict, fold=add).changes().to(
        "out", partitions=1
    )
    return flow


def feed(rehearsal: Rehearsal, count: int) -> None:
    for number in range(count):
        rehearsal.feed("in", {"k": f"k{number % 4}"}, key=f"k{number % 4}")


def run_in_production() -> Rehearsal:
    rehearsal = Rehearsal(totals(), partitions={"in": 2})
    feed(rehearsal, 20)
    rehearsal.run_until_caught_up()
    return rehearsal


def last_plan(rehearsal: Rehearsal) -> Plan:
    store = rehearsal.stores[""]
    home, _ = store.home("totals")
    assert home is not None
    data = store.plan("totals", home.number)
    assert data is not None
    return Plan.from_bytes(data)


def set_cluster(log: MemoryLog, cluster: str) -> None:
    for topic in BROKERS[log.name].topics.values():
        topic.info = replace(topic.info, cluster=cluster)


@pytest.mark.parametrize("records", [0, 3, 50])
def test_another_cluster_behind_the_same_store_is_refused_and_changes_nothing(records: int) -> None:
    production = run_in_production()
    production.service = None
    home = production.stores[""].home("totals")
    staging = Rehearsal(totals(), partitions={"in": 2}, store=production.stores)
    feed(staging, records)
    with pytest.raises(AnotherCluster, match=production.log.name):
        staging.run_until_caught_up()
    assert production.stores[""].home("totals") == home, "it has not even claimed the flow"
    feed(production, 20)
    production.run_until_caught_up()
    assert {key: state["n"] for key, state in production.states("s").items()} == {
        f"k{n}".encode(): 10 for n in range(4)
    }


def test_the_same_topics_under_another_id_are_the_same_cluster() -> None:
    rehearsal = run_in_production()
    rehearsal.service = None
    set_cluster(rehearsal.log, "renamed")
    feed(rehearsal, 4)
    rehearsal.run_until_caught_up()
    assert last_plan(rehearsal).layout.cluster == "renamed"


def test_a_plan_that_names_no_cluster_gets_one() -> None:
    rehearsal = Rehearsal(totals(), partitions={"in": 2})
    name = rehearsal.log.name
    set_cluster(rehearsal.log, "")
    feed(rehearsal, 4)
    rehearsal.run_until_caught_up()
    rehearsal.service = None
    before = last_plan(rehearsal)
    assert before.layout.cluster == ""
    set_cluster(rehearsal.log, name)
    rehearsal.run_until_caught_up()
    assert last_plan(rehearsal).layout.cluster == name
    assert last_plan(rehearsal).number == before.number + 1


def test_a_layout_of_an_older_version_is_read() -> None:
    layout = last_plan(run_in_production()).layout
    raw = json.loads(json.dumps(layout.to_json()))
    assert type(layout).from_json(raw) == layout
    del raw["cluster"]
    assert type(layout).from_json(raw) == replace(layout, cluster="", past={})


def test_a_topic_that_was_read_before_is_never_read_from_its_beginning_again() -> None:
    rehearsal = run_in_production()
    rehearsal.service = None
    broker = BROKERS[rehearsal.log.name]
    first = broker.topics["in"]
    for round_ in range(3):
        rehearsal.log.recreate("in")
        feed(rehearsal, 4)
        rehearsal.run_until_caught_up()
        rehearsal.service = None
        assert len(last_plan(rehearsal).layout.past["in"]) == round_ + 1
    broker.topics["in"] = first  # as at another cluster whose id nobody gives
    set_cluster(rehearsal.log, "")
    with pytest.raises(RecreatedTopic, match="again, which was read before"):
        rehearsal.run_until_caught_up()
