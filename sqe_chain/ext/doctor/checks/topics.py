"""Checks of topics: that they exist, and what may delete or lose their records."""

from __future__ import annotations

from collections.abc import Iterator

from sqe_chain.ext.doctor.facts import Facts
from sqe_chain.ext.doctor.finding import Finding
from sqe_chain.ports import TopicInfo

DAY_MS = 86_400_000
_LATE_MS = 60_000


def missing_topics(facts: Facts) -> Iterator[Finding]:
    """Topics that do not exist, or have too few partitions."""
    flow = facts.flow
    if "brokers" in facts.errors or not facts.topics:
        return
    for topic in flow.input_topics:
        if topic not in facts.topics:
            yield Finding(
                "missing-input",
                "error",
                topic,
                "the input topic does not exist",
                f"kafka-topics.sh --create --topic {topic} --partitions N",
            )
    for output in flow.outputs:
        info = facts.topics.get(output.topic)
        if info is None:
            yield Finding(
                "missing-output",
                "error",
                output.topic,
                "the output topic does not exist",
                "sqe-chain run ... --create-topics 0",
            )
        elif info.partitions < output.partitions:
            yield Finding(
                "few-partitions",
                "error",
                output.topic,
                f"it has {info.partitions} partitions, and output {output.name!r} writes to {output.partitions}",
                f"kafka-topics.sh --alter --topic {output.topic} --partitions {output.partitions}",
            )
    if flow.dead_letters and flow.dead_letter_topic not in facts.topics:
        yield Finding(
            "missing-dead-letters",
            "error",
            flow.dead_letter_topic,
            "the topic for dead-letter records does not exist",
            "sqe-chain run ... --create-topics 0",
        )


def durability_of_topics(facts: Facts) -> Iterator[Finding]:
    """Topics that may lose acknowledged records."""
    for info in facts.topics.values():
        if info.replicas == 1:
            yield Finding(
                "one-replica",
                "warning",
                info.name,
                "it has one replica: its records are lost with that broker",
                "kafka-reassign-partitions.sh",
            )
        if info.replicas > 1 and info.min_insync_replicas == 1:
            yield Finding(
                "min-insync",
                "error" if _is_written(facts, info) else "warning",
                info.name,
                "min.insync.replicas=1: the broker acknowledges a record that one replica holds",
                f"kafka-configs.sh --alter --entity-type topics --entity-name {info.name} --add-config min.insync.replicas=2",
            )
        if info.write_caching:
            yield Finding(
                "write-caching",
                "warning",
                info.name,
                "write.caching=true: the broker acknowledges records that are not on a disk",
                f"rpk topic alter-config {info.name} --set write.caching=false",
            )


def _is_written(facts: Facts, info: TopicInfo) -> bool:
    return any(output.topic == info.name for output in facts.flow.outputs)


def retention(facts: Facts) -> Iterator[Finding]:
    """Inputs from which records vanish, or that refuse replays."""
    for topic in facts.flow.input_topics:
        info = facts.topics.get(topic)
        if info is None:
            continue
        if info.compacted and not facts.flow.allow_compacted:
            yield Finding(
                "compacted-input",
                "error",
                topic,
                "cleanup.policy=compact: records vanish before they are counted",
                f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config cleanup.policy=delete",
            )
        if 0 <= info.retention_ms < DAY_MS:
            yield Finding(
                "short-retention",
                "warning",
                topic,
                f"retention.ms={info.retention_ms}: a service that is down for {info.retention_ms / 3_600_000:.1f} h loses records, and then stops with LostOffsets",
                f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config retention.ms={7 * DAY_MS}",
            )
        if 0 <= info.retention_bytes < 64 << 20:
            yield Finding(
                "small-retention",
                "warning",
                topic,
                f"retention.bytes={info.retention_bytes}: a burst deletes records before they are counted",
                f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config retention.bytes=-1",
            )
        if info.before_max_ms < DAY_MS or info.after_max_ms < _LATE_MS:
            yield Finding(
                "refuses-times",
                "warning",
                topic,
                "it refuses records by their time (message.timestamp.before.max.ms or after.max.ms): a republisher keeps the root's time, and its replays may be refused",
                f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --delete-config message.timestamp.before.max.ms",
            )
