"""Largest sizes of keys, states and plans, by the settings of a cluster's nodes.

Each write is one mutation, which has to fit into half a segment of the commit log (`max_mutation_size`), and into one
request. Paxos stores it again, as a value in a mutation of its own, so the usable size is a little less.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sqe_chain.adapters.cassandra.layout import LONGEST_KEY
from sqe_chain.adapters.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqe_chain.adapters.cassandra.client import CassandraClient

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
