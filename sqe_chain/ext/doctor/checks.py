"""The checks: facts in, findings out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from sqe_chain.errors import ChainError
from sqe_chain.ext.doctor.facts import Facts
from sqe_chain.ports import TopicInfo
from sqe_chain.protocol.declared import check_layout
from sqe_chain.protocol.inputs import parse_metadata

Severity = Literal["error", "warning", "note"]
"""error: the service cannot run, or is not exact. warning: it is exact until something happens. note: worth knowing."""

DAY_MS = 86_400_000
_LEAST_DISK = 0.05
_LEAST_DISK_BYTES = 1 << 30
_LEAST_FILES = 1_024
_LEAST_MEMORY = 512 << 20
_LATE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, or may become so.

    Attributes:
        check: name of the check.
        severity: how bad it is.
        subject: the topic, partition, stage or store.
        text: what is wrong, and what follows from it.
        command: what to do.
    """

    check: str
    severity: Severity
    subject: str
    text: str
    command: str = ""


def examine(facts: Facts) -> list[Finding]:
    """All findings, errors first."""
    order = {"error": 0, "warning": 1, "note": 2}
    findings = [finding for check in CHECKS for finding in check(facts)]
    return sorted(findings, key=lambda finding: order[finding.severity])


def _unreachable(facts: Facts) -> Iterator[Finding]:
    for what, why in facts.errors.items():
        yield Finding("unreachable", "error", what, why, "check the address, the network and the login")


def _missing_topics(facts: Facts) -> Iterator[Finding]:
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


def _durability_of_topics(facts: Facts) -> Iterator[Finding]:
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


def _retention(facts: Facts) -> Iterator[Finding]:
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


def _positions(facts: Facts) -> Iterator[Finding]:
    plan = facts.plan
    if plan is None:
        return
    for planned in plan.ranges:
        info, bounds = facts.topics.get(planned.topic), facts.bounds.get(planned.tp)
        where = f"{planned.topic}[{planned.partition}]"
        if info is not None and info.topic_id.hex() != planned.topic_id:
            yield Finding(
                "recreated-input",
                "error",
                planned.topic,
                "it was deleted and created again since the last plan",
                "see the runbook: RecreatedTopic",
            )
            continue
        if bounds is None:
            continue
        if bounds.begin > planned.stop:
            yield Finding(
                "lost-records",
                "error",
                where,
                f"retention has deleted offsets {planned.stop} to {bounds.begin - 1}, which are not counted",
                "see the runbook: LostOffsets",
            )
        if bounds.stable_end < planned.stop:
            yield Finding(
                "truncated-input",
                "error",
                where,
                f"the log ends at {bounds.stable_end}, and the flow has read up to {planned.stop}: records were lost on the broker",
                "see the runbook: TruncatedInput",
            )
        if planned.last_timestamp_ms > facts.now_ms + _LATE_MS:
            yield Finding(
                "clock-ahead",
                "warning",
                where,
                f"its newest record lies {(planned.last_timestamp_ms - facts.now_ms) // 1_000} s in the future: a clock is wrong, here or at the producer",
                "chronyc tracking",
            )


def _group(facts: Facts) -> Iterator[Finding]:
    if facts.plan is None or "brokers" in facts.errors or not facts.topics:
        return
    stops = {tp: planned.stop for tp, planned in facts.plan.ends().items() if planned.stop > 0}
    ours = {tp: commit for tp, commit in facts.commits.items() if "plan" in parse_metadata(commit)}
    group = facts.flow.declared_name
    if stops and not facts.commits:
        yield Finding(
            "no-commits",
            "warning",
            group,
            "the group has no committed offsets: they have expired, or were deleted. The store still knows the positions",
            "start the service: it commits again",
        )
    for tp in sorted(facts.commits.keys() - ours.keys()):
        yield Finding(
            "foreign-commit",
            "error",
            f"{tp[0]}[{tp[1]}]",
            f"another program commits offsets to the group {group!r}",
            f"kafka-consumer-groups.sh --describe --group {group}",
        )
    for tp, commit in ours.items():
        if commit.offset > stops.get(tp, 0):
            yield Finding(
                "store-behind",
                "error",
                f"{tp[0]}[{tp[1]}]",
                f"the group has committed {commit.offset}, and the store's last plan ends at {stops.get(tp, 0)}: the store went back in time",
                "restore the newest backup, or sqe-chain rebuild",
            )


def _claims(facts: Facts) -> Iterator[Finding]:
    home = facts.home
    if home is None:
        if facts.flow.keeps_plans and any(
            "plan" in parse_metadata(commit) for commit in facts.commits.values()
        ):
            yield Finding(
                "store-empty",
                "error",
                "home store",
                "Kafka has commits of plans, and the store has no plan",
                "restore the store, or sqe-chain rebuild",
            )
        return
    if facts.plan is None and home.number >= 0 and "store" not in facts.errors:
        yield Finding(
            "plan-lost",
            "error",
            "home store",
            f"plan {home.number} is gone",
            "restore the store, or sqe-chain rebuild",
        )
    if home.run_id and not facts.alive:
        yield Finding(
            "stale-claim",
            "note",
            "claim",
            f"run {home.run_id} has not released its claim, and its heartbeat has stopped: it was killed",
            "start the service: it takes over",
        )


