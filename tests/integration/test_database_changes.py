"""Goal: sums over a table's changes are what PostgreSQL itself sums up, though Debezium and the service are killed again and again.

Method: a real PostgreSQL, Debezium's embedded engine, and a service, both killed 50 times while two sessions change the table. Debezium
stores its offsets seldom, so it emits again much of what it had emitted. `SELECT customer, sum(amount)` judges.
"""

from __future__ import annotations

import json
import os
import random
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, LiteralString
from uuid import uuid4

import psycopg
import pytest

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.dev import ApicurioServer, PostgresServer
from sqe_chain.ext.dev.apicurio import newest_java
from tests.support.beside import beside
from tests.support.debezium import (
    APICURIO,
    DebeziumEngine,
    converters,
    count_records,
    of_postgres,
    records_of,
)
from tests.support.service_processes import ServiceProcess
from tests.support.waiting import eventually

MODULE = """
import os
from dataclasses import dataclass

from sqe_chain import Flow


@dataclass
class Order:
    id: int
    customer: str
    amount: int
    note: str | None


@dataclass
class Spent:
    amount: int = 0
    orders: int = 0


def add(spent, part):
    spent.amount += part.sign * part.row.amount
    spent.orders += part.sign


spending = Flow(os.environ["NAME"], state_partitions=2)
orders = spending.changes_of(f"{os.environ['NAME']}.public.orders", Order, key="id", name="orders")
orders.deltas().aggregate("spent", key=lambda part: part.row.customer, state=Spent, fold=add)
"""
IN_AVRO = (
    MODULE.replace("amount: int\n    note", "price: Decimal\n    note")
    .replace("part.row.amount", "int(100 * part.row.price)")
    .replace('name="orders"', 'name="orders", codec=Avro(dict)')
    .replace(
        "from sqe_chain import Flow", "from sqe_chain import Flow\nfrom sqe_chain.ext.registry import Avro"
    )
    .replace("import os", "import os\nfrom decimal import Decimal")
)
KILLS = int(os.environ.get("DEBEZIUM_KILLS", "50"))
PARTITIONS = 3
LAST = 1_000_000
SEED = 20261128
LARGE = "".join(chr(97 + number * 7 % 26) + str(number) for number in range(3_000))
"""A text that PostgreSQL stores apart (TOAST), so that updates of other columns do not have it."""


class Writers:
    """Two sessions whose transactions overlap, each on rows of its own, until the block ends."""

    def __init__(self, url: str) -> None:
        self._url, self._draw, self._over = url, random.Random(SEED), threading.Event()
        self.committed = 0

    def at_work(self) -> AbstractContextManager[None]:
        return beside(self._write, self._over)

    def _write(self) -> None:
        with psycopg.connect(self._url) as first, psycopg.connect(self._url) as second:
            sessions, ids = (first, second), (set[int](), set[int]())
            # A pause between transactions: it bounds the load, and nothing waits for it.
            while not self._over.wait(0.02):
                for _ in range(self._draw.randint(1, 4)):
                    which = self._draw.randrange(2)
                    self._change(sessions[which], ids[which], which)
                for which in self._draw.sample((0, 1), 2):
                    sessions[which].commit()
                    self.committed += 1

    def _change(self, session: psycopg.Connection[Any], ids: set[int], which: int) -> None:
        draw, what = self._draw, self._draw.random()
        customer, amount = draw.choice(("ann", "bob", "cid", "dot")), draw.randint(1, 100)
        fresh = draw.randrange(200) * 2 + which
        if not ids or (what < 0.4 and fresh not in ids):
            note = LARGE if fresh % 5 == 0 else draw.choice((None, "short"))
            session.execute("INSERT INTO orders VALUES (%s, %s, %s, %s)", (fresh, customer, amount, note))
            ids.add(fresh)
            return
        known = draw.choice(sorted(ids))
        if what < 0.8:
            session.execute(
                "UPDATE orders SET customer = %s, amount = %s WHERE id = %s", (customer, amount, known)
            )
        elif what < 0.95 or fresh in ids or known % 5 == 0:  # of a large column nobody writes the key again
            session.execute("DELETE FROM orders WHERE id = %s", (known,))
            ids.remove(known)
        else:
            session.execute("UPDATE orders SET id = %s WHERE id = %s", (fresh, known))
            ids.symmetric_difference_update((known, fresh))


class Services:
    """The service, and the states it leaves."""

    def __init__(
        self, kafka: str, name: str, directory: Path, module: str = MODULE, registry: str = ""
    ) -> None:
        self._kafka, self._directory, self._runs = kafka, directory, 0
        self._store = f"sqlite:///{directory}/states.db"
        self._environment = {**os.environ, "PYTHONPATH": str(directory), "NAME": name}
        if registry:
            self._environment["SQE_CHAIN_REGISTRY"] = registry
        (directory / "spending_by_customer.py").write_text(module, encoding="utf-8")

    def start(self, command: str, *arguments: str) -> ServiceProcess:
        self._runs += 1
        line = [command, "spending_by_customer:spending", *arguments, "--store", self._store]
        if command == "run":
            line += ["--kafka", self._kafka, "--engine", "inprocess", "--log-json", "--interval", "100ms"]
        return ServiceProcess(line, self._directory / f"{self._runs}.log", self._environment)

    def finished(self) -> dict[str, dict[str, int]]:
        """What it has summed up, when it has nothing left to do."""
        run = self.start("run", "--once", "--workers", "2")
        assert run.wait() == 0, run.text
        shown = self.start("state", "spent", "--json")
        assert shown.wait() == 0, shown.text
        states = [json.loads(line) for line in shown.text.splitlines() if line.startswith("{")]
        return {each["key"]: each["state"] for each in states if each["state"]["orders"]}


