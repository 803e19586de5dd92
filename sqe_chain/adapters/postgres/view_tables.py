"""Tables with typed columns that show states (`view="NAME"`): how they are made, and how a write fills them.

Of each, the table `NAME_rows` has the rows of all generations, as `sqe_states` has them: under the name that the flow's states
are stored under. `NAME` is a view of it that shows those to which the locations lead. So a rebuild switches it in one step.
"""

# ruff: noqa: S608 - names are checked where the address is read and where the flow is declared; everything else is bound

from __future__ import annotations

import json
from functools import lru_cache
from shlex import quote
from typing import Final

from sqe_chain.adapters.postgres.client import PostgresClient
from sqe_chain.adapters.postgres.schema import PLACE
from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import ViewTable

_OWN: Final = (("key", "text"), ("sqe_error", "text"))
"""Columns of each table besides those of the states, and of its place."""
CELL: Final = "sqe_flow = %(flow)s AND sqe_part = %(part)s"
_PLACE: Final = "sqe_flow, sqe_part, sqe_place"


def rows_of(schema: str, name: str) -> str:
    """The table behind a view."""
    return f"{schema}.{name}_rows"


@lru_cache(maxsize=256)
def statements_of(schema: str, table: ViewTable) -> str:
    """The parts of a write's statement that keep a table as the states are; `gate` lets them through."""
    rows, columns = rows_of(schema, table.name), (*_OWN, *table.columns)
    names = ", ".join(_quoted(name) for name, _ in columns)
    typed = ", ".join(f"{_quoted(name)} {kind}" for name, kind in columns)
    changed = ", ".join(f"{_quoted(name)} = excluded.{_quoted(name)}" for name, _ in columns)
    return (
        f"showed AS (INSERT INTO {rows} AS v ({_PLACE}, {names})"
        f" SELECT %(flow)s, %(part)s, r.sqe_place, {', '.join(f'r.{_quoted(name)}' for name, _ in columns)}"
        f" FROM ROWS FROM (unnest(%(shown_places)s::bytea[]), json_to_recordset(%(shown_rows)s::text::json) AS ({typed}))"
        f" AS r (sqe_place, {names}) WHERE EXISTS (SELECT FROM gate)"
        f" ON CONFLICT ({_PLACE}) DO UPDATE SET {changed}),"
        f" hid AS (DELETE FROM {rows} WHERE ctid = ANY(ARRAY(SELECT f.ctid FROM unnest(%(gone)s::bytea[]) AS p (place)"
        f" CROSS JOIN LATERAL (SELECT ctid FROM {rows} WHERE {CELL} AND sqe_place = p.place LIMIT 1) AS f))"
        " AND EXISTS (SELECT FROM gate)),"
    )


@lru_cache(maxsize=256)
def unlike(schema: str, table: ViewTable) -> str:
    """The query for places of rows that are not as given, or hidden, or of no state. Columns are compared as texts: some types have no order."""
    rows, columns = rows_of(schema, table.name), (*_OWN, *table.columns)
    names = ", ".join(_quoted(name) for name, _ in columns)
    typed = ", ".join(f"{_quoted(name)} {kind}" for name, kind in columns)
    same = " AND ".join(
        f"v.{_quoted(name)}::text IS NOT DISTINCT FROM r.{_quoted(name)}::text" for name, _ in columns
    )
    return (
        "SELECT r.sqe_place"
        f" FROM ROWS FROM (unnest(%(shown_places)s::bytea[]), json_to_recordset(%(shown_rows)s::text::json) AS ({typed}))"
        f" AS r (sqe_place, {names}) LEFT JOIN {rows} AS v ON v.sqe_flow = %(flow)s AND v.sqe_part = %(part)s"
        f" AND v.sqe_place = r.sqe_place WHERE v.sqe_place IS NULL OR NOT ({same})"
        f" UNION SELECT v.sqe_place FROM {rows} AS v WHERE {CELL} AND (v.sqe_place = ANY(%(hidden)s::bytea[])"
        f" OR NOT EXISTS (SELECT FROM {schema}.sqe_states AS s WHERE s.flow = %(flow)s AND s.stage = %(stage)s"
        f" AND s.part = %(part)s AND {PLACE.replace('key', 's.key')} = v.sqe_place))"
    )


def clearing(schema: str, table: ViewTable) -> str:
    """The part of a statement that deletes all rows of a cell."""
    name = table.name
    return (
        f"{name}_cleared AS (DELETE FROM {rows_of(schema, name)} WHERE {CELL} AND EXISTS (SELECT FROM gate)),"
    )


def tables_of(client: PostgresClient, stage: str) -> list[ViewTable]:
    """The tables that show, or have shown, a stage of this name, of any flow."""
    schema = client.settings.schema
    return [
        ViewTable(name, ())
        for (name,) in client.rows(
            f"SELECT name FROM {schema}.sqe_views WHERE stage = %(stage)s ORDER BY name", {"stage": stage}
        )
    ]


def check(client: PostgresClient, flow: str, stage: str, table: ViewTable) -> None:
    """Check a table; see `WithViewTables.check_view_table`."""
    known = _registered(client, table.name)
    where = f"{client.settings}: view {table.name}"
    if known is None:
        raise ConfigurationError(f"{where} is missing. {_how_to_make(client, flow)}")
    missing = _missing(where, known, flow, stage, table)
    if missing:
        names = ", ".join(name for name, _ in missing)
        raise ConfigurationError(f"{where} lacks {names}. {_how_to_make(client, flow)}")
    _check_rights(client, where, rows_of(client.settings.schema, table.name))


