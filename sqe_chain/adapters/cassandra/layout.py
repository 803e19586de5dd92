"""Layout of homes and headers in Cassandra: tables, statements, values, largest sizes. Documented in docs/stores.md.

A partition of `sqe_states` is a cell (a bucket of a state partition): its states are rows, its header is in static
columns. A partition of `sqe_flows` is a flow: its plans are rows, its home is in static columns. So each atomic
operation affects one partition only.

An absent header has no value in any of its columns (`IF epoch = null`). An absent cursor has no value, an empty one
has an empty value. In addition to its states, each cell has a row with the empty key, the anchor. It is written with
the header, and has no state unless the empty key has one. A header without any row has lost its states. Static columns are
read with the first live row; without the anchor, each such read would have to skip all deleted rows before it. Plans are
ordered by descending number for the same reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqe_chain.adapters import store_rules
from sqe_chain.adapters.cassandra.client import CassandraClient
from sqe_chain.adapters.store_rules import HEADER_FIELDS, HOME_FIELDS, LOCATION_FIELDS, Cell, SizeLimits
from sqe_chain.ports import Header, Home, Locations

# ruff: noqa: S608 - the keyspace is checked where the address is read; everything else is bound

LONGEST_KEY: Final = 65_535
"""A key is a clustering column, whose length takes 16 bits."""

_FLOW: Final = "flow = ?"
_PART: Final = "flow = ? AND stage = ? AND part = ?"


class Statements:
    """The statements of one keyspace; question marks are bound in their order."""

    def __init__(self, keyspace: str) -> None:
        flows, states = f"{keyspace}.sqe_flows", f"{keyspace}.sqe_states"
        home, header = ", ".join(HOME_FIELDS), ", ".join(HEADER_FIELDS)
        self.read_home = f"SELECT {home}, beat FROM {flows} WHERE {_FLOW} LIMIT 1"
        # The condition compares every column, not just the epoch: `before` must be the very record that was read.
        self.set_home = f"UPDATE {flows} SET {_values(HOME_FIELDS)} WHERE {_FLOW} IF {_equal(HOME_FIELDS)}"
        self.read_plan = f"SELECT plan FROM {flows} WHERE {_FLOW} AND plan_number = ?"
        self.add_plan = f"INSERT INTO {flows} (flow, plan_number, plan) VALUES (?, ?, ?)"
        self.drop_plans = f"DELETE FROM {flows} WHERE {_FLOW} AND plan_number < ?"
        self.beat = f"UPDATE {flows} SET beat = ? WHERE {_FLOW} IF epoch = ? AND run_id = ? AND beat = ?"
        self.list_flows = f"SELECT DISTINCT flow FROM {flows}"
        self.drop_home = (
            f"UPDATE {flows} SET {_values(HOME_FIELDS)}, beat = ? WHERE {_FLOW} IF {_equal(HOME_FIELDS)}"
        )
        self.drop_all_plans = f"DELETE FROM {flows} WHERE {_FLOW} AND plan_number >= ?"
        self.drop_states = f"DELETE FROM {states} WHERE {_PART} AND key >= 0x"
        self.read_header = f"SELECT {header}, key FROM {states} WHERE {_PART} LIMIT 1"
        self.set_header = (
            f"UPDATE {states} SET {_values(HEADER_FIELDS)} WHERE {_PART} IF {_equal(HEADER_FIELDS)}"
        )
        self.add_anchor = f"INSERT INTO {states} (flow, stage, part, key) VALUES (?, ?, ?, 0x)"
        self.set_state = f"UPDATE {states} SET state = ? WHERE {_PART} AND key = ?"
        self.show_state = f"UPDATE {states} SET state = ?, shown = ? WHERE {_PART} AND key = ?"
        self.set_both = (
            f"UPDATE {states} SET state = ?, {_values(HEADER_FIELDS)} WHERE {_PART} AND key = ? "
            f"IF {_equal(HEADER_FIELDS)}"
        )
        self.show_both = self.set_both.replace("SET state = ?,", "SET state = ?, shown = ?,")
        locations, where = f"{keyspace}.sqe_locations", ", ".join(LOCATION_FIELDS)
        self.read_locations = f"SELECT epoch, number, stage, {where} FROM {locations} WHERE {_FLOW}"
        age = ("epoch", "number")
        self.set_locations = f"UPDATE {locations} SET {_values(age)} WHERE {_FLOW} IF {_equal(age)}"
        self.set_location = (
            f"INSERT INTO {locations} (flow, stage, {where}) VALUES (?, ?{', ?' * len(LOCATION_FIELDS)})"
        )
        self.drop_location = f"DELETE FROM {locations} WHERE {_FLOW} AND stage = ?"
        self.read_states = f"SELECT key, state FROM {states} WHERE {_PART} AND key IN ?"
        self.scan = f"SELECT key, state FROM {states} WHERE {_PART}"


def _values(columns: Sequence[str]) -> str:
    return ", ".join(f"{column} = ?" for column in columns)


def _equal(columns: Sequence[str]) -> str:
    return " AND ".join(f"{column} = ?" for column in columns)


def age_values(locations: Locations | None) -> tuple[object, ...]:
    """Epoch and number of locations as values of their static columns."""
    return (None, None) if locations is None else locations.age


def locations_of(rows: Sequence[tuple[Any, ...]], flow: str) -> Locations | None:
    """Decode locations from the rows of `read_locations`."""
    rows = [row for row in rows if any(value is not None for value in row)]
    where = f"cassandra: table sqe_locations, flow {flow!r},"
    stages = {row[2]: store_rules.location_of(store_rules.complete(row, where)[3:], where) for row in rows}
    return Locations(rows[0][0], rows[0][1], stages) if rows else None


def home_of(rows: Sequence[tuple[Any, ...]], flow: str) -> tuple[Home | None, int]:
    """Decode a home and its heartbeat counter from the rows of `read_home`."""
    if not rows:
        return None, 0
    *values, beat = rows[0]
    return store_rules.home_of(values, f"cassandra: table sqe_flows, flow {flow!r},"), beat or 0


def header_of(rows: Sequence[tuple[Any, ...]], cell: Cell) -> Header | None:
    """Decode a header from the rows of `read_header`. A cell with a header has a row, at least the anchor: else states are lost."""
    if not rows:
        return None
    *values, key = rows[0]
    lost = "there must be a row at least, and there is none" if key is None else ""
    where = "cassandra: table sqe_states, partition {}/{}/{},".format(*cell)
    return store_rules.header_of(values, where, lost)


_OVERHEAD: Final = 256 << 10
"""Header, names, a cursor of the longest key, and what Paxos adds."""

_SEGMENT: Final = 32 << 20
"""Cassandra's default `commitlog_segment_size`."""

