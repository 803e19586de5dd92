"""Goal: sums over a table's changes are what MySQL itself sums up, though Debezium, the service and MySQL are killed again and again.

Method: a real MySQL, Debezium's embedded engine, and a service; transactions of several rows; `SELECT customer, sum(amount)` judges.
"""

# ruff: noqa: S608 - all values are drawn here

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import CalledProcessError
from uuid import uuid4

import pytest

from sqe_chain.adapters.kafka import KafkaLog
from tests.integration.test_database_changes import (
    LAST,
    MODULE,
    PARTITIONS,
    Services,
    last_record,
    wait_for_more,
)
from tests.support.beside import beside
from tests.support.debezium import MYSQL, DebeziumEngine, of_mysql, records_of
from tests.support.mysql import MySqlServer
from tests.support.other_debian import NotHere
from tests.support.waiting import eventually

KILLS = int(os.environ.get("DEBEZIUM_KILLS", "50"))
SEED = 20261129


class Writer:
    """A session whose transactions change rows, until the block ends; MySQL may be killed meanwhile."""

    def __init__(self, mysql: MySqlServer) -> None:
        self._mysql, self._draw, self._over = mysql, random.Random(SEED), threading.Event()
        self.committed = self.refused = 0

    def at_work(self) -> AbstractContextManager[None]:
        return beside(self._write, self._over)

    def _write(self) -> None:
        # A pause between transactions: it bounds the load, and nothing waits for it.
        while not self._over.wait(0.05):
            changes = [self._change() for _ in range(self._draw.randint(1, 6))]
            try:
                self._mysql.execute("BEGIN", *changes, self._draw.choice(("COMMIT", "COMMIT", "ROLLBACK")))
                self.committed += 1
            except CalledProcessError:
                self.refused += 1

    def _change(self) -> str:
        draw, row = self._draw, self._draw.randrange(300)
        customer, amount = draw.choice(("ann", "bob", "cid", "dot")), draw.randint(1, 100)
        return draw.choice(
            (
                f"INSERT IGNORE INTO orders VALUES ({row}, '{customer}', {amount}, NULL)",
                f"REPLACE INTO orders VALUES ({row}, '{customer}', {amount}, 'again')",
                f"UPDATE orders SET customer = '{customer}', amount = {amount} WHERE id BETWEEN {row} AND {row + 20}",
                f"UPDATE IGNORE orders SET id = {draw.randrange(300)} WHERE id = {row}",
                f"DELETE FROM orders WHERE id BETWEEN {row} AND {row + 3}",
            )
        )


@pytest.fixture
def mysql() -> Iterator[MySqlServer]:
    try:
        server = MySqlServer()
    except NotHere as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.mark.release
@pytest.mark.timeout(3_600)
def test_sums_are_those_of_mysql_after_kills_of_all_three(
    mysql: MySqlServer, kafka: str, tmp_path: Path
) -> None:
    name, draw = f"shop-{uuid4().hex[:8]}", random.Random(SEED)
    topic = f"{name}.shop.orders"
    KafkaLog(kafka).create_topic(topic, PARTITIONS)
    mysql.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, customer VARCHAR(9) NOT NULL, amount INT NOT NULL, note TEXT)",
        f"INSERT INTO orders VALUES ({LAST + 1}, 'eve', 1, NULL), ({LAST + 2}, 'eve', 2, 'long')",
    )
    engine = DebeziumEngine(
        kafka, of_mysql(mysql.port, name, kafka), name, "shop.orders", 3_000, tmp_path, jars=MYSQL
    )
    services = Services(kafka, name, tmp_path, MODULE.replace(".public.", ".shop."))
    try:
        engine.start()
        # Before that, a second snapshot would follow, and nobody would name the rows that are gone by then.
        engine.wait_for_stored_offset()
        writer = Writer(mysql)
        with writer.at_work():
            for number in range(KILLS):
                service = services.start("run")
                wait_for_more(engine, kafka, topic, draw.randint(1, 400))
                engine.kill()
                service.kill_after("committed" if number % 3 else "recovered")
                if number % 10 == 9:  # it recovers its tables, and begins another file of the binlog
                    mysql.kill()
                    mysql.start()
                engine.start()
        mysql.execute(f"INSERT INTO orders VALUES ({LAST}, 'zoe', 1, NULL)")
        eventually(lambda: last_record(kafka, topic), "Debezium has caught up")
        asked = "SELECT customer, sum(amount), count(*) FROM orders GROUP BY customer"
        expected = {
            customer: {"amount": int(spent), "orders": int(orders)}
            for customer, spent, orders in mysql.execute(asked)
        }
    finally:
        engine.kill()
    assert services.finished() == expected
    events = [json.loads(value)["source"] for _, value in records_of(kafka, topic, PARTITIONS) if value]
    places = {(each["file"], each["pos"], each["row"], each["snapshot"]) for each in events}
    assert len(events) - len(places) > KILLS, (
        f"of {writer.committed} transactions Debezium has emitted {len(events) - len(places)} changes again"
    )
    assert len({each["file"] for each in events}) > KILLS // 10, "MySQL has begun no other file"
