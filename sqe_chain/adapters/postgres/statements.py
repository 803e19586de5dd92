"""The statements of the store: each is atomic, compares first, and gives whether it was done.

A statement sees the rows of the moment when it began. It waits for another one that changes the same header, and then
compares what that one has left. But it still counts the states of the moment when it began. So it also compares `xmin`, the
transaction that has written the header: what it counts, and what it replaces, are of one moment.
"""

# ruff: noqa: S608 - the schema's name is checked where the address is read; everything else is bound

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqe_chain.adapters.postgres.schema import PLACE
from sqe_chain.adapters.store_rules import HEADER_FIELDS, HOME_FIELDS, Cell

COUNTED: Final = 1_000
"""States of a cell that are counted when it is read: of more, it is seen that there are more."""

CELL: Final = "flow = %(flow)s AND stage = %(stage)s AND part = %(part)s"
_HEADER: Final = ", ".join(HEADER_FIELDS)
_HOME: Final = ", ".join(HOME_FIELDS)
_TYPES: Final = {"epoch": "bigint", "number": "bigint", "cursor": "bytea"}


def _given(names: Sequence[str], prefix: str) -> str:
    return ", ".join(f"%({prefix}{name})s::{_TYPES.get(name, 'text')}" for name in names)


def _equal(names: Sequence[str], table: str = "") -> str:
    """Compares a record with `before`; only a cursor can be absent."""
    return " AND ".join(
        f"{table}{name} {'IS NOT DISTINCT FROM' if name == 'cursor' else '='} %(before_{name})s::{_TYPES.get(name, 'text')}"
        for name in names
    )


def _set(names: Sequence[str]) -> str:
    return ", ".join(f"{name} = %(after_{name})s::{_TYPES.get(name, 'text')}" for name in names)


