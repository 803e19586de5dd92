"""A login of PostgreSQL that has the rights of docs/stores.md runs a flow with a table of states. Without one of them it ends by name."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import psycopg
import pytest

from sqe_chain.adapters import open_store
from sqe_chain.adapters.postgres import PostgresStore
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.dev import PostgresServer
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal
from tests.support.docs_examples import ROOT


class Total(msgspec.Struct):
    count: int = 0


def add(total: Total, number: int) -> None:
    total.count += number


@dataclass
class Narrow:
    """A flow, and the login that runs it.

    Attributes:
        owner: a session that grants rights.
        store: of the login.
        rows: the table behind the view.
    """

    owner: psycopg.Connection
    role: str
    store: PostgresStore
    flow: Flow
    rows: str

    def feed(self) -> None:
        service = Rehearsal(self.flow, store=self.store)
        for number in range(4):
            service.feed("numbers", number, key=f"k{number % 2}")
        service.run_until_caught_up()
        service.rebuild()

    def shown(self) -> list[tuple[object, ...]]:
        return self.owner.execute(
            f"SELECT key, count FROM {self.rows.removesuffix('_rows')} ORDER BY key"  # noqa: S608 - of this test
        ).fetchall()


def documented() -> str:
    """The statements of the page that grant rights to a service."""
    page = (ROOT / "docs" / "stores.md").read_text(encoding="utf-8").partition("\n## PostgreSQL\n")[2]
    found = re.search(r"A service needs:\n\n```sql\n(.*?)```", page, re.DOTALL)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a server of this file alone: PostgreSQL fails where two sessions change the rights of a table at once."""
    with PostgresServer() as server:
        store = open_store(server.url)
        assert isinstance(store, PostgresStore)
        store.make_schema({})
        store.close()
        yield server.url


@pytest.fixture
def narrow(url: str) -> Iterator[Narrow]:
    name = f"narrow_{uuid.uuid4().hex[:12]}"
    flow = Flow(name, state_partitions=2)
    flow.source("numbers", int, raw=True).aggregate("sums", state=Total, fold=add, view=name)
    owner_store = open_store(url)
    assert isinstance(owner_store, PostgresStore)
    (stage,) = flow.compile().stages
    assert stage.table is not None
    owner_store.make_view_table(name, stage.name, stage.table)
    owner_store.close()
    store = open_store(re.sub(r"//[^@/]*@", f"//{name}@", url))
    assert isinstance(store, PostgresStore)
    with contextlib.closing(psycopg.connect(url, autocommit=True)) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN")
        owner.execute(documented().replace("totals", name).replace("screws_by_line", name))
        yield Narrow(owner, name, store, flow, f"sqe_chain.{name}_rows")
        store.close()
        owner.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_the_rights_of_the_page_are_enough(narrow: Narrow) -> None:
    """For batches and rebuilds; and they make no table, and read no other."""
    narrow.feed()
    assert narrow.shown() == [("k0", 2), ("k1", 4)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        narrow.owner.execute(f"SET ROLE {narrow.role}; CREATE TABLE sqe_chain.other (n int)")
    narrow.owner.execute("RESET ROLE")


TABLES = {
    "sqe_homes": "SELECT INSERT UPDATE",
    "sqe_plans": "SELECT INSERT UPDATE DELETE",
    "sqe_headers": "SELECT INSERT UPDATE",
    "sqe_states": "SELECT INSERT UPDATE DELETE",
    "sqe_locations": "SELECT INSERT UPDATE",
    "sqe_schema": "SELECT",
    "sqe_views": "SELECT",
}


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("table", "right"), [(table, right) for table, rights in TABLES.items() for right in rights.split()]
)
def test_a_table_without_a_right_ends_by_name(narrow: Narrow, table: str, right: str) -> None:
    narrow.owner.execute(f"REVOKE {right} ON sqe_chain.{table} FROM {narrow.role}")
    with pytest.raises(ConfigurationError, match=f"permission denied for table {table}"):
        narrow.feed()


@pytest.mark.parametrize("right", ["SELECT", "INSERT", "UPDATE", "DELETE"])
def test_a_table_of_states_without_a_right_ends_by_name_before_anything_is_read(
    narrow: Narrow, right: str
) -> None:
    narrow.owner.execute(f"REVOKE {right} ON {narrow.rows} FROM {narrow.role}")
    with pytest.raises(
        ConfigurationError, match=f"this login has no right to {right} on {narrow.rows}. Expected"
    ):
        Rehearsal(narrow.flow, store=narrow.store).start()
    assert narrow.store.home(narrow.flow.name) == (None, 0)


def test_a_schema_without_usage_ends_by_name(narrow: Narrow) -> None:
    narrow.owner.execute(f"REVOKE USAGE ON SCHEMA sqe_chain FROM {narrow.role}")
    with pytest.raises(ConfigurationError, match="permission denied for schema sqe_chain"):
        narrow.feed()