def _check_rights(client: PostgresClient, where: str, rows: str) -> None:
    """Check that this login may write the rows of a view: `store init` makes a new table, whose rights are not those of the others."""
    refused = client.rows(
        "SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p WHERE NOT has_table_privilege(%(rows)s, p)",
        {"rows": rows},
    )
    if refused:
        names = ", ".join(name for (name,) in refused)
        raise ConfigurationError(
            f"{where}: this login has no right to {names} on {rows}. Expected SELECT, INSERT, UPDATE, DELETE. Grant them"
        )


def _how_to_make(client: PostgresClient, flow: str) -> str:
    return f"Make it with: sqe-chain store init {quote(str(client.settings))} --flow MODULE:FLOW, where the module declares flow {flow!r}"


_Known = tuple[str, str, dict[str, str]]
"""Flow, stage and columns of a table that exists."""


def make(client: PostgresClient, flow: str, stage: str, table: ViewTable) -> list[str]:
    """Make a table, or add columns; see `WithViewTables.make_view_table`."""
    schema, name = client.settings.schema, table.name
    where = f"{client.settings}: view {name}"
    rows = rows_of(schema, name)
    with client.transaction() as connection:
        connection.execute(f"LOCK TABLE {schema}.sqe_views IN EXCLUSIVE MODE")
        known = _registered(client, name)
        missing = table.columns if known is None else _missing(where, known, flow, stage, table)
        if not missing:
            return []
        if known is None:
            columns = ", ".join(f"{_quoted(column)} {kind}" for column, kind in (*_OWN, *table.columns))
            connection.execute(
                f"CREATE TABLE {rows} (sqe_flow text NOT NULL, sqe_part int NOT NULL, sqe_place bytea NOT NULL,"
                f" {columns}, PRIMARY KEY ({_PLACE}))"
            )
        for column, kind in missing if known is not None else ():
            connection.execute(f"ALTER TABLE {rows} ADD COLUMN {_quoted(column)} {kind}")
        # In the order in which they came: a view's columns cannot be moved.
        columns_now = {**(known[2] if known is not None else {}), **dict(missing)}
        shown = ", ".join(_quoted(column) for column in ("key", "sqe_error", *columns_now))
        connection.execute(
            f"CREATE OR REPLACE VIEW {schema}.{name} AS {_shown(schema, flow, stage, name, shown)}"
        )
        connection.execute(
            f"INSERT INTO {schema}.sqe_views (name, flow, stage, columns) VALUES (%(name)s, %(flow)s, %(stage)s, %(columns)s::text::jsonb)"
            " ON CONFLICT (name) DO UPDATE SET columns = excluded.columns",
            {"name": name, "flow": flow, "stage": stage, "columns": json.dumps(list(columns_now.items()))},
        )
    if known is None:
        return [f"view {schema}.{name}, of table {rows}"]
    return [f"view {schema}.{name}: column {column}" for column, _ in missing]


def _shown(schema: str, flow: str, stage: str, name: str, columns: str) -> str:
    """The query of a view: rows of the generation to which the locations lead, once it has all of them."""
    # Names of flows and stages have no quotes.
    location = f"stages -> '{stage}'"
    return (
        f"SELECT {columns} FROM {rows_of(schema, name)} WHERE sqe_flow = (SELECT {location} ->> 'stored_flow'"
        f" FROM {schema}.sqe_locations WHERE flow = '{flow}' AND split_part({location} ->> 'shown_as', ':', 1) = '{name}')"
    )


def _registered(client: PostgresClient, name: str) -> _Known | None:
    rows = client.rows(
        f"SELECT flow, stage, columns FROM {client.settings.schema}.sqe_views WHERE name = %(name)s",
        {"name": name},
    )
    return (rows[0][0], rows[0][1], dict(rows[0][2])) if rows else None


def _missing(
    where: str, known: _Known, flow: str, stage: str, table: ViewTable
) -> tuple[tuple[str, str], ...]:
    """The columns that an existing table lacks. Raises ConfigurationError: it is another one's, or columns do not fit."""
    owner, of, columns = known
    if (owner, of) != (flow, stage):
        raise ConfigurationError(
            f"{where} shows stage {of!r} of flow {owner!r}. Expected one of stage {stage!r} of flow {flow!r}. Give the view another "
            "name in the code"
        )
    wanted = dict(table.columns)
    for name, kind in columns.items():
        if name not in wanted:
            raise ConfigurationError(
                f"{where} has column {name}, and the state has no such field any more. Expected the columns of the state, or fewer. "
                f"Keep the field, or give the view another name in the code"
            )
        if wanted[name] != kind:
            raise ConfigurationError(
                f"{where}: column {name} is {kind}, and the field is {wanted[name]} now. Expected the same type. Give the field, or the "
                "view, another name in the code"
            )
    return tuple((name, kind) for name, kind in table.columns if name not in columns)


def _quoted(name: str) -> str:
    """A name of a column; a field's has no quotes, and what psycopg would take for a parameter is doubled."""
    return f'"{name}"'.replace("%", "%%")