def named(prefix: str, names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """The values of a record, by the names of parameters."""
    return {f"{prefix}{name}": value for name, value in zip(names, values, strict=True)}


def cell_values(cell: Cell) -> dict[str, Any]:
    """The parameters of `CELL`."""
    return {"flow": cell[0], "stage": cell[1], "part": cell[2]}


class SqlStatements:
    """The statements for the tables of one schema."""

    def __init__(self, schema: str) -> None:
        homes, plans, headers, states, locations = (
            f"{schema}.sqe_{table}" for table in ("homes", "plans", "headers", "states", "locations")
        )
        self.read_home = f"SELECT beat, {_HOME} FROM {homes} WHERE flow = %(flow)s"
        plan = (
            f"put AS (INSERT INTO {plans} (flow, number, plan)"
            " SELECT %(flow)s, %(after_number)s, %(plan)s::bytea WHERE %(plan)s::bytea IS NOT NULL AND EXISTS (SELECT FROM gate)"
            " ON CONFLICT (flow, number) DO UPDATE SET plan = excluded.plan),"
            f" gone AS (DELETE FROM {plans} WHERE flow = %(flow)s AND number < %(drop_below)s AND EXISTS (SELECT FROM gate))"
            " SELECT count(*) FROM gate"
        )
        self.first_home = (
            f"WITH gate AS (INSERT INTO {homes} (flow, beat, {_HOME}) VALUES (%(flow)s, 0, {_given(HOME_FIELDS, 'after_')})"
            f" ON CONFLICT DO NOTHING RETURNING 1), {plan}"
        )
        self.next_home = f"WITH gate AS (UPDATE {homes} SET {_set(HOME_FIELDS)} WHERE flow = %(flow)s AND {_equal(HOME_FIELDS)} RETURNING 1), {plan}"
        # An empty run id means that the claim was released: no run holds it, not even one with an empty id.
        self.beat = (
            f"UPDATE {homes} SET beat = beat + 1"
            " WHERE flow = %(flow)s AND epoch = %(epoch)s AND run_id = %(run_id)s AND run_id <> '' RETURNING 1"
        )
        self.read_plan = f"SELECT plan FROM {plans} WHERE flow = %(flow)s AND number = %(number)s"
        self.flows = f'SELECT flow FROM {homes} ORDER BY flow COLLATE "C"'
        self.drop_home = (
            f"WITH gate AS (DELETE FROM {homes} WHERE flow = %(flow)s AND {_equal(HOME_FIELDS)} RETURNING 1),"
            f" gone AS (DELETE FROM {plans} WHERE flow = %(flow)s AND EXISTS (SELECT FROM gate))"
            " SELECT count(*) FROM gate"
        )

        counted = (
            f"(SELECT count(*) FROM (SELECT FROM {states} AS s WHERE s.flow = h.flow AND s.stage = h.stage AND s.part = h.part"
            f" LIMIT least(h.states, {COUNTED}) + 1) AS seen)"
        )
        self.read_headers = (
            f"SELECT part, {_HEADER}, states, {counted} FROM {headers} AS h"
            " WHERE flow = %(flow)s AND stage = %(stage)s AND part = ANY(%(parts)s)"
        )
        # The header is the row without a key: one statement, so one moment.
        self.read_states = (
            f"SELECT NULL::bytea, NULL::bytea, {_HEADER}, states, {counted} FROM {headers} AS h WHERE {CELL}"
            " UNION ALL SELECT f.key, f.state, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL"
            f" FROM {_each(states, 'places', 'key, state')}"
        )
        same_moment = f"xmin = (SELECT o.xmin FROM {headers} AS o WHERE {_of('o')})"
        there = f"(SELECT count(*) FROM {_each(states, 'places', '1')})"
        self._changes_rows = (
            f"put AS (INSERT INTO {states} AS s (flow, stage, part, key, state, shown)"
            " SELECT %(flow)s, %(stage)s, %(part)s, r.key, r.state, r.shown"
            " FROM unnest(%(keys)s::bytea[], %(states)s::bytea[], %(shown)s::text[]) AS r (key, state, shown)"
            " WHERE EXISTS (SELECT FROM gate)"
            f" ON CONFLICT (flow, stage, part, {PLACE})"
            " DO UPDATE SET state = excluded.state, shown = excluded.shown),"
            f" gone AS (DELETE FROM {states} WHERE ctid = ANY(ARRAY(SELECT f.ctid FROM {_each(states, 'gone', 'ctid')}))"
            " AND EXISTS (SELECT FROM gate))"
            " SELECT count(*) FROM gate"
        )
        self._first_gate = (
            f"WITH gate AS (INSERT INTO {headers} (flow, stage, part, {_HEADER}, states)"
            f" SELECT %(flow)s, %(stage)s, %(part)s, {_given(HEADER_FIELDS, 'after_')},"
            f" %(kept)s - {there} + (SELECT count(*) FROM {states} WHERE {CELL})"
            f" WHERE NOT EXISTS (SELECT FROM {headers} WHERE {CELL}) ON CONFLICT DO NOTHING RETURNING 1), "
        )
        self._next_gate = (
            f"WITH gate AS (UPDATE {headers} SET {_set(HEADER_FIELDS)},"
            f" states = states + %(kept)s - {there}"
            f" WHERE {CELL} AND {_equal(HEADER_FIELDS)} AND {same_moment} RETURNING 1), "
        )
        self._drop_gate = f"WITH gate AS (DELETE FROM {headers} WHERE {CELL} AND {_equal(HEADER_FIELDS)} AND {same_moment} RETURNING 1), "
        self._drop_rows = (
            f"gone AS (DELETE FROM {states} WHERE {CELL} AND EXISTS (SELECT FROM gate))"
            " SELECT count(*) FROM gate"
        )
        self.scan = (
            f"SELECT key, state FROM {states} WHERE {CELL} AND {PLACE} > %(last)s::bytea"
            f" ORDER BY flow, stage, part, {PLACE} LIMIT %(count)s"
        )
        self.scan_first = self.scan.replace(" > ", " >= ")

        self.read_locations = f"SELECT epoch, number, stages FROM {locations} WHERE flow = %(flow)s"
        self.set_locations = (
            f"INSERT INTO {locations} AS l (flow, epoch, number, stages)"
            " VALUES (%(flow)s, %(epoch)s, %(number)s, %(stages)s::text::jsonb)"
            " ON CONFLICT (flow) DO UPDATE SET epoch = excluded.epoch, number = excluded.number, stages = excluded.stages"
            " WHERE (l.epoch, l.number) < (excluded.epoch, excluded.number)"
        )
        self.drop_locations = (
            f"DELETE FROM {locations} WHERE flow = %(flow)s AND epoch = %(epoch)s AND number = %(number)s"
        )

    def write_header(self, views: str = "", *, first: bool) -> str:
        """The statement of a write.

        Args:
            views: what it does with a view that is a table (`view_tables`); empty: nothing.
            first: there must be no header yet.
        """
        return f"{self._first_gate if first else self._next_gate}{views} {self._changes_rows}"

    def drop_header(self, views: str = "") -> str:
        """The statement that deletes a header with its states; `views` as for `write_header`."""
        return f"{self._drop_gate}{views} {self._drop_rows}"


def _each(states: str, places: str, columns: str) -> str:
    """The rows at these places, each found by the index.

    With `= ANY(…)` PostgreSQL reads the whole cell instead, until it has analysed the table.
    """
    return (
        f"unnest(%({places})s::bytea[]) AS p (place)"
        f" CROSS JOIN LATERAL (SELECT {columns} FROM {states} WHERE {CELL} AND {PLACE} = p.place LIMIT 1) AS f"
    )


def _of(table: str) -> str:
    return " AND ".join(f"{table}.{name} = %({name})s" for name in ("flow", "stage", "part"))
