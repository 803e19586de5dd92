"""Layout of homes and headers in Cassandra: tables, statements, values, largest sizes. Documented in docs/stores.md.

What is decoded is not what another program has written: that is `StoreInconsistent`.

A partition of `sqe_states` is a cell (a bucket of a state partition): its states are rows, its header is in static
columns. A partition of `sqe_flows` is a flow: its plans are rows, its home is in static columns. So each atomic
operation affects one partition only.

An absent header has no value in any of its columns (`IF epoch = null`). An absent cursor has no value, an empty one
has an empty value. In addition to its states, each cell has a row with the empty key, the anchor. It is written with
the header, and has no state unless the empty key has one. A header without any row has lost its states. Static columns are read with the first live row; without
the anchor, each such read would have to skip all deleted rows before it. Plans are ordered by descending number for
the same reason.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from sqe_chain.adapters.limits import Limits, check_name
from sqe_chain.errors import ConfigurationError, StoreInconsistent
from sqe_chain.ports import Header, Home, Location, Locations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqe_chain.adapters.cassandra.client import CassandraClient


# ruff: noqa: S608 - the keyspace is checked where the address is read; everything else is bound


HOME_COLUMNS: Final = ("epoch", "run_id", "owner", "number", "plan_id")
"""Static columns of a home, in the order of `home_values`."""

HEADER_COLUMNS: Final = ("epoch", "run_id", "number", "plan_id", "begun_id", "cursor")
"""Static columns of a header, in the order of `header_values`."""

LOCATION_COLUMNS: Final = (
    "stored_flow", "state_partitions", "buckets", "kind", "type_name", "shown_as", "store",
)  # fmt: skip
"""Columns of a stage's location, in the order of `location_values`."""

LONGEST_KEY: Final = 65_535
"""A key is a clustering column, whose length takes 16 bits."""

_FLOW: Final = "flow = ?"
_PART: Final = "flow = ? AND stage = ? AND part = ?"


class Statements:
    """The statements of one keyspace; question marks are bound in their order."""

    def __init__(self, keyspace: str) -> None:
        flows, states = f"{keyspace}.sqe_flows", f"{keyspace}.sqe_states"
        home, header = ", ".join(HOME_COLUMNS), ", ".join(HEADER_COLUMNS)
        self.read_home = f"SELECT {home}, beat FROM {flows} WHERE {_FLOW} LIMIT 1"
        # The condition compares every column, not just the epoch: `before` must be the very record that was read.
        self.set_home = f"UPDATE {flows} SET {_values(HOME_COLUMNS)} WHERE {_FLOW} IF {_equal(HOME_COLUMNS)}"
        self.read_plan = f"SELECT plan FROM {flows} WHERE {_FLOW} AND plan_number = ?"
        self.add_plan = f"INSERT INTO {flows} (flow, plan_number, plan) VALUES (?, ?, ?)"
        self.drop_plans = f"DELETE FROM {flows} WHERE {_FLOW} AND plan_number < ?"
        self.beat = f"UPDATE {flows} SET beat = ? WHERE {_FLOW} IF epoch = ? AND run_id = ? AND beat = ?"
        self.list_flows = f"SELECT DISTINCT flow FROM {flows}"
        self.drop_home = (
            f"UPDATE {flows} SET {_values(HOME_COLUMNS)}, beat = ? WHERE {_FLOW} IF {_equal(HOME_COLUMNS)}"
        )
        self.drop_all_plans = f"DELETE FROM {flows} WHERE {_FLOW} AND plan_number >= ?"
        self.drop_states = f"DELETE FROM {states} WHERE {_PART} AND key >= 0x"
        self.read_header = f"SELECT {header}, key FROM {states} WHERE {_PART} LIMIT 1"
        self.set_header = (
            f"UPDATE {states} SET {_values(HEADER_COLUMNS)} WHERE {_PART} IF {_equal(HEADER_COLUMNS)}"
        )
        self.add_anchor = f"INSERT INTO {states} (flow, stage, part, key) VALUES (?, ?, ?, 0x)"
        self.set_state = f"UPDATE {states} SET state = ? WHERE {_PART} AND key = ?"
        self.show_state = f"UPDATE {states} SET state = ?, shown = ? WHERE {_PART} AND key = ?"
        self.set_both = (
            f"UPDATE {states} SET state = ?, {_values(HEADER_COLUMNS)} WHERE {_PART} AND key = ? "
            f"IF {_equal(HEADER_COLUMNS)}"
        )
        self.show_both = self.set_both.replace("SET state = ?,", "SET state = ?, shown = ?,")
        locations, where = f"{keyspace}.sqe_locations", ", ".join(LOCATION_COLUMNS)
        self.read_locations = f"SELECT epoch, number, stage, {where} FROM {locations} WHERE {_FLOW}"
        age = ("epoch", "number")
        self.set_locations = f"UPDATE {locations} SET {_values(age)} WHERE {_FLOW} IF {_equal(age)}"
        self.set_location = (
            f"INSERT INTO {locations} (flow, stage, {where}) VALUES (?, ?{', ?' * len(LOCATION_COLUMNS)})"
        )
        self.drop_location = f"DELETE FROM {locations} WHERE {_FLOW} AND stage = ?"
        self.read_states = f"SELECT key, state FROM {states} WHERE {_PART} AND key IN ?"
        self.scan = f"SELECT key, state FROM {states} WHERE {_PART}"


