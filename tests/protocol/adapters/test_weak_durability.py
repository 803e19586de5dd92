"""Outputs that acknowledge records on one broker only, and tables that may be lost, are refused unless the user accepts that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters import open_store
from sqe_chain.errors import ConfigurationError, WeakDurability
from sqe_chain.ext.tables.memory import MemoryStorage
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from tests.support.table_flows import table_flow


def passing_on() -> Rehearsal:
    flow = Flow("pass-on")
    flow.source("in", Int64Value).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.log.configure("out", replicas=3, min_insync_replicas=1)
    return rehearsal


def counting() -> Rehearsal:
    flow = Flow("count")
    counted = flow.source("in", Int64Value).aggregate(
        "sum", key=lambda _: "all", state=Int64Value, fold=lambda total, number: None
    )
    counted.changes().to("out", partitions=1)
    return Rehearsal(flow)


def test_three_replicas_with_one_acknowledging_are_refused() -> None:
    with pytest.raises(WeakDurability, match=r"out.*min\.insync\.replicas"):
        passing_on().start(Settings())


def test_it_can_be_accepted_and_is_reported() -> None:
    rehearsal = passing_on()
    rehearsal.start(replace(Settings(), allow_weak_durability=True))
    assert "min.insync.replicas=1" in str(rehearsal.events("notice"))


def test_a_single_copy_is_reported_but_not_refused() -> None:
    rehearsal = passing_on()
    rehearsal.log.configure("out", replicas=1, min_insync_replicas=1)
    rehearsal.start(Settings())
    assert "one broker holds" in str(rehearsal.events("notice"))


def into_memory(tmp_path: Path) -> Rehearsal:
    """The store is durable, and the table is not."""
    return Rehearsal(
        table_flow(f"memory://{tmp_path.name}"), store=open_store(f"sqlite://{tmp_path}/states.db")
    )


def test_a_table_that_may_lose_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        WeakDurability,
        match=r"'readings'.*--allow-weak-durability",
    ):
        into_memory(tmp_path).start(Settings())


def test_a_table_that_may_lose_rows_can_be_accepted_and_is_reported(tmp_path: Path) -> None:
    rehearsal = into_memory(tmp_path)
    rehearsal.start(Settings(allow_weak_durability=True))
    assert "weak durability accepted: memory://" in str(rehearsal.events("notice"))


def test_remarks_of_a_table_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStorage, "remarks", lambda _: ["worth knowing"])
    rehearsal = into_memory(tmp_path)
    rehearsal.start(Settings(allow_weak_durability=True))
    assert "worth knowing" in str(rehearsal.events("notice"))


def test_a_durable_table_needs_nothing(tmp_path: Path) -> None:
    store = open_store(f"sqlite://{tmp_path}/states.db")
    rehearsal = Rehearsal(table_flow(tmp_path), store=store)
    rehearsal.start(Settings())
    assert not rehearsal.events("notice")


def test_a_stage_that_wants_an_unknown_store_is_named() -> None:
    flow = Flow("sums")
    flow.source("in", Int64Value).aggregate(
        "sum", key=lambda _: "all", state=Int64Value, fold=lambda total, number: None, store="big"
    )
    with pytest.raises(ConfigurationError, match="big"):
        Rehearsal(flow).start()


@pytest.mark.parametrize("make", [passing_on, counting])
def test_it_is_reported_once_when_the_flow_begins(make: Callable[[], Rehearsal]) -> None:
    rehearsal = make()
    for _ in range(3):
        rehearsal.start(Settings(allow_weak_durability=True))
    texts = [
        str(event["text"]) for event in rehearsal.events("notice") if "weak durability" in str(event["text"])
    ]
    assert len(texts) == len(set(texts)) > 0


@pytest.mark.parametrize(
    ("setting", "reported"),
    [
        ({"replicas": 1}, "one broker holds"),
        ({"replicas": 3, "min_insync_replicas": 0}, "does not tell min.insync.replicas"),
        ({"replicas": 3, "min_insync_replicas": 2, "write_caching": True}, "write.caching=true"),
        ({"replicas": 3, "min_insync_replicas": 2}, None),
    ],
)
def test_topics_that_keep_less_than_two_disks_are_reported(
    setting: dict[str, Any], reported: str | None
) -> None:
    rehearsal = passing_on()
    rehearsal.log.configure("out", **setting)
    rehearsal.start(Settings())
    found = [
        str(event["text"]) for event in rehearsal.events("notice") if "weak durability" in str(event["text"])
    ]
    assert [reported is not None and reported in text for text in found] == [True] * (reported is not None)
