"""The seams: what the protocol needs from Kafka, from a store and from an engine, as Protocols.

Implementations of `Log` and `StateStore` are *addresses*. They can be pickled, carry settings only, and open their clients on
first use, once per process. So the same object works in the driver and in the tasks of a cluster. An implementation raises
errors of `sqe_chain.errors` in place of its driver's. `StateStore` lists all that a store guarantees.
"""

from sqe_chain.ports.log import (
    NO_LIMIT,
    Bounds,
    Commit,
    Headers,
    Log,
    Membership,
    Message,
    Output,
    Range,
    TopicInfo,
    TopicPartition,
    TransactionalWriter,
    Writer,
)
from sqe_chain.ports.sink import (
    Flush,
    Replacement,
    ReplacingSink,
    Sink,
    SinkClaim,
    SinkState,
    Staged,
    replacing,
)
from sqe_chain.ports.store import (
    Header,
    Home,
    Location,
    Locations,
    Rows,
    Shown,
    StateStore,
    ViewKind,
    Views,
    ViewTable,
    WithSchema,
    WithViewTables,
)

__all__ = [
    "NO_LIMIT",
    "Bounds",
    "Commit",
    "Flush",
    "Header",
    "Headers",
    "Home",
    "Location",
    "Locations",
    "Log",
    "Membership",
    "Message",
    "Output",
    "Range",
    "Replacement",
    "ReplacingSink",
    "Rows",
    "Shown",
    "Sink",
    "SinkClaim",
    "SinkState",
    "Staged",
    "StateStore",
    "TopicInfo",
    "TopicPartition",
    "TransactionalWriter",
    "ViewKind",
    "ViewTable",
    "Views",
    "WithSchema",
    "WithViewTables",
    "Writer",
    "replacing",
]
