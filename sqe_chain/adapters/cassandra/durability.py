"""Finds settings with which a cluster may lose acknowledged writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqe_chain.adapters.cassandra.client import CassandraClient
from sqe_chain.errors import ChainError, Unavailable

_SETTING: Final = "SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'"
_ACCEPT: Final = "--allow-weak-durability accepts that"
_SYNCED: Final = ("batch", "group")
"""Values of `commitlog_sync` with which a write is on disk before it is acknowledged."""

_DENIED, _AWAY = "(cannot be read)", "(no answer)"
_ENOUGH: Final = 3
"""With this number of replicas, one may lose its latest writes: the two others have them."""


def weaknesses(client: CassandraClient, kept: str = "states") -> list[str]:
    """Settings that may lose acknowledged writes, one sentence each; see `StateStore.check`."""
    durable_writes, replicas = _keyspace(client)
    weak = []
    if not durable_writes:
        weak.append(
            f"{client.settings}: the keyspace has durable_writes = false, so acknowledged {kept} may be lost; "
            f"set it to true. {_ACCEPT}"
        )
    least = _least(client, replicas)
    for value, nodes in _doubtful(client).items():
        if value == _DENIED:
            weak.append(
                f"{nodes}: the setting commitlog_sync cannot be read, so it may be weak; it should be batch. "
                f"{_ACCEPT}"
            )
        elif least < _ENOUGH:
            weak.append(
                f"{nodes}: {_sync_text(value)} and {kept} have {_copies(least)}, so acknowledged {kept} may be "
                f"lost; set it to batch. {_ACCEPT}"
            )
    return weak


def remarks(client: CassandraClient, kept: str = "states") -> list[str]:
    """Settings that are accepted but worth knowing; see `StateStore.remarks`."""
    _, replicas = _keyspace(client)
    sentences = []
    least = _least(client, replicas)
    for value, nodes in _doubtful(client).items():
        if value != _DENIED and least >= _ENOUGH:
            sentences.append(
                f"{nodes}: {_sync_text(value)}: each of {least} replicas may lose its latest writes when it "
                f"crashes; if a majority crashes together, acknowledged {kept} may be lost. batch prevents that"
            )
    if len(replicas) > 1 and client.settings.serial_consistency == "LOCAL_SERIAL":
        sentences.append(
            f"{client.settings}: {kept} are kept in the data centres {', '.join(sorted(replicas))}, but LOCAL_SERIAL "
            "compares within one: run all services of a flow in the same one, or use serial_consistency=SERIAL"
        )
    return sentences


def _keyspace(client: CassandraClient) -> tuple[bool, dict[str, int]]:
    """Whether writes go to the commit log, and data centre ("": all) -> replicas."""
    asked = "SELECT durable_writes, replication FROM system_schema.keyspaces WHERE keyspace_name = ?"
    ((durable_writes, replication),) = client.rows((asked, (client.settings.keyspace,)))
    return durable_writes, _replicas(replication)


def _replicas(replication: Mapping[str, Any]) -> dict[str, int]:
    """Data centre -> full replicas.

    >>> _replicas({"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "dc1": "3", "dc2": "3/1"})
    {'dc1': 3, 'dc2': 2}
    >>> _replicas({"class": "another database's own", "replication_factor": "3", "tablets": "true"})
    {'': 3}
    """
    replicas = {}
    for name, text in replication.items():
        full, _, transient = str(text).partition("/")
        if full.isdecimal():
            replicas["" if name == "replication_factor" else name] = int(full) - int(transient or 0)
    return replicas


def _least(client: CassandraClient, replicas: Mapping[str, int]) -> int:
    """Replicas in the data centre that is used; if none is set, in the one with fewest."""
    return replicas.get(client.settings.datacenter, min(replicas.values(), default=0))


def _doubtful(client: CassandraClient) -> dict[str, str]:
    """Value of `commitlog_sync` that does not wait for the disk, `_DENIED` or `_AWAY` -> the nodes with it."""
    doubtful: dict[str, list[str]] = {}
    for node, answer in client.of_each_node(_SETTING):
        if isinstance(answer, Unavailable):
            value = _AWAY
        elif isinstance(answer, ChainError) or not answer:
            value = _DENIED
        else:
            value = answer[0][0]
        if value not in _SYNCED:
            doubtful.setdefault(value, []).append(node)
    return {value: ", ".join(nodes) for value, nodes in doubtful.items()}


def _sync_text(value: str) -> str:
    if value == _AWAY:
        return "the node does not answer, so its commitlog_sync may be periodic"
    return f"commitlog_sync is {value}"


def _copies(count: int) -> str:
    return "one replica" if count == 1 else f"{count} replicas"