SETTINGS: Final = "max_mutation_size, commitlog_segment_size and native_transport_max_message_size"

_ASKED: Final = "SELECT name, value FROM system_views.settings"
_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE: Final = re.compile(r"(\d+)\s*([KMG]iB|B)?")


def limits(client: CassandraClient) -> SizeLimits:
    """The limits of the cluster: those of its strictest node. For a node that cannot be asked, the defaults.

    Each write is one mutation, which has to fit into half a segment of the commit log (`max_mutation_size`), and into one
    request. Paxos stores it again, as a value in a mutation of its own, so the usable size is a little less.
    """
    largest = []
    for _, answer in client.of_each_node(_ASKED):
        largest.append(mutation_bytes(dict(answer) if isinstance(answer, list) else {}))
    write = min(largest, default=mutation_bytes({})) - _OVERHEAD
    return SizeLimits(LONGEST_KEY, write, write, SETTINGS)


def mutation_bytes(settings: Mapping[str, str | None]) -> int:
    """The largest mutation that a node accepts, in bytes, by its settings.

    >>> mutation_bytes({})
    16777216
    >>> mutation_bytes({"commitlog_segment_size": "8MiB"})
    4194304
    >>> mutation_bytes({"commitlog_segment_size_in_mb": "64", "max_mutation_size": "null"})
    33554432
    """
    segment = _bytes(settings, "commitlog_segment_size", "commitlog_segment_size_in_mb", 1 << 20) or _SEGMENT
    mutation = _bytes(settings, "max_mutation_size", "max_mutation_size_in_kb", 1 << 10) or segment // 2
    message = _bytes(settings, "native_transport_max_message_size", "", 1)
    return min(mutation, message or mutation)


def _bytes(settings: Mapping[str, str | None], name: str, old: str, old_unit: int) -> int:
    """A size in bytes; 0 where it is not set. Before Cassandra 4.1 the name contains the unit."""
    for key, unit in ((name, 1), (old, old_unit)):
        size = _SIZE.fullmatch(settings.get(key) or "")
        if size:
            return int(size[1]) * (_UNITS[size[2]] if size[2] else unit)
    return 0
