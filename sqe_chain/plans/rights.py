"""What a flow's login must be allowed to do with topics: one rule, for a start and for the doctor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from sqe_chain.errors import ConfigurationError
from sqe_chain.flow.compiled import CompiledFlow

READ: Final = "READ"
WRITE: Final = "WRITE"


@runtime_checkable
class ReportsRights(Protocol):
    """A log whose logins have rights. One without these methods has none to miss."""

    def allowed(self, topics: Iterable[str]) -> Mapping[str, Collection[str] | None]:
        """Topic -> what this login may do there, by Kafka's names of operations; None: the broker does not report it.

        Args:
            topics: names; those that do not exist are missing in the answer.

        Raises:
            Unavailable: no answer.
            ConfigurationError: the login may not even see one of them.
        """

    def allowed_in_group(self, group: str) -> Collection[str] | None:
        """The same of a group; empty where the login may not see it. Read the group's commits before.

        Raises:
            Unavailable: no answer.
        """


@dataclass(frozen=True, slots=True)
class Rights:
    """What is known of a login's rights.

    Attributes:
        missing: topic -> what the login needs there and may not do, such as ``READ and WRITE``.
        unknown: topics whose rights the broker does not report.
    """

    missing: Mapping[str, str]
    unknown: Collection[str]


def needed_on_topics(flow: CompiledFlow) -> dict[str, list[str]]:
    """Topic -> what a service does there.

    A flow without stages also reads back what it has published: a run that was killed may have published a part of its batch. A
    transactional one reads its markers.
    """
    reads = {*flow.input_topics} | (
        {*flow.written_topics} if not flow.keeps_plans else {flow.marker_topic} - {""}
    )
    writes = {*flow.written_topics}
    return {
        topic: [READ] * (topic in reads) + [WRITE] * (topic in writes) for topic in sorted(reads | writes)
    }


def rights_on_topics(flow: CompiledFlow, log: ReportsRights, known: Collection[str]) -> Rights:
    """What the login lacks on those of the flow's topics that exist.

    Args:
        flow: the flow.
        log: Kafka.
        known: topics that exist.

    Raises:
        Unavailable: no answer.
        ConfigurationError: the login may not even see one of them.
    """
    needed = {topic: operations for topic, operations in needed_on_topics(flow).items() if topic in known}
    missing, unknown = dict[str, str](), list[str]()
    for topic, allowed in log.allowed(needed).items():
        if allowed is None:
            unknown.append(topic)
        elif lacks := [operation for operation in needed[topic] if operation not in allowed]:
            missing[topic] = " and ".join(lacks)
    return Rights(missing, unknown)


def check_rights(flow: CompiledFlow, log: object, known: Collection[str]) -> None:
    """Check that the login may read and write what the flow reads and writes, before anything is published.

    Without this, a right that only a redo needs would be missed in the middle of an outage.

    Args:
        flow: the flow.
        log: Kafka; one without `ReportsRights` has no rights.
        known: topics that exist.

    Raises:
        ConfigurationError: it may not.
        Unavailable: no answer.
    """
    if not isinstance(log, ReportsRights):
        return
    missing = rights_on_topics(flow, log, known).missing
    if missing:
        lacks = "; ".join(f"{operations} on topic {topic!r}" for topic, operations in missing.items())
        raise ConfigurationError(
            f"flow {flow.name!r}: its login at Kafka lacks rights: {lacks}. Expected what production.md lists for a flow "
            f"{'with' if flow.keeps_plans else 'without'} stages. Grant them with kafka-acls.sh --add"
        )