def _headers(facts: Facts) -> Iterator[Finding]:
    plan = facts.plan
    for (stage, cell), header in facts.headers.items():
        subject = f"stage {stage!r}, cell {cell}"
        if header is None:
            if plan is not None and plan.number > 0 and stage in plan.layout.stages:
                yield Finding(
                    "cell-lost",
                    "error",
                    subject,
                    "its header is gone: its states are lost",
                    "restore the store, or sqe-chain rebuild",
                )
            continue
        if header.lost:
            yield Finding(
                "states-lost", "error", subject, header.lost, "restore the store, or sqe-chain rebuild"
            )
        if plan is not None and header.number > plan.number:
            yield Finding(
                "home-behind",
                "error",
                subject,
                f"it is at plan {header.number}, and the home store at plan {plan.number}: stores were restored apart",
                "restore both from one backup",
            )
        if plan is not None and header.begun_id and not facts.alive:
            yield Finding(
                "open-plan",
                "note",
                subject,
                "a plan is written in part, and no run is at work",
                "start the service: it finishes the plan",
            )


def _declaration(facts: Facts) -> Iterator[Finding]:
    if facts.plan is None:
        return
    try:
        check_layout(facts.flow, facts.plan.layout, ())
    except ChainError as error:
        yield Finding(
            type(error).__name__,
            "error",
            f"flow {facts.flow.name}",
            str(error),
            "declare it as before, or see the runbook",
        )
    for stage in facts.flow.stages:
        if (
            facts.plan.number > 0
            and stage.name in facts.plan.layout.stages
            and stage.name not in facts.located
        ):
            yield Finding(
                "not-located",
                "warning",
                f"stage {stage.name!r}",
                "readers cannot find its states",
                "start the service: it writes the locations",
            )


def _lag(facts: Facts) -> Iterator[Finding]:
    if facts.plan is None:
        return
    lag = sum(
        max(0, bounds.stable_end - planned.stop)
        for tp, planned in facts.plan.ends().items()
        if (bounds := facts.bounds.get(tp)) is not None
    )
    if lag and not facts.alive:
        yield Finding(
            "behind",
            "note",
            f"flow {facts.flow.name}",
            f"{lag:,} offsets are not counted, and no run is at work",
            "start the service",
        )
    if facts.waiting and facts.now_ms - facts.plan.clock_ms > _LATE_MS:
        yield Finding(
            "held-back",
            "warning",
            facts.holder,
            f"{facts.waiting:,} records wait for event time; this partition holds them back",
            "sqe-chain state FLOW STAGE --waiting",
        )


def _stores(facts: Facts) -> Iterator[Finding]:
    for name, texts in facts.weak.items():
        for text in texts:
            yield Finding(
                "weak-store", "error", f"store {name or 'default'}", text, "sqe-chain store check URL"
            )
    for name, texts in facts.remarks.items():
        for text in texts:
            yield Finding("store-remark", "note", f"store {name or 'default'}", text)


def _machine(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    if machine.disk_free < max(_LEAST_DISK_BYTES, int(_LEAST_DISK * machine.disk_total)):
        yield Finding(
            "disk-full",
            "warning",
            "this machine",
            f"{machine.disk_free >> 20:,} MiB of disk are free",
            "df -h",
        )
    if 0 <= machine.open_files < _LEAST_FILES:
        yield Finding(
            "open-files",
            "warning",
            "this machine",
            f"a process may open {machine.open_files} files",
            "ulimit -n 65536",
        )
    if 0 <= machine.memory_free < _LEAST_MEMORY:
        yield Finding(
            "memory",
            "warning",
            "this machine",
            f"{machine.memory_free >> 20:,} MiB of memory are available",
            "free -m",
        )
    if machine.spark and not machine.java:
        yield Finding(
            "no-java",
            "warning",
            "this machine",
            "PySpark is installed, and there is no Java 17: --engine spark cannot start",
            "apt-get install openjdk-17-jre-headless",
        )
    if not machine.numpy:
        yield Finding(
            "no-numpy",
            "note",
            "this machine",
            "numpy is not installed: blocks of records are decoded one by one, which is slower",
            "pip install numpy",
        )
    if machine.python < (3, 11):
        yield Finding(
            "old-python",
            "error",
            "this machine",
            f"Python {machine.python[0]}.{machine.python[1]}: expected 3.11 or later",
            "",
        )


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _unreachable,
    _missing_topics,
    _durability_of_topics,
    _retention,
    _positions,
    _group,
    _claims,
    _headers,
    _declaration,
    _lag,
    _stores,
    _machine,
)
