"""docs/stores.md shows the schema and the rights that are really used."""

from __future__ import annotations

import re
from pathlib import Path

from sqe_chain.adapters.cassandra.schema import (
    CHUNK_INDEX,
    CHUNKS,
    FLOWS,
    LOCATIONS,
    STATES,
    TABLE_HEADS,
    TABLES,
)
from sqe_chain.adapters.postgres.schema import MIGRATIONS
from sqe_chain.adapters.sqlite import file
from sqe_chain.adapters.store_rules import HEADER_FIELDS, HOME_FIELDS, LOCATION_FIELDS

DOCUMENT = Path(__file__).parents[3] / "docs" / "stores.md"


def test_the_schema_of_sqlite_is_the_documented_one() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert file.SCHEMA.strip() in text
    assert file.LOCATIONS.strip().replace(" IF NOT EXISTS", "") in text


def test_the_tables_of_cassandra_are_the_documented_ones() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert all(f"{table.format(keyspace='sqe_chain')};" in text for table in (FLOWS, STATES, LOCATIONS))


def test_the_tables_of_postgres_are_the_documented_ones() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    made = [
        statement.format(schema="sqe_chain") for migration in MIGRATIONS for statement in migration.statements
    ]
    assert [statement for statement in made if f"{statement};" not in text] == []


def test_the_tables_of_chunks_are_documented_by_name() -> None:
    text = DOCUMENT.with_name("tables.md").read_text(encoding="utf-8")
    names = [re.search(r"\{keyspace\}\.(\w+)", table) for table in (TABLES, TABLE_HEADS, CHUNK_INDEX, CHUNKS)]
    assert all(name and f"| `{name[1]}` |" in text for name in names)


def test_all_fields_of_the_hashes_are_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in (*HEADER_FIELDS, *HOME_FIELDS, *LOCATION_FIELDS))
