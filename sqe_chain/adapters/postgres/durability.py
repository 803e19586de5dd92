"""Finds settings with which a database may lose acknowledged writes, and whether another one has taken its place."""

# ruff: noqa: S608 - the schema's name is checked where the address is read

from __future__ import annotations

from typing import Final

from sqe_chain.adapters.postgres.client import PostgresClient
from sqe_chain.adapters.postgres.schema import SERVER

_ACCEPT: Final = "--allow-weak-durability accepts that"
_SETTINGS: Final = {
    "fsync": "a crash of the machine destroys the database",
    "full_page_writes": "a crash of the machine may tear pages",
    "synchronous_commit": "a crash loses the latest acknowledged writes",
}
"""Setting that must not be off -> what happens otherwise."""

_REPLICAS: Final = "SELECT count(*) FROM pg_stat_replication"


def weaknesses(client: PostgresClient) -> list[str]:
    """Settings that may lose acknowledged writes, one sentence each; see `StateStore.check`."""
    weak = []
    for name, otherwise in _SETTINGS.items():
        if _setting(client, name) == "off":
            weak.append(f"{client.settings}: {name} is off: {otherwise}; set it to on. {_ACCEPT}")
    unlogged = client.rows(
        "SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %(schema)s AND c.relpersistence = 'u' AND c.relkind = 'r' ORDER BY 1",
        {"schema": client.settings.schema},
    )
    if unlogged:
        tables = ", ".join(name for (name,) in unlogged)
        weak.append(
            f"{client.settings}: {tables}: a crash empties unlogged tables; use ALTER TABLE … SET LOGGED. {_ACCEPT}"
        )
    return weak + _other_database(client)


def remarks(client: PostgresClient) -> list[str]:
    """What is accepted but worth knowing; see `StateStore.remarks`."""
    sentences = []
    ((replicas,),) = client.rows(_REPLICAS)
    if replicas and not _waits(client):
        sentences.append(
            f"{client.settings}: no write waits for one of the {replicas} replicas, so one that becomes primary may lack acknowledged "
            "writes. Set synchronous_standby_names, or restore only from the primary"
        )
    return sentences


def _other_database(client: PostgresClient) -> list[str]:
    """Whether this is another database than the one in which the tables were made, or has another history."""
    ((known_system, known_timeline),) = client.rows(
        f"SELECT system_identifier, timeline FROM {client.settings.schema}.sqe_schema WHERE name = 'sqe-chain'"
    )
    ((system, timeline),) = client.rows(SERVER)
    if system != known_system:
        what = f"the tables were made in another database cluster ({known_system}, this is {system}): they were restored from a dump"
    elif timeline != known_timeline:
        what = f"the database is on timeline {timeline}, and was on {known_timeline}: a replica became primary, or a backup was restored"
    else:
        return []
    return [f"{client.settings}: {what}. Acknowledged writes may be missing. {_CONFIRM} {client.settings}"]


def _waits(client: PostgresClient) -> bool:
    """Whether writes wait for a replica."""
    standbys, commit = (
        _setting(client, name) for name in ("synchronous_standby_names", "synchronous_commit")
    )
    return bool(standbys) and commit != "local"


_CONFIRM: Final = "If it is the right one, accept it: sqe-chain store init"


def _setting(client: PostgresClient, name: str) -> str:
    ((value,),) = client.rows("SELECT current_setting(%(name)s)", {"name": name})
    return str(value)
