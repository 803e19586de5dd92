"""The tables, made and changed by numbered steps; which of them were done stands in a table of its own.

A step is claimed by a conditional write before its statements run, so that two programs never change the
schema at once (Cassandra itself does not forbid that, and can be left with two tables of one name). Who dies
with the claim loses it after a minute. Statements can be sent again: IF NOT EXISTS.
"""

# ruff: noqa: S608 - the keyspace is checked where the address is read; everything else is bound

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqe_chain.errors import ConfigurationError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqe_chain.stores.cassandra.client import CassandraClient

_CLAIM_S: Final = 60
_WAIT_S: Final = 90
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Migration:
    """One step from a version of the schema to the next.

    Attributes:
        number: the version that it leads to; the first is 1.
        statements: data definition that may be sent again; `{keyspace}` is filled in.
        needed: whether a service needs it; without it, one goes on with the tables as an older version made them.
    """

    number: int
    statements: tuple[str, ...]
    needed: bool = True


_VERSIONS: Final = """\
CREATE TABLE IF NOT EXISTS {keyspace}.sqe_schema (
    name text PRIMARY KEY, version int, holder text
)"""

FLOWS: Final = """\
CREATE TABLE IF NOT EXISTS {keyspace}.sqe_flows (
    flow text, epoch bigint STATIC, run_id text STATIC, owner text STATIC, number bigint STATIC,
    plan_id text STATIC, beat bigint STATIC, plan_number bigint, plan blob,
    PRIMARY KEY ((flow), plan_number)
) WITH CLUSTERING ORDER BY (plan_number DESC)"""

STATES: Final = """\
CREATE TABLE IF NOT EXISTS {keyspace}.sqe_states (
    flow text, stage text, part int, epoch bigint STATIC, run_id text STATIC, number bigint STATIC,
    plan_id text STATIC, begun_id text STATIC, cursor blob STATIC, key blob, state blob, shown text,
    PRIMARY KEY ((flow, stage, part), key)
)"""

LOCATIONS: Final = """\
CREATE TABLE IF NOT EXISTS {keyspace}.sqe_locations (
    flow text, epoch bigint STATIC, number bigint STATIC, stage text, stored_flow text,
    state_partitions int, buckets int, kind text, type_name text, shown_as text, store text,
    PRIMARY KEY ((flow), stage)
)"""

WITH_LOCATIONS: Final = 2
"""The version that has a table for locations."""

MIGRATIONS: Final = (Migration(1, (FLOWS, STATES)), Migration(WITH_LOCATIONS, (LOCATIONS,), needed=False))
"""All steps, in order."""


def version(client: CassandraClient) -> int | None:
    """The version of the schema; 0 when tables are about to be made, None when there is nothing.

    Raises:
        Unavailable: no answer.
        ConfigurationError: login or rights.
    """
    keyspace = client.settings.keyspace
    known = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?"
    if not client.rows((known, (keyspace, "sqe_schema"))):
        return None
    found = client.rows(
        (f"SELECT version FROM {keyspace}.sqe_schema WHERE name = 'sqe-chain'", ()), serial=True
    )
    return int(found[0][0] or 0) if found else 0


def check(client: CassandraClient, migrations: Sequence[Migration] = MIGRATIONS) -> int:
    """Check that the tables are there, as this version of sqe-chain needs them.

    Returns:
        Their version: the newest one, or an older one that is enough.

    Raises:
        Unavailable: no answer.
        ConfigurationError: they are missing, older or newer; says what to do.
    """
    found, known = version(client), migrations[-1].number
    needed = max(step.number for step in migrations if step.needed)
    if found is not None and needed <= found <= known:
        return found
    settings = client.settings
    if found is not None and found > known:
        raise ConfigurationError(
            f"{settings}: the tables have version {found}, this sqe-chain knows {known}: use a newer sqe-chain"
        )
    what = f"the tables have version {found}, {needed} is needed" if found else "the tables are missing"
    raise ConfigurationError(f"{settings}: {what}; run: sqe-chain store init {settings}")


def migrate(
    client: CassandraClient,
    replication: Mapping[str, int],
    migrations: Sequence[Migration] = MIGRATIONS,
) -> list[str]:
    """Make the keyspace and its tables, or bring them to the newest version. May be repeated.

    Args:
        client: connections.
        replication: of a keyspace that is not there yet: data centre -> replicas; "" for all alike.
        migrations: the steps.

    Returns:
        What was done, a line for each step; [] when there was nothing to do.

    Raises:
        Unavailable: no answer, or another program holds the claim for too long. May be repeated.
        ConfigurationError: rights, no replication for a new keyspace, or a newer schema.
    """
    keyspace = client.settings.keyspace
    done = _make_keyspace(client, replication)
    client.change_schema(_VERSIONS.format(keyspace=keyspace))
    table = f"{keyspace}.sqe_schema"
    client.step([(f"INSERT INTO {table} (name, version) VALUES ('sqe-chain', 0) IF NOT EXISTS", ())])
    mine = str(uuid.uuid4())
    deadline = time.monotonic() + _WAIT_S
    while True:
        found = version(client) or 0
        missing = [step for step in migrations if step.number > found]
        if not missing:
            check(client, migrations)
            return done
        if client.step([(_claim(table), (mine, found))]):
            step = missing[0]
            for statement in step.statements:
                client.change_schema(statement.format(keyspace=keyspace))
            if client.step([(_release(table), (step.number, found, mine))]):
                done.append(f"tables of keyspace {keyspace}: version {step.number}")
        elif time.monotonic() > deadline:
            raise Unavailable(f"{client.settings}: another program is changing the tables; try again later")
        else:
            time.sleep(_POLL_S)


def _claim(table: str) -> str:
    return (
        f"UPDATE {table} USING TTL {_CLAIM_S} SET holder = ? WHERE name = 'sqe-chain' "
        "IF version = ? AND holder = null"
    )


def _release(table: str) -> str:
    return (
        f"UPDATE {table} SET version = ?, holder = null WHERE name = 'sqe-chain' "
        "IF version = ? AND holder = ?"
    )


def _make_keyspace(client: CassandraClient, replication: Mapping[str, int]) -> list[str]:
    keyspace = client.settings.keyspace
    known = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?"
    if client.rows((known, (keyspace,))):
        return []
    if not replication:
        raise ConfigurationError(
            f"{client.settings}: the keyspace is not there; say how often it shall be kept: --replication 3, or "
            "--datacenter-replication NAME=3"
        )
    # "" is what Cassandra itself calls so: in each data centre that there is now.
    each = {name or "replication_factor": count for name, count in sorted(replication.items())}
    options = ", ".join(f"'{_literal(name)}': {count}" for name, count in each.items())
    how = f"'class': 'NetworkTopologyStrategy', {options}"
    client.change_schema(f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {{{how}}}")
    return [f"keyspace {keyspace}: {options}"]


def _literal(name: str) -> str:
    return name.replace("'", "''")