def _values(columns: Sequence[str]) -> str:
    return ", ".join(f"{column} = ?" for column in columns)


def _equal(columns: Sequence[str]) -> str:
    return " AND ".join(f"{column} = ?" for column in columns)


def partition_key(flow: str, stage: str, part: int) -> tuple[str, str, int]:
    """The partition key of a cell."""
    return check_name(flow), check_name(stage), part


def check_key(key: bytes) -> bytes:
    """The key itself, if Cassandra can hold it.

    Raises:
        ConfigurationError: it is too long.
    """
    if len(key) > LONGEST_KEY:
        raise ConfigurationError(
            f"a key has {len(key)} bytes, Cassandra allows at most {LONGEST_KEY}: use a shorter key, for "
            "example a digest, or another store"
        )
    return key


def home_values(home: Home | None) -> tuple[object, ...]:
    """A home as values of `HOME_COLUMNS`."""
    if home is None:
        return (None,) * len(HOME_COLUMNS)
    return (home.epoch, home.run_id, home.owner, home.number, home.plan_id)


def header_values(header: Header | None) -> tuple[object, ...]:
    """A header as values of `HEADER_COLUMNS`."""
    if header is None:
        return (None,) * len(HEADER_COLUMNS)
    return (
        header.epoch, header.run_id, header.number, header.plan_id, header.begun_id, header.cursor,
    )  # fmt: skip


def age_values(locations: Locations | None) -> tuple[object, ...]:
    """Epoch and number of locations as values of their static columns."""
    return (None, None) if locations is None else locations.age


def location_values(one: Location) -> tuple[object, ...]:
    """A stage's location as values of `LOCATION_COLUMNS`."""
    return (
        one.flow, one.state_partitions, one.buckets, one.kind, one.type_name, one.view or "", one.store,
    )  # fmt: skip


def locations_of(rows: Sequence[tuple[Any, ...]], flow: str) -> Locations | None:
    """Decode locations from the rows of `read_locations`."""
    rows = [row for row in rows if any(value is not None for value in row)]
    if not rows:
        return None
    stages = {}
    for row in rows:
        _, _, stage, stored_flow, partitions, buckets, kind, type_name, view, store = _complete(
            row, f"sqe_locations, flow {flow!r}"
        )
        stages[stage] = Location(stored_flow, partitions, buckets, kind, type_name, view or None, store)
    return Locations(rows[0][0], rows[0][1], stages)


def home_of(rows: Sequence[tuple[Any, ...]], flow: str) -> tuple[Home | None, int]:
    """Decode a home and its heartbeat counter from the rows of `read_home`."""
    if not rows:
        return None, 0
    *values, beat = rows[0]
    if all(value is None for value in values):
        return None, beat or 0
    epoch, run_id, owner, number, plan_id = _complete(values, f"sqe_flows, flow {flow!r}")
    return Home(epoch, run_id, owner, number, plan_id), beat or 0


def header_of(rows: Sequence[tuple[Any, ...]], where: tuple[str, str, int]) -> Header | None:
    """Decode a header from the rows of `read_header`.

    The row that comes with it is the witness of the states: while a cell has a header it has a row, the anchor, if no other.
    """
    if not rows or all(value is None for value in rows[0][:-1]):
        return None
    *values, cursor, key = rows[0]
    lost = "there must be a row at least, and there is none" if key is None else ""
    epoch, run_id, number, plan_id, begun_id = _complete(
        values, "sqe_states, partition {}/{}/{}".format(*where)
    )
    return Header(epoch, run_id, number, plan_id, begun_id, cursor, lost)


def _complete(values: Sequence[Any], where: str) -> Sequence[Any]:
    if any(value is None for value in values):
        raise StoreInconsistent(
            f"cassandra: table {where} lacks columns; another program writes to it: stop that, then restore the store"
        )
    return values


_OVERHEAD: Final = 256 << 10
"""Header, names, a cursor of the longest key, and what Paxos adds."""

_SEGMENT: Final = 32 << 20
"""Cassandra's default `commitlog_segment_size`."""

SETTINGS: Final = "max_mutation_size, commitlog_segment_size and native_transport_max_message_size"

_ASKED: Final = "SELECT name, value FROM system_views.settings"
_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE: Final = re.compile(r"(\d+)\s*([KMG]iB|B)?")


def limits(client: CassandraClient) -> Limits:
    """The limits of the cluster: those of its strictest node. For a node that cannot be asked, the defaults.

    Each write is one mutation, which has to fit into half a segment of the commit log (`max_mutation_size`), and into one
    request. Paxos stores it again, as a value in a mutation of its own, so the usable size is a little less.

    Raises:
        Unavailable: no answer.
        ConfigurationError: the login is wrong.
    """
    largest = []
    for _, answer in client.of_each_node(_ASKED):
        largest.append(mutation_bytes(dict(answer) if isinstance(answer, list) else {}))
    write = min(largest, default=mutation_bytes({})) - _OVERHEAD
    return Limits(LONGEST_KEY, write, write, SETTINGS)


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
        found = _SIZE.fullmatch(settings.get(key) or "")
        if found:
            return int(found[1]) * (_UNITS[found[2]] if found[2] else unit)
    return 0
