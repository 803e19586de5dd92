"""A database and its Debezium connector, as simple as they can be: what the log holds, and what a topic gets of it.

It knows nothing of the package. A connector that is killed goes back to its stored offset, and emits again what follows it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Logged:
    """A committed change: what was done, as Debezium writes it, the row's id, and the row after it."""

    op: str
    id: int
    after: Row | None
    commit_before: int
    lsn: int
    at_ms: int

    def event(self, *, schema: bool = False) -> tuple[bytes, bytes]:
        """Key and value of its record."""
        return record(
            self.op,
            self.id,
            self.after,
            self.lsn,
            self.at_ms,
            commit_before=self.commit_before,
            schema=schema,
        )


def record(
    op: str,
    row_id: int,
    after: Row | None,
    lsn: int,
    at_ms: int,
    *,
    commit_before: int | None = None,
    snapshot: str = "false",
    schema: bool = False,
) -> tuple[bytes, bytes]:
    """Key and value of a record, as the JSON converter writes them."""
    source = {
        "version": "3.6.1.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": at_ms,
        "snapshot": snapshot,
        "db": "postgres",
        "sequence": json.dumps([None if commit_before is None else str(commit_before), str(lsn)]),
        "schema": "public",
        "table": "orders",
        "txId": 7,
        "lsn": None if snapshot == "incremental" else lsn,
        "xmin": None,
    }
    body = {
        "before": None,
        "after": after,
        "source": source,
        "op": op,
        "ts_ms": at_ms + 5,
        "transaction": None,
    }
    parts: list[dict[str, Any]] = [{"id": row_id}, body]
    if schema:
        parts = [{"schema": {"type": "struct", "fields": []}, "payload": part} for part in parts]
    key, value = (json.dumps(part).encode() for part in parts)
    return key, value


@dataclass
class Database:
    """One table: rows, the log of what was committed, and open transactions, whose changes lie mixed in the log."""

    rows: dict[int, Row] = field(default_factory=dict)
    log: list[Logged] = field(default_factory=list)
    lsn: int = 100
    last_commit: int = 90
    open: list[list[tuple[str, int, Row | None, int]]] = field(default_factory=list)

    def begin(self) -> int:
        self.open.append([])
        return len(self.open) - 1

    def change(self, transaction: int, op: str, row_id: int, after: Row | None) -> None:
        self.lsn += 10
        self.open[transaction].append((op, row_id, after, self.lsn))

    def copy(self, transaction: int, rows: Iterable[Row]) -> None:
        """Insert several rows as COPY does: one entry of the log, so one LSN."""
        self.lsn += 10
        self.open[transaction] += [("c", row["id"], row, self.lsn) for row in rows]

    def commit(self, transaction: int) -> None:
        at_ms = 1_000 + self.lsn
        for op, row_id, after, lsn in self.open[transaction]:
            self.log.append(Logged(op, row_id, after, self.last_commit, lsn, at_ms))
            if after is None:
                del self.rows[row_id]
            else:
                self.rows[row_id] = after
        self.lsn += 10
        self.last_commit = self.lsn
        self.open[transaction] = []

    def close_window(self) -> Logged:
        """Log what an incremental snapshot writes into the table of signals when it has read: here all rows."""
        self.lsn += 20
        closed = Logged("w", 0, {"rows": dict(self.rows)}, self.lsn - 10, self.lsn, 1_000 + self.lsn)
        self.log.append(closed)
        self.lsn += 10
        self.last_commit = self.lsn
        return closed

    def total(self) -> dict[str, int]:
        """SELECT customer, sum(amount) … GROUP BY customer."""
        sums: dict[str, int] = {}
        for row in self.rows.values():
            sums[row["customer"]] = sums.get(row["customer"], 0) + row["amount"]
        return sums

    def live(self, draw: random.Random, *, transactions: int, ids: int = 6) -> None:
        """Commit some transactions, two of them open at once, never on one row."""
        for _ in range(transactions):
            pair = [self.begin(), self.begin()]
            free = draw.sample(range(ids), ids)
            for number, row_id in enumerate(free[: draw.randint(2, ids)]):
                self._change_row(draw, pair[number % 2], row_id)
            draw.shuffle(pair)
            for transaction in pair:
                self.commit(transaction)

    def _change_row(self, draw: random.Random, transaction: int, row_id: int) -> None:
        there = row_id in self.rows
        for _ in range(draw.randint(1, 3)):
            op = draw.choice("uud") if there else "c"
            after = None if op == "d" else {
                "id": row_id, "customer": draw.choice(("ann", "bob")), "amount": draw.randint(1, 9)
            }  # fmt: skip
            self.change(transaction, op, row_id, after)
            there = op != "d"


