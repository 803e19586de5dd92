"""The tables, created and changed by numbered migrations; a table of its own records the version.

PostgreSQL changes tables in transactions: all of it is done, or nothing. The first statement locks out other programs.
"""

# ruff: noqa: S608 - the schema's name is checked where the address is read

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqe_chain.adapters.postgres.client import PostgresClient
from sqe_chain.errors import ConfigurationError

PLACE: Final = "(CASE WHEN length(key) <= 1000 THEN key ELSE substring(key, 1, 1000) || sha256(key) END)"
"""A key as the index holds it: PostgreSQL's take at most 2,704 bytes. No two keys have the same."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """Changes from one version of the schema to the next.

    Attributes:
        number: the version that it leads to; the first is 1.
        statements: data definition; `{schema}` is filled in.
    """

    number: int
    statements: tuple[str, ...]


_VERSIONS: Final = """\
CREATE TABLE IF NOT EXISTS {schema}.sqe_schema (
    name text PRIMARY KEY, version int NOT NULL, system_identifier bigint NOT NULL, timeline text NOT NULL
)"""

HOMES: Final = """\
CREATE TABLE {schema}.sqe_homes (
    flow text PRIMARY KEY, epoch bigint NOT NULL, run_id text NOT NULL, owner text NOT NULL,
    number bigint NOT NULL, plan_id text NOT NULL, beat bigint NOT NULL
)"""

PLANS: Final = """\
CREATE TABLE {schema}.sqe_plans (
    flow text, number bigint, plan bytea NOT NULL, PRIMARY KEY (flow, number)
)"""

HEADERS: Final = """\
CREATE TABLE {schema}.sqe_headers (
    flow text, stage text, part int, epoch bigint NOT NULL, run_id text NOT NULL, number bigint NOT NULL,
    plan_id text NOT NULL, begun_id text NOT NULL, cursor bytea, states bigint NOT NULL,
    PRIMARY KEY (flow, stage, part)
)"""

STATES: Final = """\
CREATE TABLE {schema}.sqe_states (
    flow text NOT NULL, stage text NOT NULL, part int NOT NULL, key bytea NOT NULL, state bytea NOT NULL,
    shown text
)"""

BY_KEY: Final = f"""\
CREATE UNIQUE INDEX sqe_states_by_key ON {{schema}}.sqe_states (
    flow, stage, part,
    {PLACE}
)"""

REGISTERED: Final = """\
CREATE TABLE {schema}.sqe_views (
    name text PRIMARY KEY, flow text NOT NULL, stage text NOT NULL, columns jsonb NOT NULL
)"""

LOCATIONS: Final = """\
CREATE TABLE {schema}.sqe_locations (
    flow text PRIMARY KEY, epoch bigint NOT NULL, number bigint NOT NULL, stages jsonb NOT NULL
)"""

RESULTS: Final = f"""\
CREATE VIEW {{schema}}.results AS
    SELECT l.flow, p.stage, s.key, s.state, s.shown,
        {PLACE} AS place
    FROM {{schema}}.sqe_locations AS l
    CROSS JOIN LATERAL jsonb_each(l.stages) AS p (stage, place)
    JOIN {{schema}}.sqe_headers AS h ON h.flow = p.place ->> 'stored_flow' AND h.stage = p.stage
    JOIN {{schema}}.sqe_states AS s ON s.flow = h.flow AND s.stage = h.stage AND s.part = h.part
    WHERE p.place ->> 'kind' = 'aggregate'"""

MIGRATIONS: Final = (
    SchemaChange(1, (HOMES, PLANS, HEADERS, STATES, BY_KEY, LOCATIONS, RESULTS)),
    SchemaChange(2, (REGISTERED,)),
)
"""All migrations, in order."""

SERVER: Final = (
    "SELECT (pg_control_system()).system_identifier, substring(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
)
"""Which database cluster this is, and its timeline, which grows when a replica becomes primary and when a backup is restored."""


def version(client: PostgresClient) -> int:
    """The version of the schema; 0: there are no tables."""
    schema = client.settings.schema
    ((there,),) = client.rows("SELECT to_regclass(%(name)s) IS NOT NULL", {"name": f"{schema}.sqe_schema"})
    if not there:
        return 0
    rows = client.rows(f"SELECT version FROM {schema}.sqe_schema WHERE name = 'sqe-chain'")
    return int(rows[0][0]) if rows else 0


def check(client: PostgresClient) -> int:
    """Check that the tables exist in a version that this version of sqe-chain can use; returns it.

    Raises:
        ConfigurationError: they are missing, too old or too new.
    """
    current, newest = version(client), MIGRATIONS[-1].number
    if current == newest:
        return current
    settings = client.settings
    if current > newest:
        raise ConfigurationError(
            f"{settings}: the tables have version {current}, this sqe-chain supports {newest}: use a newer sqe-chain"
        )
    what = f"the tables have version {current}, {newest} is needed" if current else "the tables are missing"
    raise ConfigurationError(f"{settings}: {what}; run: sqe-chain store init {settings}")


def migrate(client: PostgresClient) -> list[str]:
    """Create the schema and its tables, or migrate them to the newest version. May be repeated.

    Returns:
        What was done, one line for each change; [] when there was nothing to do.

    Raises:
        ConfigurationError: rights, the database's encoding, or a newer schema.
    """
    schema = client.settings.schema
    done = []
    with client.transaction() as connection:

        def run(text: str) -> list[tuple[object, ...]]:
            cursor = connection.execute(text)
            return cursor.fetchall() if cursor.description else []

        ((encoding,),) = run("SHOW server_encoding")
        if encoding != "UTF8":
            raise ConfigurationError(
                f"{client.settings}: the database has encoding {encoding}. Expected UTF8. Create one with ENCODING 'UTF8'"
            )
        if not run(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'"):
            run(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            done.append(f"schema {schema}")
        run(_VERSIONS.format(schema=schema))
        run(f"LOCK TABLE {schema}.sqe_schema IN ACCESS EXCLUSIVE MODE")
        versions = run(f"SELECT version FROM {schema}.sqe_schema WHERE name = 'sqe-chain'")
        current = int(str(versions[0][0])) if versions else 0
        for migration in MIGRATIONS:
            if migration.number > current:
                for statement in migration.statements:
                    run(statement.format(schema=schema))
                done.append(f"tables of schema {schema}: version {migration.number}")
        newest = max(current, MIGRATIONS[-1].number)
        run(
            f"INSERT INTO {schema}.sqe_schema (name, version, system_identifier, timeline) "
            f"SELECT 'sqe-chain', {newest}, server.* FROM ({SERVER}) AS server "
            "ON CONFLICT (name) DO UPDATE SET version = excluded.version, "
            "system_identifier = excluded.system_identifier, timeline = excluded.timeline"
        )
    check(client)
    return done