def last_record(kafka: str, topic: str) -> bool:
    return any(json.loads(key) == {"id": LAST} for key, _ in records_of(kafka, topic, PARTITIONS))


@pytest.mark.release
@pytest.mark.timeout(3_600)
def test_sums_are_those_of_the_database_after_fifty_kills_of_both(kafka: str, tmp_path: Path) -> None:
    name, draw = f"shop-{uuid4().hex[:8]}", random.Random(SEED)
    topic = f"{name}.public.orders"
    KafkaLog(kafka).create_topic(topic, PARTITIONS)
    postgres = PostgresServer(durable=False, extra_args=("-c", "wal_level=logical"))
    postgres.start()
    engine: DebeziumEngine | None = None
    try:
        with psycopg.connect(postgres.url, autocommit=True) as session:
            session.execute(
                "CREATE TABLE orders (id int PRIMARY KEY, customer text NOT NULL, amount int NOT NULL, note text)"
            )
            rows = [(LAST + 1 + number, "eve", number, LARGE) for number in range(20)]
            session.cursor().executemany("INSERT INTO orders VALUES (%s, %s, %s, %s)", rows)
        engine = DebeziumEngine(
            kafka, of_postgres(postgres.port, name), name, "public.orders", 3_000, tmp_path
        )
        services = Services(kafka, name, tmp_path)
        engine.start()
        # Before that, a second snapshot would follow, and nobody would name the rows that are gone by then.
        engine.wait_for_stored_offset()
        writers = Writers(postgres.url)
        with writers.at_work():
            for number in range(KILLS):
                service = services.start("run")
                wait_for_more(engine, kafka, topic, draw.randint(1, 400))
                engine.kill()
                service.kill_after("committed" if number % 3 else "recovered")
                engine.start()
        with psycopg.connect(postgres.url, autocommit=True) as session:
            session.execute("INSERT INTO orders VALUES (%s, 'zoe', 1, NULL)", (LAST,))
            eventually(lambda: last_record(kafka, topic), "Debezium has caught up")
            expected = sums_of(session)
    finally:
        if engine is not None:
            engine.kill()
        postgres.close()
    assert services.finished() == expected
    events = [(key, value) for key, value in records_of(kafka, topic, PARTITIONS) if value is not None]
    positions = {(key, json.loads(value)["source"]["sequence"]) for key, value in events}
    repeated = len(events) - len(positions)
    assert repeated > KILLS, (
        f"of {writers.committed} transactions Debezium has emitted {repeated} changes again"
    )


_SUMS: Final = "SELECT customer, sum(amount)::int, count(*)::int FROM orders GROUP BY customer"


def sums_of(session: psycopg.Connection[Any], asked: LiteralString = _SUMS) -> dict[str, Any]:
    """What the database itself sums up, as the service shows it."""
    return {
        customer: {"amount": spent, "orders": orders}
        for customer, spent, orders in session.execute(asked).fetchall()
    }


@pytest.mark.release
def test_an_incremental_snapshot_brings_back_what_a_slot_has_lost(kafka: str, tmp_path: Path) -> None:
    name = f"shop-{uuid4().hex[:8]}"
    topic, slot = f"{name}.public.orders", name.replace("-", "_")
    for created, partitions in ((topic, PARTITIONS), (f"{name}.public.signals", 1)):
        KafkaLog(kafka).create_topic(created, partitions)
    postgres = PostgresServer(extra_args=("-c", "wal_level=logical"))
    postgres.start()
    engine: DebeziumEngine | None = None
    try:
        with psycopg.connect(postgres.url, autocommit=True) as session:
            session.execute("CREATE TABLE orders (id int PRIMARY KEY, customer text, amount int, note text)")
            session.execute("CREATE TABLE signals (id text PRIMARY KEY, type text NOT NULL, data text)")
            session.execute("INSERT INTO orders SELECT n, 'ann', n FROM generate_series(1, 9) AS n")
            signals = {"signal.data.collection": "public.signals"}
            tables = "public.orders,public.signals"
            engine = DebeziumEngine(
                kafka, of_postgres(postgres.port, name), name, tables, 100, tmp_path, signals
            )
            services = Services(kafka, name, tmp_path)
            engine.start()
            engine.wait_for_stored_offset()
            # Killed during its first snapshot, it would begin that again, and lose nothing.
            for number in (1, 2):
                stored = count_records(kafka, engine.offsets, 1)
                session.execute("UPDATE orders SET amount = %s WHERE id = 2", (number,))
                wait_for(engine, kafka, topic, 9 + number)
            eventually(lambda: count_records(kafka, engine.offsets, 1) > stored, "its place is stored")
            engine.kill()
            active = "SELECT count(*) FROM pg_replication_slots WHERE active"
            eventually(lambda: session.execute(active).fetchone() == (0,), "the slot is free")
            session.execute("UPDATE orders SET customer = 'bob', amount = 100 WHERE id = 1")
            session.execute("INSERT INTO orders VALUES (10, 'cid', 10)")
            session.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))
            session.execute("INSERT INTO orders VALUES (%s, 'zoe', 1)", (LAST,))
            engine.start()
            eventually(lambda: last_record(kafka, topic), "Debezium goes on behind what was lost")
            assert services.finished() != sums_of(session), "nothing was lost, so nothing is shown"
            data = '{"type": "incremental", "data-collections": ["public.orders"]}'
            session.execute("INSERT INTO signals VALUES ('again', 'execute-snapshot', %s)", (data,))
            read_again = count_records(kafka, topic, PARTITIONS) + 11
            eventually(
                lambda: count_records(kafka, topic, PARTITIONS) >= read_again, "all rows were read again"
            )
            expected = sums_of(session)
    finally:
        if engine is not None:
            engine.kill()
        postgres.close()
    assert services.finished() == expected


