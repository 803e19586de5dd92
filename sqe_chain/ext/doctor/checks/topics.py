"""Checks of topics: that they exist, and what may delete or lose their records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sqe_chain.ext.doctor.diagnostic import Diagnostic, report
from sqe_chain.ext.doctor.facts import Facts
from sqe_chain.plans.inputs import keeps_markers

DAY_MS = 86_400_000
_LATE_MS = 60_000
_LEAST_BYTES = 1_061
"""The smallest `max.message.bytes` that the driver of Kafka can be given, with the overhead of a batch."""


def missing_topics(facts: Facts) -> Iterator[Diagnostic]:
    """Topics that do not exist, or have too few partitions."""
    flow = facts.flow
    if "brokers" in facts.errors or facts.elsewhere:
        return
    for topic in flow.input_topics:
        if topic not in facts.topics:
            yield report("missing-input", topic)
    for output in flow.outputs:
        info, wanted = facts.topics.get(output.topic), output.partitions
        if info is None:
            yield report("missing-output", output.topic)
        elif info.partitions < wanted:
            yield report(
                "few-partitions", output.topic, known=info.partitions, output=output.name, wanted=wanted
            )
    if flow.dead_letters and flow.dead_letter_topic not in facts.topics:
        yield report("missing-dead-letters", flow.dead_letter_topic)


def markers(facts: Facts) -> Iterator[Diagnostic]:
    """The topic in which a transactional flow notes what it has published."""
    topic = facts.flow.marker_topic
    if not topic:
        return
    info = facts.topics.get(topic)
    if info is None:
        yield report("missing-markers", topic)
    elif not keeps_markers(info):
        yield report("expiring-markers", topic)


def durability_of_topics(facts: Facts) -> Iterator[Diagnostic]:
    """Topics that may lose acknowledged records."""
    written = facts.flow.written_topics
    for info in facts.topics.values():
        if info.replicas == 1:
            yield report("one-replica", info.name)
        if info.replicas > 1 and info.min_insync_replicas == 1:
            finding = report("min-insync", info.name)
            yield replace(finding, severity="error") if info.name in written else finding
        if info.write_caching:
            yield report("write-caching", info.name)
        if info.name in written and info.min_insync_replicas > info.replicas:
            least = info.min_insync_replicas
            yield report("few-replicas", info.name, least=least, replicas=info.replicas)
        if info.name in written and info.max_message_bytes < _LEAST_BYTES:
            yield report("small-records", info.name, known=info.max_message_bytes)
    letters = facts.topics.get(facts.flow.dead_letter_topic)
    if facts.flow.dead_letters and letters is not None and letters.compacted:
        yield report("compacted-dead-letters", letters.name)


def access(facts: Facts) -> Iterator[Diagnostic]:
    """What the login may not do, and who else is in the group."""
    for subject, operations in facts.rights.items():
        yield report("no-right", subject, operations=operations)
    for subject in facts.unknown_rights:
        yield report("unknown-rights", subject)
    group = facts.flow.declared_name
    for member in facts.members:
        yield report("group-members", f"group {group}", member=member, group=group)


def retention(facts: Facts) -> Iterator[Diagnostic]:
    """Inputs from which records vanish, or that refuse replays."""
    for topic in facts.flow.input_topics:
        info = facts.topics.get(topic)
        if info is None:
            continue
        if info.compacted and not facts.flow.allow_compacted:
            yield report("compacted-input", topic)
        if 0 <= info.retention_ms < DAY_MS:
            yield report(
                "short-retention", topic, kept_ms=info.retention_ms, hours=info.retention_ms / 3_600_000
            )
        if 0 <= info.retention_bytes < 64 << 20:
            yield report("small-retention", topic, kept=info.retention_bytes)
        if info.before_max_ms < DAY_MS or info.after_max_ms < _LATE_MS:
            yield report("refuses-times", topic)
