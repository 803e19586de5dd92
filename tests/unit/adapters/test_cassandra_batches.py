"""A database that counts the statements of a batch gets no larger one from any writer; what cannot be split is refused by name."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from cassandra.query import BatchStatement

from sqe_chain.adapters import open_store
from sqe_chain.adapters.cassandra import CassandraStore, client
from sqe_chain.adapters.cassandra.client import CassandraClient, CassandraSettings
from sqe_chain.errors import ConfigurationError

MOST = 30


class Batch(BatchStatement):  # type: ignore[misc]
    """Knows how many statements it has, whatever they are."""

    size = 0

    def add(self, *_: object) -> None:
        self.size += 1


class Session:
    """Takes everything, and counts the statements of batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def prepare(self, text: str) -> str:
        return text

    def execute(self, statement: Any, *_: object) -> Session:
        self.sizes.append(statement.size)
        return self

    def one(self) -> tuple[bool]:
        return (True,)


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def connected(session: Session, monkeypatch: pytest.MonkeyPatch) -> CassandraClient:
    cluster = Mock(**{"connect.return_value": session, "metadata.all_hosts.return_value": []})
    monkeypatch.setattr(client, "Cluster", lambda **_: cluster)

    def execute_all(session: Session, calls: list[tuple[Any, None]], **_: object) -> list[object]:
        return [session.execute(batch) for batch, _ in calls]

    monkeypatch.setattr(client, "execute_concurrent", execute_all)
    monkeypatch.setattr(client, "BatchStatement", Batch)
    return CassandraClient(CassandraSettings(batch_statements=MOST))


@pytest.mark.parametrize("count", [1, 29, 30, 31, 60, 100])
def test_writes_without_condition_are_split(connected: CassandraClient, session: Session, count: int) -> None:
    connected.write([[("INSERT", ())] * count, [("INSERT", ())]])
    assert sum(session.sizes) == count + 1
    assert max(session.sizes) <= MOST


def test_what_has_to_be_one_batch_is_refused(connected: CassandraClient, session: Session) -> None:
    assert connected.compare_and_set([("INSERT", ())] * MOST)
    with pytest.raises(ConfigurationError, match=r"31 statements.*batch_statements=30"):
        connected.compare_and_set([("INSERT", ())] * (MOST + 1))
    assert session.sizes == [MOST]


def test_a_write_of_states_has_room_for_its_header() -> None:
    store = open_store("cassandra://one/ks?batch_statements=30")
    assert isinstance(store, CassandraStore)
    assert store.max_rows == MOST - 2
    header: Any = type(
        "Header", (), dict.fromkeys(("epoch", "run_id", "number", "plan_id", "begun_id", "cursor"))
    )()
    rows = [(b"%d" % number, b"state") for number in range(store.max_rows)]
    assert len(store._statements(("flow", "stage", 0), None, header, rows, None)) == MOST


def test_the_protocol_of_others_can_be_chosen() -> None:
    store = open_store("cassandra://one/ks?protocol_version=4")
    assert isinstance(store, CassandraStore)
    assert store.settings.protocol_version == 4


@pytest.mark.parametrize("wrong", ["protocol_version=3", "batch_statements=2", "batch_statements=many"])
def test_other_numbers_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong.partition("=")[0]):
        open_store(f"cassandra://one/ks?{wrong}")
