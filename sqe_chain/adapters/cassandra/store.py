"""The Cassandra store: each atomic operation is one conditional write to one partition.

**Writing.** A conditional write is a batch for one partition. Its first statement compares and sets the static columns (the
home, the header), the others set rows. It is a lightweight transaction, one mutation, done as a whole or not at all. A
single state that is larger than `max_bytes` is one conditional UPDATE that sets row and static columns together.
Unconditional writes never touch these tables, so Paxos alone decides the order.

**Unknown outcomes** (a timeout, too few nodes, a lost connection): the partition is read at serial consistency. That
read completes a write that a majority has accepted, and supersedes one that it has not, so its result is final. If it
is `after`, the write was done. If it is `before`, it was not, and may be retried. Anything else is from another run. A
request that arrives later still compares, and is refused.

**Reading.** Homes and headers are read at serial consistency: each read sees what any earlier read saw.
Rows are read at quorum, between two such reads of the header.
They are not older than the first. What a serial read returns is committed at a quorum, rows included, because header and
rows are one mutation. And any two quorums have a node in common. (Reading the header at quorum would not be enough: it may
see one node's unfinished commit, and only the columns that are read are repaired.)
They are not newer than the second. A row that is seen was committed on some node, so a majority had accepted its write. A
serial read that begins later returns that write or a later one.
So if both headers are equal, the rows are exactly of that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from sqe_chain.adapters.cassandra import durability, layout, schema
from sqe_chain.adapters.cassandra.client import CassandraClient, CassandraSettings, Statement
from sqe_chain.adapters.store_rules import (
    Cell,
    CheckedStore,
    SizeLimits,
    cell_of,
    check_keys,
    check_name,
    header_values,
    home_values,
    location_values,
)
from sqe_chain.errors import Unavailable
from sqe_chain.ports import Header, Home, Locations, Rows, ViewKind, Views, WithSchema

MAX_ROWS: Final = 1_000
MAX_BYTES: Final = 1_000_000
"""Limits of one batch (docs/stores.md)."""

_OWN_STATEMENTS: Final = 2
"""Statements of a write besides those of its rows: the header and the anchor."""
_KEYS: Final = 100
"""Keys of one reading statement."""
_READ_BYTES: Final = 16_000_000
"""Size of one round of reading, over all statements of the round."""
_STATEMENTS: Final = 16
"""Reading statements of one round."""
_PAGE_BYTES: Final = 1_000_000
"""Size of a page of a scan."""
_BEAT_ATTEMPTS: Final = 10

Record = TypeVar("Record", Home, Header)
"""What a conditional write compares and sets."""


class CassandraStore(CheckedStore, WithSchema):
    """A `StateStore` in Cassandra 4.1 or later. The object holds only settings and can be pickled.

    The layout is documented in docs/stores.md, because other programs may read it.

    Args:
        settings: how to reach the cluster.
        max_rows: most rows of one `write`.
        max_bytes: most bytes of keys and states in one `write`.
    """

    views: frozenset[ViewKind] = frozenset({"json"})

    def __init__(
        self, settings: CassandraSettings, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
    ) -> None:
        super().__init__(min(max_rows, settings.batch_statements - _OWN_STATEMENTS), max_bytes)
        self.settings = settings
        self._cql = layout.Statements(settings.keyspace)

    def __repr__(self) -> str:
        return f"CassandraStore({self.settings})"

    @property
    def _client(self) -> CassandraClient:
        client = CassandraClient.of_this_process(self.settings)
        if not client.version:
            client.version = schema.check(client)
        return client

    @property
    def _limits(self) -> SizeLimits:
        client = CassandraClient.of_this_process(self.settings)
        if client.limits is None:
            client.limits = layout.limits(client)
        return client.limits

    def make_schema(self, replication: Mapping[str, int]) -> list[str]:
        return schema.migrate(CassandraClient.of_this_process(self.settings), replication)

    def schema_version(self) -> tuple[int, int]:
        version = schema.version(CassandraClient.of_this_process(self.settings))
        return version or 0, schema.MIGRATIONS[-1].number

    def check(self) -> list[str]:
        return durability.weaknesses(self._client)

    def remarks(self) -> list[str]:
        remarks = durability.remarks(self._client)
        if self._client.version < schema.WITH_LOCATIONS:
            remarks.append(
                f"{self.settings}: the tables have version {self._client.version}; with version {schema.WITH_LOCATIONS}, "
                f"readers find states under permanent names. Run: sqe-chain store init {self.settings}"
            )
        return remarks

    def clocks(self) -> dict[str, int]:
        """The clocks of the nodes of the data centre that is used, in milliseconds since 1970."""
        answers = self._client.of_each_node("SELECT toUnixTimestamp(now()) FROM system.local")
        return {node: int(rows[0][0]) for node, rows in answers if isinstance(rows, list)}

    def home(self, flow: str) -> tuple[Home | None, int]:
        # A serial read.
        check_name(flow)
        return layout.home_of(self._client.rows((self._cql.read_home, (flow,)), serial=True), flow)

    def _set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None, drop_below: int
    ) -> Home | None:
        values = (*home_values(after), flow, *home_values(before))
        statements: list[Statement] = [(self._cql.set_home, values)]
        # Not both for one plan: in one batch they have the same time, and the deletion would win.
        if plan is not None and after.number >= drop_below:
            statements.append((self._cql.add_plan, (flow, after.number, plan)))
        if drop_below > 0:
            statements.append((self._cql.drop_plans, (flow, drop_below)))
        return self._replace(statements, before, after, lambda: self.home(flow)[0])

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        # After a lost reply the counter may move by two, which does no harm.
        for _ in range(_BEAT_ATTEMPTS):
            home, beat = self.home(flow)
            if home is None or not run_id or (home.epoch, home.run_id) != (epoch, run_id):
                return False
            # The column has no value before the first heartbeat, and `beat = 0` would not hold.
            values = (beat + 1, flow, epoch, run_id, beat or None)
            if self._client.compare_and_set([(self._cql.beat, values)]):
                return True
        raise Unavailable(f"{self.settings}: others moved the heartbeat of flow {flow!r} each time")

    def plan(self, flow: str, number: int) -> bytes | None:
        check_name(flow)
        rows = self._client.rows((self._cql.read_plan, (flow, number)))
        return bytes(rows[0][0]) if rows else None

    def flows(self) -> list[str]:
        # Reads all partitions of flows, which are few.
        flows, state = [], None
        while True:  # bounded by the pages
            page, state = self._client.page((self._cql.list_flows, ()), state, 1_000)
            flows += [str(flow) for (flow,) in page]
            if state is None:
                return sorted(flow for flow in flows if self.home(flow)[0] is not None)

    def forget(self, flow: str, before: Home) -> Home | None:
        values = (*home_values(None), None, check_name(flow), *home_values(before))
        statements: list[Statement] = [(self._cql.drop_home, values), (self._cql.drop_all_plans, (flow, 0))]
        return self._replace(statements, before, None, lambda: self.home(flow)[0])

    def forget_part(self, flow: str, stage: str, part: int, before: Header) -> Header | None:
        cell = cell_of(flow, stage, part)
        values = (*header_values(None), *cell, *header_values(before))
        statements: list[Statement] = [(self._cql.set_header, values), (self._cql.drop_states, cell)]
        return self._replace(statements, before, None, lambda: self._header(cell))

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        # Serial reads, at most 16 at a time, but not one snapshot.
        return self._headers([cell_of(flow, stage, part) for part in parts])

    def _headers(self, cells: Sequence[Cell]) -> list[Header | None]:
        answers = self._client.together([(self._cql.read_header, cell) for cell in cells], serial=True)
        return [layout.header_of(rows, cell) for rows, cell in zip(answers, cells, strict=True)]

    def _header(self, cell: Cell) -> Header | None:
        return self._headers([cell])[0]

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        # Why equal headers mean one moment: see above, at the top of the module.
        cell = cell_of(flow, stage, part)
        check_keys(self, keys, layout.LONGEST_KEY)
        first = self._header(cell)
        states = self._states(cell, list(dict.fromkeys(keys)))
        return first, [states.get(key) for key in keys], self._header(cell)

    def _write(
        self, cell: Cell, before: Header | None, after: Header, rows: Rows, views: Views | None
    ) -> Header | None:
        statements = self._statements(cell, before, after, rows, views)
        return self._replace(statements, before, after, lambda: self._header(cell))

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        statement = (self._cql.scan, cell_of(flow, stage, part))
        state, count = None, 100
        while True:  # bounded by the pages of the cell
            page, state = self._client.page(statement, state, count)
            rows = [(key, value) for key, value in page if value is not None]  # None: the anchor
            yield from rows
            if state is None:
                return
            count = _fitting(rows, _PAGE_BYTES, 1_000)

    def locations(self, flow: str) -> Locations | None:
        # A serial read.
        check_name(flow)
        if self._client.version < schema.WITH_LOCATIONS:
            return None
        return layout.locations_of(self._client.rows((self._cql.read_locations, (flow,)), serial=True), flow)

    def _set_locations(self, flow: str, after: Locations) -> Locations | None:
        while True:  # ends: each round fails only because somebody else has written newer locations
            current = self.locations(flow)
            if self._client.version < schema.WITH_LOCATIONS or (current and current.age >= after.age):
                return current
            if self._replace_locations(flow, current, after):
                return after

    def forget_locations(self, flow: str, before: Locations) -> Locations | None:
        current = self.locations(flow)
        if current is None or current.age != before.age:
            return current
        return None if self._replace_locations(flow, current, None) else self.locations(flow)

    def _replace_locations(self, flow: str, before: Locations | None, after: Locations | None) -> bool:
        """Replace them in one batch; False: not done, because they are not `before`."""
        values = (*layout.age_values(after), flow, *layout.age_values(before))
        statements: list[Statement] = [(self._cql.set_locations, values)]
        stages = after.stages if after else {}
        # Row by row: a deletion of all rows would win over the insertions of the same batch, which have the same time.
        removed = before.stages.keys() - stages.keys() if before else ()
        statements += [(self._cql.drop_location, (flow, stage)) for stage in removed]
        statements += [
            (self._cql.set_location, (flow, stage, *location_values(location)))
            for stage, location in stages.items()
        ]
        return self._client.compare_and_set(statements)

    def close(self) -> None:
        CassandraClient.forget(self.settings)

    def _replace(
        self,
        statements: Sequence[Statement],
        before: Record | None,
        after: Record | None,
        read: Callable[[], Record | None],
    ) -> Record | None:
        """What is stored after one conditional write: `after`, or what another run has written."""
        try:
            if self._client.compare_and_set(statements):
                return after
        except Unavailable:
            current = read()
            if current == before != after:
                raise
            return current
        return read()

    def _statements(
        self, cell: Cell, before: Header | None, after: Header, rows: Rows, views: Views | None
    ) -> list[Statement]:
        values, condition = header_values(after), header_values(before)
        if len(rows) == 1:
            ((key, state),) = rows
            if state is not None and len(key) + len(state) > self.max_bytes:
                text, row = self._row(self._cql.set_both, self._cql.show_both, key, state, views)
                return [(text, (*row, *values, *cell, key, *condition))]
        statements: list[Statement] = [(self._cql.set_header, (*values, *cell, *condition))]
        if before is None:
            statements.append((self._cql.add_anchor, cell))
        # Binding None deletes the state.
        for key, state in rows:
            text, row = self._row(self._cql.set_state, self._cql.show_state, key, state, views)
            statements.append((text, (*row, *cell, key)))
        return statements

    @staticmethod
    def _row(
        plain: str, showing: str, key: bytes, state: bytes | None, views: Views | None
    ) -> tuple[str, tuple[object, ...]]:
        """The statement, and the values of the row's own columns. Without a view, `shown` is not set: no tombstone."""
        return (plain, (state,)) if views is None else (showing, (state, views.shown.get(key)))

    def _states(self, cell: Cell, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """States by key, read in rounds of bounded size."""
        states: dict[bytes, bytes | None] = {}
        start, count = 0, _KEYS
        while start < len(keys):
            end = min(start + count * _STATEMENTS, len(keys))
            chunks = [keys[at : min(at + count, end)] for at in range(start, end, count)]
            answers = self._client.together([(self._cql.read_states, (*cell, chunk)) for chunk in chunks])
            page = [row for rows in answers for row in rows]
            states.update(page)
            start, count = end, _fitting(page, _READ_BYTES // _STATEMENTS, _KEYS)
        return states


def _fitting(rows: Sequence[tuple[bytes, bytes | None]], size: int, most: int) -> int:
    """How many rows like these fit into `size` bytes, between 1 and `most`."""
    average = sum(len(state or b"") for _, state in rows) // max(len(rows), 1) + 1
    return max(1, min(most, size // average))
