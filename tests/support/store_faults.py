"""Faults of stores: which of them the tests inject into which store, and why not into the others.

The table in tests/README.md is the same; a test compares the two.
"""

from __future__ import annotations

STORES = ("memory", "sqlite", "redis", "redis-cluster", "cassandra", "postgres")

FAULTS = {
    "kill": "the server is killed (`kill -9`) in the middle of writes; acknowledged is never lost, unknown is resolved",
    "reconnect": "the server is stopped and started between two calls",
    "timeout": "the server is silent for longer than `timeout_s`",
    "slow": "the server is silent for a while, but not as long",
    "lost-answer": "the answer is lost after the effect",
    "disk-full": "the disk is full in the middle of writes",
    "read-only": "the server, or its disk, no longer takes writes",
}

NO_SERVER = "it has neither server nor disk"
IMPOSSIBLE = {("memory", fault): NO_SERVER for fault in FAULTS} | {
    ("sqlite", "reconnect"): "there is no server",
    (
        "sqlite",
        "lost-answer",
    ): "there is no wire: an answer is lost only with the process, and that is a kill",
    (
        "redis-cluster",
        "lost-answer",
    ): "clients connect to the nodes' own addresses, past a wire that loses answers",
    ("redis-cluster", "read-only"): "clients are redirected from a replica to its master",
    ("cassandra", "read-only"): "every replica takes writes",
}
"""(store, fault) -> why it is not possible here."""

AS_SQLITE = {
    "kill": "the writing process is killed",
    "timeout": "another process holds the lock for longer",
    "slow": "another process holds the lock for a while",
}
"""What a fault is where there is no server."""


def faults_table() -> str:
    """The table of docs/stores.md."""
    lines = [f"| fault | {' | '.join(STORES[1:])} |", "|---" * len(STORES) + "|"]
    for fault, text in FAULTS.items():
        cells = [_cell(store, fault) for store in STORES[1:]]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(store: str, fault: str) -> str:
    why = IMPOSSIBLE.get((store, fault))
    if why is not None:
        return f"not possible here, because {why}"
    if store == "sqlite" and fault in AS_SQLITE:
        return f"run: {AS_SQLITE[fault]}"
    return "run"
