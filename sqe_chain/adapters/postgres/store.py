"""The PostgreSQL store: each atomic operation is one statement, which commits by itself.

A statement compares and sets the home or the header, and changes rows only if it did. After a lost answer it may be
sent again: then the comparison fails, and what is stored is `after`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqe_chain.adapters.postgres import durability, schema, view_tables
from sqe_chain.adapters.postgres.client import PostgresClient, PostgresSettings, Row
from sqe_chain.adapters.postgres.statements import COUNTED, SqlStatements, cell_values, named
from sqe_chain.adapters.store_rules import (
    HEADER_FIELDS,
    HOME_FIELDS,
    LOCATION_FIELDS,
    Cell,
    CheckedStore,
    SizeLimits,
    cell_of,
    check_keys,
    check_name,
    header_of,
    header_values,
    home_of,
    home_values,
    location_of,
    location_values,
    with_lost,
)
from sqe_chain.errors import Unavailable
from sqe_chain.ports import (
    Header,
    Home,
    Locations,
    Rows,
    ViewKind,
    Views,
    ViewTable,
    WithSchema,
    WithViewTables,
)

MAX_ROWS: Final = 5_000
MAX_BYTES: Final = 8_000_000
"""Limits of one write (docs/stores.md)."""

_LIMITS: Final = SizeLimits(key=1 << 20, state=128 << 20, plan=128 << 20)
"""A value has at most 1 GB there, and server and client hold it several times."""
_READ_KEYS: Final = 5_000
_PAGE_BYTES: Final = 1_000_000
_PAGE_ROWS: Final = 1_000
_IN_INDEX: Final = 1_000
"""Bytes of a key that the index holds; see `schema.PLACE`."""
_ATTEMPTS: Final = 100

Record = TypeVar("Record", Home, Header)


class PostgresStore(CheckedStore, WithSchema, WithViewTables):
    """A `StateStore` in PostgreSQL 12 or later. The object holds only settings and can be pickled.

    The tables are documented in docs/stores.md, because other programs may read them.

    Args:
        settings: how to reach the database.
        max_rows: most rows of one `write`.
        max_bytes: most bytes of keys and states in one `write`.
    """

    views: frozenset[ViewKind] = frozenset({"json", "table"})

    def __init__(
        self, settings: PostgresSettings, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
    ) -> None:
        super().__init__(max_rows, max_bytes)
        self.settings = settings
        self._sql = SqlStatements(settings.schema)

    def __repr__(self) -> str:
        return f"PostgresStore({self.settings})"

    @property
    def _client(self) -> PostgresClient:
        client = PostgresClient.of_this_process(self.settings)
        if not client.version:
            client.version = schema.check(client)
        return client

    @property
    def _limits(self) -> SizeLimits:
        return _LIMITS

    def make_schema(self, replication: Mapping[str, int]) -> list[str]:
        # Replicas are the server's own settings.
        del replication
        return schema.migrate(PostgresClient.of_this_process(self.settings))

    def make_view_table(self, flow: str, stage: str, table: ViewTable) -> list[str]:
        return view_tables.make(self._client, check_name(flow), check_name(stage), table)

    def check_view_table(self, flow: str, stage: str, table: ViewTable) -> None:
        view_tables.check(self._client, flow, stage, table)

    def unlike_rows(
        self, flow: str, stage: str, part: int, table: ViewTable, wanted: Mapping[bytes, str | None]
    ) -> list[bytes]:
        keys, shown = {place_of(key): key for key in wanted}, {k: row for k, row in wanted.items() if row}
        values = {
            **cell_values(cell_of(flow, stage, part)),
            "shown_places": [place_of(key) for key in shown],
            "shown_rows": f"[{','.join(shown.values())}]",
            "hidden": [place_of(key) for key in wanted.keys() - shown.keys()],
        }
        places = self._client.rows(view_tables.unlike(self.settings.schema, table), values)
        return sorted(keys.get(bytes(place), bytes(place)) for (place,) in places)

    def schema_version(self) -> tuple[int, int]:
        return schema.version(PostgresClient.of_this_process(self.settings)), schema.MIGRATIONS[-1].number

    def check(self) -> list[str]:
        return durability.weaknesses(self._client)

    def remarks(self) -> list[str]:
        return durability.remarks(self._client)

    def clocks(self) -> dict[str, int]:
        """The clock of the server, in milliseconds since 1970."""
        ((now,),) = self._client.rows("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
        return {str(self.settings): int(now)}

    def home(self, flow: str) -> tuple[Home | None, int]:
        rows = self._client.rows(self._sql.read_home, {"flow": check_name(flow)})
        return (home_of(rows[0][1:], f"{self.settings}: sqe_homes"), rows[0][0]) if rows else (None, 0)

    def _set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None, drop_below: int
    ) -> Home | None:
        values = {
            **named("after_", HOME_FIELDS, home_values(after)),
            **named("before_", HOME_FIELDS, home_values(before)),
            "flow": flow,
            # Not both for one plan: one statement would not delete what it has added.
            "plan": plan if after.number >= drop_below else None,
            "drop_below": drop_below,
        }
        text = self._sql.first_home if before is None else self._sql.next_home
        return self._replace(text, values, before, after, lambda: self.home(flow)[0])

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        values = {"flow": check_name(flow), "epoch": epoch, "run_id": run_id}
        return bool(self._client.rows(self._sql.beat, values))

    def plan(self, flow: str, number: int) -> bytes | None:
        rows = self._client.rows(self._sql.read_plan, {"flow": check_name(flow), "number": number})
        return bytes(rows[0][0]) if rows else None

    def flows(self) -> list[str]:
        return [flow for (flow,) in self._client.rows(self._sql.flows)]

    def forget(self, flow: str, before: Home) -> Home | None:
        values = {**named("before_", HOME_FIELDS, home_values(before)), "flow": check_name(flow)}
        return self._replace(self._sql.drop_home, values, before, None, lambda: self.home(flow)[0])

    def forget_part(self, flow: str, stage: str, part: int, before: Header) -> Header | None:
        cell = cell_of(flow, stage, part)
        values = {**named("before_", HEADER_FIELDS, header_values(before)), **cell_values(cell)}
        tables = [
            view_tables.clearing(self.settings.schema, table)
            for table in view_tables.tables_of(self._client, stage)
        ]
        return self._replace(
            self._sql.drop_header(" ".join(tables)), values, before, None, lambda: self._header(cell)
        )

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        # One statement, so one moment.
        values = {"flow": check_name(flow), "stage": check_name(stage), "parts": list(parts)}
        if not parts:
            return []
        headers = {
            row[0]: self._header_of(row[1:]) for row in self._client.rows(self._sql.read_headers, values)
        }
        return [headers.get(part) for part in parts]

    def _header(self, cell: Cell) -> Header | None:
        return self.headers(cell[0], cell[1], [cell[2]])[0]

    def _header_of(self, row: Row) -> Header | None:
        *values, expected, count = row
        header = header_of(values, f"{self.settings}: sqe_headers")
        enough = count == min(expected, COUNTED + 1)
        return header and with_lost(header, expected, expected if enough else count)

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        # Each 5,000 keys are one statement, and so of one moment with their header.
        cell = cell_of(flow, stage, part)
        check_keys(self, keys, _LIMITS.key)
        wanted = list(dict.fromkeys(keys))
        states: dict[bytes, bytes] = {}
        seen: list[Header | None] = []
        for start in range(0, len(wanted) or 1, _READ_KEYS):
            places = [place_of(key) for key in wanted[start : start + _READ_KEYS]]
            header = None
            for key, state, *record in self._client.rows(
                self._sql.read_states, {**cell_values(cell), "places": places}
            ):
                if key is None:
                    header = self._header_of(record)  # type: ignore[arg-type]
                else:
                    states[key] = state
            seen.append(header)
        return seen[0], [states.get(key) for key in keys], seen[-1]

    def _write(
        self, cell: Cell, before: Header | None, after: Header, rows: Rows, views: Views | None
    ) -> Header | None:
        shown, table = (views.shown, views.table) if views else ({}, None)
        kept = [(key, state) for key, state in rows if state is not None]
        in_table = [(key, shown[key]) for key, _ in kept if key in shown] if table else []
        values = {
            **cell_values(cell),
            **named("after_", HEADER_FIELDS, header_values(after)),
            **named("before_", HEADER_FIELDS, header_values(before)),
            "kept": len(kept),
            "places": [place_of(key) for key, _ in rows],
            "keys": [key for key, _ in kept],
            "states": [state for _, state in kept],
            "shown": [None if table else shown.get(key) for key, _ in kept],
            "gone": [place_of(key) for key, state in rows if state is None],
            "shown_places": [place_of(key) for key, _ in in_table],
            "shown_rows": f"[{','.join(str(row) for _, row in in_table)}]",
        }
        own = ""
        if table is not None and views is not None:
            change = view_tables.clearing if views.clear else view_tables.statements_of
            own = change(self.settings.schema, table)
        text = self._sql.write_header(own, first=before is None)
        return self._replace(text, values, before, after, lambda: self._header(cell))

    def _replace(
        self,
        text: str,
        values: Mapping[str, Any],
        before: Record | None,
        after: Record | None,
        read: Callable[[], Record | None],
    ) -> Record | None:
        """Run a statement that replaces a record; returns the current one."""
        for _ in range(_ATTEMPTS):
            if self._client.rows(text, values) == [(1,)]:
                return after
            current = read()
            # Still `before`: another statement has changed it meanwhile, and back, or rows of it were of another moment.
            if current != before:
                return current
            if before == after:
                time.sleep(0.001)
        raise Unavailable(f"{self.settings}: others changed {before} each time")

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        # In the order of the index, in pages; each is of one moment.
        values: dict[str, Any] = {**cell_values(cell_of(flow, stage, part)), "last": b"", "count": 100}
        text = self._sql.scan_first
        while True:  # bounded by the rows: each page begins behind the last key of the one before
            page = self._client.rows(text, values)
            yield from ((bytes(key), bytes(state)) for key, state in page)
            if len(page) < values["count"]:
                return
            text = self._sql.scan
            size = sum(len(key) + len(state) for key, state in page) // len(page) + 1
            values["count"] = max(1, min(_PAGE_ROWS, _PAGE_BYTES // size))
            values["last"] = place_of(page[-1][0])

    def locations(self, flow: str) -> Locations | None:
        rows = self._client.rows(self._sql.read_locations, {"flow": check_name(flow)})
        if not rows:
            return None
        ((epoch, number, stages),) = rows
        where = f"{self.settings}: sqe_locations"
        return Locations(
            epoch,
            number,
            {
                stage: location_of([place.get(name) for name in LOCATION_FIELDS], where)
                for stage, place in stages.items()
            },
        )

    def _set_locations(self, flow: str, after: Locations) -> Locations | None:
        stages = {
            stage: dict(zip(LOCATION_FIELDS, location_values(location), strict=True))
            for stage, location in after.stages.items()
        }
        values = {"flow": flow, "epoch": after.epoch, "number": after.number, "stages": json.dumps(stages)}
        self._client.rows(self._sql.set_locations, values)
        return self.locations(flow)

    def forget_locations(self, flow: str, before: Locations) -> Locations | None:
        values = {"flow": check_name(flow), "epoch": before.epoch, "number": before.number}
        self._client.rows(self._sql.drop_locations, values)
        return self.locations(flow)

    def close(self) -> None:
        PostgresClient.forget(self.settings)


def place_of(key: bytes) -> bytes:
    """A key as the index holds it: the same as `schema.PLACE`."""
    return key if len(key) <= _IN_INDEX else key[:_IN_INDEX] + hashlib.sha256(key).digest()
