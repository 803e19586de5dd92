"""The tables, created and changed by numbered migrations; a table of its own records the version.

A conditional write claims a migration before its statements run. So two programs never change the schema at once, which
Cassandra would not prevent: it may end up with two tables of one name. The claim of a program that dies expires after a
minute. Statements can be sent again: IF NOT EXISTS.
"""

# ruff: noqa: S608 - the keyspace is checked where the address is read; everything else is bound

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqe_chain.adapters.cassandra.client import CassandraClient
from sqe_chain.errors import ConfigurationError, Unavailable

_CLAIM_S: Final = 60
_WAIT_S: Final = 90
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Migration:
    """Changes from one version of the schema to the next.

    Attributes:
        number: the version that it leads to; the first is 1.
        statements: data definition that may be sent again; `{keyspace}` is filled in.
        needed: whether services need it; otherwise they also work with the tables of the version before.
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

TABLES: Final = """\
CREATE TABLE IF NOT EXISTS {keyspace}.sqe_tables (
    name text, version int, table_id text, description text, columns text,
    PRIMARY KEY ((name, version))
)"""

TABLE_HEADS: Final = """\
CREATE TABLE IF NOT EXISTS {keyspace}.sqe_table_heads (
    name text, version int, part int, epoch bigint STATIC, run bigint STATIC, number bigint STATIC,
    plan bigint STATIC, compactions bigint STATIC, removed text STATIC, vacuumed text STATIC,
    chunk_set text, size bigint, statistics text,
    PRIMARY KEY ((name, version, part), chunk_set)
)"""

CHUNK_INDEX: Final = """\
CREATE TABLE IF NOT EXISTS {keyspace}.sqe_chunk_index (
    name text, version int, part int, partition_key blob, chunk_set text, info text, blocks text,
    size bigint, pieces int,
    PRIMARY KEY ((name, version, part), partition_key, chunk_set)
)"""

CHUNKS: Final = """\
CREATE TABLE IF NOT EXISTS {keyspace}.sqe_chunks (
    name text, version int, partition_key blob, chunk_set text, column_name text, block int, piece int,
    data blob,
    PRIMARY KEY ((name, version, partition_key), chunk_set, column_name, block, piece)
)"""

WITH_LOCATIONS: Final = 2
"""The version that has a table for locations."""

WITH_TABLES: Final = 3
"""The version that has tables for the rows of `ingest`."""

MIGRATIONS: Final = (
    Migration(1, (FLOWS, STATES)),
    Migration(WITH_LOCATIONS, (LOCATIONS,), needed=False),
    Migration(WITH_TABLES, (TABLES, TABLE_HEADS, CHUNK_INDEX, CHUNKS), needed=False),
)
"""All migrations, in order."""


def version(client: CassandraClient) -> int | None:
    """The version of the schema; 0 while the tables are being created, None when there are none."""
    keyspace = client.settings.keyspace
    known = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?"
    if not client.rows((known, (keyspace, "sqe_schema"))):
        return None
    select = f"SELECT version FROM {keyspace}.sqe_schema WHERE name = 'sqe-chain'"
    rows = client.rows((select, ()), serial=True)
    return int(rows[0][0] or 0) if rows else 0


def check(client: CassandraClient, migrations: Sequence[Migration] = MIGRATIONS) -> int:
    """Check that the tables exist in a version that this version of sqe-chain can use.

    Returns:
        Their version: the newest one, or an older one that is sufficient.

    Raises:
        ConfigurationError: they are missing, too old or too new.
    """
    current, newest = version(client), migrations[-1].number
    needed = max(migration.number for migration in migrations if migration.needed)
    if current is not None and needed <= current <= newest:
        return current
    settings = client.settings
    if current is not None and current > newest:
        raise ConfigurationError(
            f"{settings}: the tables have version {current}, this sqe-chain supports {newest}: use a newer sqe-chain"
        )
    what = f"the tables have version {current}, {needed} is needed" if current else "the tables are missing"
    raise ConfigurationError(f"{settings}: {what}; run: sqe-chain store init {settings}")


def migrate(
    client: CassandraClient, replication: Mapping[str, int], migrations: Sequence[Migration] = MIGRATIONS
) -> list[str]:
    """Create the keyspace and its tables, or migrate them to the newest version. May be repeated.

    Args:
        client: connections.
        replication: used if the keyspace has to be created: data centre -> replicas; "" for every one.
        migrations: all of them, in order.

    Returns:
        What was done, one line for each change; [] when there was nothing to do.

    Raises:
        Unavailable: another program holds the claim for too long.
        ConfigurationError: no replication for a new keyspace, or a newer schema.
    """
    keyspace = client.settings.keyspace
    done = _make_keyspace(client, replication)
    client.change_schema(_VERSIONS.format(keyspace=keyspace))
    table = f"{keyspace}.sqe_schema"
    client.compare_and_set(
        [(f"INSERT INTO {table} (name, version) VALUES ('sqe-chain', 0) IF NOT EXISTS", ())]
    )
    row = "WHERE name = 'sqe-chain' IF version = ?"
    claim = f"UPDATE {table} USING TTL {_CLAIM_S} SET holder = ? {row} AND holder = null"
    release = f"UPDATE {table} SET version = ?, holder = null {row} AND holder = ?"
    mine = str(uuid.uuid4())  # another program may take the claim when it has expired
    deadline = time.monotonic() + _WAIT_S
    # Bounded: each round makes one migration, sees that another program has, or waits for it until the deadline.
    while True:
        current = version(client) or 0
        missing = [migration for migration in migrations if migration.number > current]
        if not missing:
            check(client, migrations)
            return done
        if client.compare_and_set([(claim, (mine, current))]):
            migration = missing[0]
            for statement in migration.statements:
                client.change_schema(statement.format(keyspace=keyspace))
            if client.compare_and_set([(release, (migration.number, current, mine))]):
                done.append(f"tables of keyspace {keyspace}: version {migration.number}")
        elif time.monotonic() > deadline:
            raise Unavailable(f"{client.settings}: another program is changing the tables; try again later")
        else:
            time.sleep(_POLL_S)


def _make_keyspace(client: CassandraClient, replication: Mapping[str, int]) -> list[str]:
    keyspace = client.settings.keyspace
    known = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?"
    if client.rows((known, (keyspace,))):
        return []
    if not replication:
        raise ConfigurationError(
            f"{client.settings}: the keyspace does not exist; to create it, give its replicas: --replication 3, or "
            "--datacenter-replication NAME=3"
        )
    # Cassandra's own name for the number of replicas in each present data centre.
    each = {name or "replication_factor": count for name, count in sorted(replication.items())}
    options = ", ".join(f"'{_literal(name)}': {count}" for name, count in each.items())
    how = f"'class': 'NetworkTopologyStrategy', {options}"
    client.change_schema(f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {{{how}}}")
    return [f"keyspace {keyspace}: {options}"]


def _literal(name: str) -> str:
    return name.replace("'", "''")
