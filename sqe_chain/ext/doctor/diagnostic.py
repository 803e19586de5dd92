"""What checks find: one row for each kind of finding, with its severity, its text and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "note"]
"""error: the service cannot run, or is not exact. warning: it is exact until something happens. note: worth knowing."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A fault, or a setting from which one may come.

    Attributes:
        subject: the topic, partition, stage or store.
        text: the evidence, and what follows from it.
    """

    check: str
    severity: Severity
    subject: str
    text: str
    command: str = ""


_RESTORE: Final = "restore the store, or sqe-chain rebuild"
_TOPIC: Final = "kafka-configs.sh --alter --entity-type topics --entity-name {subject}"
_CREATE: Final = "sqe-chain run ... --create-topics 0"
_JAVA: Final = "apt-get install openjdk-17-jre-headless"

# fmt: off
KINDS: Final[dict[str, tuple[Severity, str, str]]] = {
    "unreachable": ("error", "{why}", "check the address, the network and the login"),
    "another-cluster": ("error", "{why}", "give --kafka of the flow's cluster; or sqe-chain failover, if this one mirrors it"),
    "no-right": ("error", "the login may not {operations} it, and the service needs to", "kafka-acls.sh --add --allow-principal User:NAME"),
    "unknown-rights": ("warning", "not tried: the broker does not report what the login may do with it", "kafka-acls.sh --list"),
    "group-members": ("error", "{member} has joined the group {group!r}: the broker refuses the commits of a service", "stop that program, or give it another group"),
    # topics
    "missing-input": ("error", "the input topic does not exist", "kafka-topics.sh --create --topic {subject} --partitions N"),
    "missing-output": ("error", "the output topic does not exist", _CREATE),
    "few-partitions": ("error", "it has {known} partitions, and output {output!r} writes to {wanted}", "kafka-topics.sh --alter --topic {subject} --partitions {wanted}"),
    "missing-dead-letters": ("error", "the topic for dead-letter records does not exist", _CREATE),
    "missing-markers": ("error", "the topic in which a transactional flow notes what it has published does not exist", _CREATE),
    "expiring-markers": ("error", "it deletes records: the flow would forget what it has published", f"{_TOPIC} --add-config cleanup.policy=compact"),
    "one-replica": ("warning", "it has one replica: its records are lost with that broker", "kafka-reassign-partitions.sh"),
    "few-replicas": ("error", "min.insync.replicas={least}, and it has {replicas}: the broker takes no record", f"{_TOPIC} --add-config min.insync.replicas={{replicas}}"),
    "small-records": ("error", "max.message.bytes={known}: a service needs 1,061 at least", f"{_TOPIC} --add-config max.message.bytes=1048588"),
    "compacted-dead-letters": ("error", "cleanup.policy=compact: dead-letter records vanish, or are refused", f"{_TOPIC} --add-config cleanup.policy=delete"),
    "min-insync": ("warning", "min.insync.replicas=1: the broker acknowledges a record that one replica holds", f"{_TOPIC} --add-config min.insync.replicas=2"),
    "write-caching": ("warning", "write.caching=true: the broker acknowledges records that are not on a disk", "rpk topic alter-config {subject} --set write.caching=false"),
    "compacted-input": ("error", "cleanup.policy=compact: records vanish before they are counted", f"{_TOPIC} --add-config cleanup.policy=delete"),
    "short-retention": ("warning", "retention.ms={kept_ms}: a service that is down for {hours:.1f} h loses records, and then stops with LostOffsets", f"{_TOPIC} --add-config retention.ms=604800000"),
    "small-retention": ("warning", "retention.bytes={kept}: a burst deletes records before they are counted", f"{_TOPIC} --add-config retention.bytes=-1"),
    "refuses-times": ("warning", "it refuses records by their time (message.timestamp.before.max.ms or after.max.ms): a republisher keeps the root's time, and its replays may be refused", f"{_TOPIC} --delete-config message.timestamp.before.max.ms"),
    # positions
    "recreated-input": ("error", "it was deleted and created again since the last plan", "see the runbook: RecreatedTopic"),
    "lost-records": ("error", "retention has deleted offsets {first} to {last}, which are not counted", "see the runbook: LostOffsets"),
    "truncated-input": ("error", "the log ends at {end}, and the flow has read up to {stop}: records were lost on the broker", "see the runbook: TruncatedInput"),
    "clock-ahead": ("warning", "its newest record lies {seconds} s in the future: a clock is wrong, here or at the {writer}", "chronyc tracking"),
    "no-commits": ("warning", "the group has no committed offsets: they have expired, or were deleted. The store still knows the positions", "start the service: it commits again"),
    "foreign-commit": ("error", "another program commits offsets to the group {group!r}", "kafka-consumer-groups.sh --describe --group {group}"),
    "store-behind": ("error", "the group has committed {committed}, and the store's last plan ends at {end}: the store went back in time", "restore the newest backup, or sqe-chain rebuild"),
    "commits-expire": ("note", "the last batch was {hours:,.1f} h ago, no run is at work, and {kept}: lag monitors lose the group. The store still knows the positions", "start the service: it commits again"),
    "place-lost": ("warning", "the group has no commits, and the outputs have records: Kafka has forgotten the flow's place, unless others publish there. The flow begins again, and receivers ignore the replays ({kept})", "see production: Topics"),
    "short-commits": ("warning", "{kept}: if the flow is down for {hours:.1f} h, Kafka forgets its place, and it reads from the beginning", "offsets.retention.minutes=10080 in the brokers' server.properties"),
    "behind": ("note", "{lag:,} offsets are not counted, and no run is at work", "start the service"),
    "failed-records": ("note", "{line}", "sqe-chain failed list"),
    "newer-revision": ("warning", "it has revision {newest}, and the flow follows {follows}: the messages of the newer one are ignored", "sqe-chain rebuild, when the newer one has caught up"),
    "unknown-revision": ("warning", "{why}", "let the login read the topic; sqe-chain rebuild and a first start stop until then"),
    "held-back": ("warning", "{waiting:,} records wait for event time; this partition holds them back", "sqe-chain state FLOW STAGE --waiting"),
    # stores
    "not-tried": ("warning", "not tried: {why}", "{action}"),
    "no-writes": ("error", "{why}", "see stores: Rights; or end what keeps the server from taking writes"),
    "store-empty": ("error", "Kafka has commits of plans, and the store has no plan", _RESTORE),
    "plan-lost": ("error", "plan {number} is gone", _RESTORE),
    "stale-claim": ("note", "run {run} has not released its claim, and its heartbeat has stopped: it was killed", "start the service: it takes over"),
    "half-forgotten": ("error", "it is being forgotten, and parts of it may be gone", "sqe-chain flows forget; or sqe-chain rebuild, to keep it"),
    "cell-lost": ("error", "its header is gone: its states are lost", _RESTORE),
    "states-lost": ("error", "{why}", _RESTORE),
    "inconsistent": ("error", "{why}", _RESTORE),
    "home-behind": ("error", "it is at plan {number}, and the home store at plan {last}: stores were restored apart", "restore both from one backup"),
    "open-plan": ("note", "a plan is written in part, and no run is at work", "start the service: it finishes the plan"),
    "not-located": ("warning", "readers cannot find its states", "start the service: it writes the locations"),
    "weak-store": ("error", "{why}", "sqe-chain store init URL --check"),
    "store-remark": ("note", "{why}", ""),
    # this machine
    "clocks-differ": ("warning", "its clock is {seconds:,.1f} s {where} this machine's: timers, retention and the times in logs follow a wrong clock", "chronyc tracking"),
    "disk-full": ("warning", "{free:,} of {total:,} MiB are free", "df -h {subject}"),
    "no-temporary-directory": ("warning", "there is no directory for temporary files that this user may write: --engine spark and --workers cannot start", "mount a writable directory at /tmp, or name one in TMPDIR"),
    "open-files": ("warning", "a process may open {files} files", "ulimit -n 65536"),
    "memory": ("warning", "{free:,} MiB of memory are available", "free -m"),
    "no-engine": ("error", "{why}", ""),
    "no-java": ("warning", "PySpark is installed, and there is no Java 17: --engine spark cannot start", _JAVA),
    "old-java": ("warning", "the version of {java} is {version}: --engine spark needs 17 or later", _JAVA),
    "no-numpy": ("note", "numpy is not installed: blocks of records are decoded one by one, which is slower", "pip install numpy"),
    "old-python": ("error", "Python {version}: expected 3.11 or later", ""),
}
"""Name of a check -> how bad what it finds is, the text, and the command; both name the subject and what the check gives."""
# fmt: on


UNTRIED: Final = frozenset({"not-tried", "unknown-rights"})
"""Checks that find what could not be tried: without an error, it is not known that a start comes to its first batch."""


def report(check: str, subject: str, **evidence: object) -> Diagnostic:
    """A finding of a kind, one of `KINDS`; its texts name the subject and the evidence."""
    severity, text, command = KINDS[check]
    evidence["subject"] = subject
    return Diagnostic(check, severity, subject, text.format(**evidence), command.format(**evidence))
