"""Goal: a chunk is skipped if and only if the same chunk is there: id, keys, number of rows, and content."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sqe_chain.ext.tables import ChunkIndex, ChunkInfo, ChunkName, chunk_id

OWN, OLD = chunk_id(7, "9c1185a5c5e9fc54612808977ee8f548", 3), chunk_id(6, "aa", 3)
NAME = ChunkName("readings", 0, b"r1", OWN)
CHUNK = ChunkInfo(NAME, (1, "a"), (9, "z"), 5, 77, "ab", {"at": 1}, {"at": 9})


def test_ids_go_in_the_order_of_plans() -> None:
    assert chunk_id(9, "ff", 0) < chunk_id(10, "00", 0) < chunk_id(10, "00", 1) < chunk_id(100, "00", 0)


@pytest.mark.parametrize(
    "other",
    [
        replace(CHUNK, start_key=(2, "a")),
        replace(CHUNK, end_key=(8, "z")),
        replace(CHUNK, rows=4),
        replace(CHUNK, content_hash="cd"),  # FiloDB would skip this one
        replace(CHUNK, crc32=78),
        CHUNK.with_id(chunk_id(7, "another plan", 3)),
        CHUNK.with_id(OLD),
        replace(CHUNK, name=replace(NAME, partition_key=b"r2")),
        replace(CHUNK, name=replace(NAME, version=1)),
        replace(CHUNK, name=replace(NAME, table="other")),
    ],
)
def test_another_chunk_is_not(other: ChunkInfo) -> None:
    assert not ChunkIndex([other]).has(CHUNK, minimum=OWN)


def test_chunks_before_the_minimum_are_not_looked_at() -> None:
    old = CHUNK.with_id(OLD)
    assert not ChunkIndex([old]).has(old, minimum=OWN)
    assert ChunkIndex([old]).has(old, minimum=OLD)
    assert ChunkIndex([CHUNK, old]).since(NAME, OWN) == [CHUNK]
