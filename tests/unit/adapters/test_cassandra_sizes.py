"""How large a step may be is read from what a node reports of itself, in the words of every version."""

from __future__ import annotations

import pytest

from sqe_chain.adapters.cassandra.layout import mutation_bytes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 16 * MIB),
        ({"commitlog_segment_size": "32MiB", "max_mutation_size": None}, 16 * MIB),
        ({"commitlog_segment_size": "64MiB"}, 32 * MIB),
        ({"commitlog_segment_size": "64MiB", "max_mutation_size": "20000KiB"}, 20_000 << 10),
        ({"commitlog_segment_size_in_mb": "8"}, 4 * MIB),
        ({"commitlog_segment_size_in_mb": "8", "max_mutation_size_in_kb": "100"}, 100 << 10),
        ({"native_transport_max_message_size": "2MiB"}, 2 * MIB),
        ({"native_transport_max_message_size": "64MiB"}, 16 * MIB),
        ({"native_transport_max_message_size": "3145728B"}, 3 * MIB),
        ({"max_mutation_size": "null"}, 16 * MIB),
    ],
)
def test_the_smallest_of_what_is_set_counts(settings: dict[str, str | None], expected: int) -> None:
    assert mutation_bytes(settings) == expected