@dataclass
class Connector:
    """Emits a database's changes: `emitted` of its log are in the topic, `stored` is its last stored offset.

    Attributes:
        window: where it emits the rows that an incremental snapshot has read; None: there is none.
    """

    database: Database
    draw: random.Random
    topic: list[tuple[bytes, bytes]] = field(default_factory=list)
    emitted: int = 0
    stored: int = 0
    window: Logged | None = None

    def snapshot(self) -> None:
        """Read the table: what the log has by now is not emitted any more."""
        self.database.lsn += 10
        ids = sorted(self.database.rows)
        for number, row_id in enumerate(ids):
            place = "last" if number == len(ids) - 1 else "true"
            row = self.database.rows[row_id]
            self.topic.append(
                record("r", row_id, row, self.database.lsn, 1_000 + self.database.lsn, snapshot=place)
            )
        self.emitted = len(self.database.log)

    def emit(self, most: int | None = None) -> None:
        """Emit up to `most` changes, and store an offset now and then."""
        end = len(self.database.log)
        until = end if most is None else min(end, self.emitted + most)
        for logged in self.database.log[self.emitted : until]:
            if logged.op != "w":
                self.topic.append(logged.event(schema=self.draw.random() < 0.2))
            elif logged is self.window:
                self._emit_rows(logged)
            self.emitted += 1
            if self.draw.random() < 0.1:
                self.stored = self.emitted

    def kill(self) -> None:
        """End it: the next one continues at the stored offset, and reads again what it had not stored that it has read."""
        self.emitted = self.stored
        if self.window is not None and self.window in self.database.log[self.stored :]:
            self.window = self.database.close_window()

    def read_again(self) -> None:
        """Begin an incremental snapshot: its rows come when the log is emitted so far."""
        self.window = self.database.close_window()

    def lose(self) -> None:
        """Go on behind what is not emitted yet, as at a slot that somebody has advanced."""
        self.emitted = self.stored = len(self.database.log)

    def _emit_rows(self, closed: Logged) -> None:
        assert closed.after is not None
        for row_id, row in closed.after["rows"].items():
            self.topic.append(
                record(
                    "r", row_id, row, closed.lsn, closed.at_ms,
                    commit_before=closed.commit_before, snapshot="incremental",
                )
            )  # fmt: skip


def world(seed: int, *, snapshots: int = 1) -> tuple[Database, Connector]:
    """A database that was changed while a connector was killed again and again, and all that this one has emitted.

    Args:
        seed: of what is drawn.
        snapshots: how many times the table is read, each time when all changes so far are emitted.
    """
    draw = random.Random(seed)
    database = Database()
    connector = Connector(database, draw)
    for _ in range(snapshots):
        database.live(draw, transactions=draw.randint(0, 3))
        if connector.topic:
            connector.emit()
        connector.snapshot()
        connector.stored = connector.emitted
        for _ in range(draw.randint(1, 6)):
            database.live(draw, transactions=draw.randint(0, 3))
            connector.emit(draw.randint(0, 30))
            if draw.random() < 0.7:
                connector.kill()
        connector.emit()
    return database, connector


def net(changes: Iterable[tuple[Row | None, Row | None]]) -> dict[str, int]:
    """What rows before and after add up to for each customer."""
    sums: dict[str, int] = {}
    for sign, row in _signed(changes):
        sums[row["customer"]] = sums.get(row["customer"], 0) + sign * row["amount"]
    return sums


def _signed(changes: Iterable[tuple[Row | None, Row | None]]) -> Iterator[tuple[int, Row]]:
    for before, after in changes:
        yield from ((sign, row) for sign, row in ((-1, before), (1, after)) if row is not None)