@pytest.mark.release
@pytest.mark.timeout(600)
def test_events_of_apicurios_avro_converter_are_summed_up(kafka: str, tmp_path: Path) -> None:
    """Keys and values in Avro, decimals as bytes, and a schema that gets a column while both are killed."""
    try:
        newest_java()
    except ConfigurationError as error:
        pytest.skip(str(error))
    name = f"shop-{uuid4().hex[:8]}"
    topic = f"{name}.public.orders"
    KafkaLog(kafka).create_topic(topic, PARTITIONS)
    postgres = PostgresServer(durable=False, extra_args=("-c", "wal_level=logical"))
    engine: DebeziumEngine | None = None
    with ApicurioServer() as registry:
        try:
            postgres.start()
            own_api = registry.url.replace("registry:", "http:").replace("/ccompat/v7", "/registry/v2")
            settings = converters(
                "io.apicurio.registry.utils.converter.AvroConverter",
                {
                    "apicurio.registry.url": own_api,
                    "apicurio.registry.auto-register": "true",
                    "apicurio.registry.as-confluent": "true",
                    "apicurio.registry.use-id": "contentId",
                    "apicurio.registry.headers.enabled": "false",
                },
            )
            engine = DebeziumEngine(
                kafka,
                of_postgres(postgres.port, name),
                name,
                "public.orders",
                3_000,
                tmp_path,
                settings,
                APICURIO,
            )
            services = Services(kafka, name, tmp_path, IN_AVRO, registry.url)
            with psycopg.connect(postgres.url, autocommit=True) as session:
                session.execute(
                    "CREATE TABLE orders (id int PRIMARY KEY, customer text NOT NULL, price numeric(9, 2) NOT NULL, note text)"
                )
                session.execute(
                    "INSERT INTO orders SELECT n, 'ann', n + 0.25 FROM generate_series(1, 9) AS n"
                )
                engine.start()
                engine.wait_for_stored_offset()
                session.execute("UPDATE orders SET customer = 'bob', price = 0.01 WHERE id < 4")
                wait_for(engine, kafka, topic, 9 + 3)
                service = services.start("run")
                service.kill_after("committed")
                engine.kill()
                session.execute("ALTER TABLE orders ADD COLUMN weight int DEFAULT 7")
                session.execute("UPDATE orders SET price = -5.75, note = %s WHERE id = 5", (LARGE,))
                session.execute("DELETE FROM orders WHERE id = 6")
                session.execute("INSERT INTO orders VALUES (%s, 'zoe', 0.5)", (LAST,))
                engine.start()
                # Seldom offsets: some of what came before is emitted again, so its number shows nothing.
                eventually(lambda: last_in_avro(kafka, topic), "Debezium has caught up")
                expected = sums_of(session, _SUMS.replace("sum(amount)", "(100 * sum(price))"))
        finally:
            if engine is not None:
                engine.kill()
            postgres.close()
        assert services.finished() == expected
    (value,) = {value[:1] for _, value in records_of(kafka, topic, PARTITIONS) if value is not None}
    assert value == b"\0", "it is Avro, and names its schema"


def last_in_avro(kafka: str, topic: str) -> bool:
    return any(b"zoe" in (value or b"") for _, value in records_of(kafka, topic, PARTITIONS))


def wait_for_more(engine: DebeziumEngine, kafka: str, topic: str, records: int) -> None:
    """Wait until Debezium has published this number of records more."""
    wait_for(engine, kafka, topic, count_records(kafka, topic, PARTITIONS) + records)


def wait_for(engine: DebeziumEngine, kafka: str, topic: str, records: int) -> None:
    """Wait until Debezium has published this number of records in all."""

    def published() -> bool:
        engine.check()
        return count_records(kafka, topic, PARTITIONS) >= records

    eventually(published, "Debezium goes on")
