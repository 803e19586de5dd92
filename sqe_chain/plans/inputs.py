"""The inputs of a service: which topics there are, what is new in them, and what its group has committed."""

from __future__ import annotations

import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import (
    START_OVER,
    CompactedInput,
    ConfigurationError,
    LostOffsets,
    NoCommittedOffset,
    PartitionsMismatch,
    TruncatedInput,
    Unavailable,
    WeakDurability,
)
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.layout import mark_name
from sqe_chain.plans.retrying import RetryingLog
from sqe_chain.ports import Bounds, Commit, Log, TopicInfo, TopicPartition

Topics = Mapping[str, TopicInfo]
Done = TypeVar("Done")
Found = dict[TopicPartition, Bounds] | None


class TopicDescriber(Protocol):
    """What can describe topics: a `Log`, or one that retries."""

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]: ...


def describe(flow: CompiledFlow, log: TopicDescriber, *, running: bool = False) -> dict[str, TopicInfo]:
    """Describe and check all topics of a flow.

    Args:
        flow: the flow.
        log: Kafka.
        running: they were all there when this run began.

    Raises:
        ConfigurationError: a topic is missing.
        Unavailable: one is that was there: it may be about to be created again.
        CompactedInput: an input is compacted and the flow does not allow it.
        PartitionsMismatch: an output topic has fewer partitions than declared.
        Unavailable: the broker does not answer.
    """
    files = [file_source.name for file_source in flow.file_sources]
    wanted = dict.fromkeys(flow.input_topics, "input")
    needed = {node.topic: node.partitions for node in flow.outputs}
    if flow.dead_letters:
        needed[flow.dead_letter_topic] = max(
            flow.dead_letter_partitions, needed.get(flow.dead_letter_topic, 0)
        )
    wanted.update(dict.fromkeys(needed, "output"))
    if flow.marker_topic:
        needed[flow.marker_topic] = 1
        wanted[flow.marker_topic] = "compacted"
    described = log.describe([*wanted, *files])
    missing = [f"{kind} topic {topic!r}" for topic, kind in wanted.items() if topic not in described]
    if missing and running:
        raise Unavailable(f"flow {flow.name!r}: {', '.join(missing)} was deleted; create it again")
    if missing:
        raise ConfigurationError(
            f"flow {flow.name!r}: {', '.join(missing)} not found at the broker; create them, or run with --create-topics N"
        )
    _check_cleanup(flow, described)
    for topic, number in needed.items():
        if described[topic].partitions < number:
            raise PartitionsMismatch(
                f"output topic {topic!r} has {described[topic].partitions} partitions, declared are {number}. If this "
                "output has published there before, its number is permanent: declare that, or give the output another name to "
                "grow. If it has not, declare fewer, or add partitions to the topic (more than declared stay unused)"
            ).at(topic)
    return described


def _check_cleanup(flow: CompiledFlow, described: Topics) -> None:
    """Check that topics keep the records that they must keep."""
    for topic in flow.input_topics:
        if described[topic].compacted and not flow.allow_compacted:
            raise CompactedInput(
                f"input {topic!r} has cleanup.policy=compact: records vanish from it, so totals would depend on when "
                "it is read; declare Flow(allow_compacted=True) if that is what you want"
            ).at(topic)
    if flow.dead_letters and described[flow.dead_letter_topic].compacted:
        raise ConfigurationError(
            f"flow {flow.name!r}: its dead-letter topic {flow.dead_letter_topic!r} is compacted: it would drop "
            "records that have the same key, and takes none without a key. Set its cleanup.policy to delete"
        )
    if flow.marker_topic and not keeps_markers(described[flow.marker_topic]):
        raise ConfigurationError(
            f"flow {flow.name!r}: topic {flow.marker_topic!r} deletes records, so it would forget what was published. Expected "
            f"cleanup.policy=compact alone. Set it with kafka-configs.sh --alter --topic {flow.marker_topic} --add-config cleanup.policy=compact"
        )


def keeps_markers(info: TopicInfo) -> bool:
    """Whether a topic keeps the last record of each key without limit. With `compact,delete` it does not."""
    return info.compacted and info.retention_ms < 0 and info.retention_bytes < 0


def kept_shortly(flow: CompiledFlow, infos: Topics) -> list[str]:
    """Output topics that would delete old events at once, and what they get instead: reported once, when the flow begins."""
    return [
        f"output topic {topic!r} deletes records {info.retention_ms} ms after their own time (retention.ms). So events that are nearly "
        "as old, or older, are published with the time of sending; readers have the event's time in the envelope or header"
        for topic in sorted({node.topic for node in flow.outputs})
        if (info := infos[topic]).retention_ms >= 0 and not info.append_time
    ]


def check_durable(flow: CompiledFlow, infos: Topics, *, allowed: bool) -> list[str]:
    """Check that what is published and acknowledged survives the loss of one broker.

    Returns:
        What is weak and accepted, and what topics delete early. A single replica, or a broker of another make, is named, too:
        there is no better setting. It is reported once, when the flow begins.

    Raises:
        WeakDurability: an output topic has several replicas, but acknowledges a record that only one of them holds.
    """
    read = [infos[topic] for topic in flow.written_topics]
    single = [info for info in read if info.min_insync_replicas == 1]
    weak = [info for info in single if info.replicas > 1]
    if weak and not allowed:
        raise WeakDurability(
            f"output topics {', '.join(info.name for info in weak)} acknowledge a record that only one broker holds: "
            "set min.insync.replicas=2 on them, or accept it with --allow-weak-durability"
        )
    # Brokers of another make do not report it.
    untold = [info for info in read if info.min_insync_replicas == 0]
    cached = [info for info in read if info.write_caching]
    accepted = {
        "what one broker holds (min.insync.replicas=1): it is lost with that broker": single,
        "what as many brokers hold as the cluster decides: it does not tell min.insync.replicas": untold,
        "what is not on a disk yet (write.caching=true): it is lost if the brokers that hold it crash together": cached,
    }
    return [
        f"weak durability: {', '.join(f'output topic {info.name!r}' for info in weak)} acknowledges {what}"
        for what, weak in accepted.items()
        if weak
    ] + kept_shortly(flow, infos)


def first_offsets(
    flow: CompiledFlow, bounds: Mapping[TopicPartition, Bounds], start: str | None
) -> dict[TopicPartition, tuple[int, bool]]:
    """Where a flow that has read nothing begins in each partition, and whether that is in the middle of the log.

    Raises:
        NoCommittedOffset: a log no longer begins at 0, and `start` is not given.
    """
    offsets: dict[TopicPartition, tuple[int, bool]] = {}
    for (topic, partition), bound in bounds.items():
        if start == "latest":
            offsets[topic, partition] = bound.stable_end, bound.stable_end > 0
            continue
        if bound.begin > 0 and start is None:
            raise NoCommittedOffset(
                f"flow {flow.name!r} has read nothing of {topic}[{partition}], whose log begins at {bound.begin}: "
                "earlier records are gone; give --start earliest (what is there) or --start latest"
            ).at(topic, partition)
        offsets[topic, partition] = bound.begin, bound.begin > 0
    return offsets


def new_marks(info: TopicInfo, partition: int, *, entered_in_middle: bool) -> PartitionMarks:
    """The marks of a partition that was not begun."""
    return PartitionMarks(info.name, info.topic_id, partition, entered_in_middle=entered_in_middle)


def compacted_topics(infos: Topics) -> frozenset[str]:
    """The topics from which compaction removes records."""
    return frozenset([topic for topic, info in infos.items() if info.compacted])


def check_bounds(tp: TopicPartition, next_offset: int, bound: Bounds) -> None:
    """Check that a partition still holds what is to be read next.

    Raises:
        LostOffsets: retention was faster.
        TruncatedInput: the log ends before what was read already.
    """
    topic, partition = tp
    if bound.begin > next_offset:
        raise LostOffsets(
            f"{topic}[{partition}]: next to read is {next_offset}, but the log begins at {bound.begin}: "
            f"{bound.begin - next_offset} offsets were lost to retention before they were counted. Restore them, or "
            f"{START_OVER} with --start earliest"
        ).at(topic, partition, next_offset)
    if bound.stable_end < next_offset:
        raise TruncatedInput(
            f"{topic}[{partition}]: it was read up to {next_offset}, but the log ends at {bound.stable_end}: it was "
            "truncated, or restored from an older copy. What was counted is no longer there; restore the log, or "
            f"{START_OVER}"
        ).at(topic, partition, next_offset)


def read_bounds(
    flow: CompiledFlow,
    log: Log,
    infos: Topics,
    offsets: Mapping[TopicPartition, int],
    read: Container[str] = (),
    needed: Mapping[TopicPartition, int] | None = None,
) -> Found:
    """Read where the logs of these partitions begin and end, and check that they still hold what is to be read next.

    Args:
        flow: the flow.
        log: Kafka.
        infos: its topics, as described before.
        offsets: next offset of each partition.
        read: topics of files that are read to their ends, and may be gone.
        needed: first offset of each partition that is to be read again; None: none is.

    Returns:
        None when an input was created again after it was described: then these are the bounds of another topic.

    Raises:
        LostOffsets, TruncatedInput: a log does not hold what is to be read next.
        Unavailable: the broker does not answer, or a topic is gone.
    """
    try:
        bounds = log.bounds([tp for tp in offsets if tp[0] not in read])
        bounds |= {tp: Bounds(0, offset) for tp, offset in offsets.items() if tp[0] in read}
        for tp, offset in offsets.items():
            check_bounds(tp, offset, bounds[tp])
            if needed is not None and needed[tp] < offset:
                check_bounds(tp, needed[tp], bounds[tp])
    except (LostOffsets, TruncatedInput, Unavailable):
        # Only now, because a description is dear. Offsets that look right are caught when ids are compared after reading.
        if is_recreated_since(flow, log, infos):
            return None
        raise
    return bounds


def is_recreated_since(flow: CompiledFlow, log: Log, infos: Topics) -> bool:
    """Whether an input was created again, or a file was changed, after it was described.

    Raises:
        Unavailable: the broker does not answer, or a topic is gone.
    """
    topics = [*flow.input_topics, *(topic for topic in infos if flow.declared_topic[topic] != topic)]
    now = describe(flow, log, running=True)
    return any(topic not in now or now[topic].topic_id != infos[topic].topic_id for topic in topics)


def cut(
    offsets: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds], max_records: int
) -> dict[TopicPartition, int]:
    """Where the next batch ends in each partition: at the end of what is there, or at a fair share of the limit.

    Args:
        offsets: next offset of each partition.
        bounds: of the same partitions.
        max_records: limit over all partitions.
    """
    # Those with the fewest records first: what they leave of their shares goes to the others.
    waiting = {tp: bounds[tp].stable_end - offset for tp, offset in offsets.items()}
    ends = dict(offsets)
    left = max_records
    for count, tp in enumerate(sorted(waiting, key=lambda tp: (waiting[tp], tp))):
        # One at least: none starves, even if the limit is smaller than their number.
        share = max(1, left // (len(waiting) - count))
        count_here = max(0, min(waiting[tp], share))
        ends[tp] += count_here
        left = max(0, left - count_here)
    return ends


def limit_bounds(
    bounds: Mapping[TopicPartition, Bounds], limits: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Bounds]:
    """The same bounds, ending at these limits where a partition has one."""
    return {
        tp: replace(bound, stable_end=min(bound.stable_end, limits.get(tp, bound.stable_end)))
        for tp, bound in bounds.items()
    }


def lag(offsets: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]) -> int:
    """Offsets that are stable and not yet read."""
    return sum(lag_by_partition(offsets, bounds).values())


def lag_by_partition(
    offsets: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]
) -> dict[str, int]:
    """The same for each "topic/partition"."""
    return {mark_name(*tp): max(0, bounds[tp].stable_end - offset) for tp, offset in offsets.items()}


def partitions_of(infos: Iterable[TopicInfo]) -> list[TopicPartition]:
    """All partitions of topics, sorted."""
    return sorted([(info.name, partition) for info in infos for partition in range(info.partitions)])


def input_partitions(flow: CompiledFlow, infos: Topics) -> list[TopicPartition]:
    """The input partitions that a flow reads, sorted: all, or those of a reader."""
    every = partitions_of([infos[topic] for topic in flow.input_topics])
    return [tp for tp in every if flow.reads_partition(tp[1])]


def group_commits(flow: CompiledFlow, log: RetryingLog, infos: Topics) -> dict[TopicPartition, Commit]:
    """What a flow's group has committed, in all partitions that it reads."""
    return log.committed(flow.declared_name, input_partitions(flow, infos))


def is_committed(flow: CompiledFlow, log: RetryingLog, infos: Topics, plan_id: str) -> bool:
    """Whether the group's commits prove that a plan is finished."""
    commits = group_commits(flow, log, infos)
    return any(parse_metadata(commit).get("id") == plan_id for commit in commits.values())


def publish(flow: CompiledFlow, log: Log, action: Callable[[], Done]) -> Done:
    """Publish. If it fails, look whether an output topic is too small now, for which waiting would not help, or gone."""
    try:
        return action()
    except (ConfigurationError, Unavailable):
        describe(flow, log, running=True)
        raise


def commit(
    log: Log,
    send: Callable[[Mapping[TopicPartition, Commit]], None],
    commits: Mapping[TopicPartition, Commit],
    ids: Mapping[str, str],
) -> None:
    """Commit a group's offsets, in the partitions that still exist.

    A topic that was created again with fewer partitions takes no commit for those that are gone. The broker then
    answers as if it were away, so a plain retry would never end.

    Args:
        log: Kafka.
        send: commits them, for a group or as its member.
        commits: partition -> offset and metadata.
        ids: topic -> id of the topic that the offsets belong to, hexadecimal.

    Raises:
        Unavailable: no answer.
    """
    try:
        send(commits)
    except Unavailable:
        infos = log.describe(ids)
        there = {tp: commit for tp, commit in commits.items() if _is_there(tp, ids, infos)}
        if len(there) == len(commits):
            raise
        if there:
            send(there)


def _is_there(tp: TopicPartition, ids: Mapping[str, str], infos: Topics) -> bool:
    info = infos.get(tp[0])
    return info is not None and info.topic_id.hex() == ids[tp[0]] and tp[1] < info.partitions


METADATA_LENGTH = 4_095
"""Characters of commit metadata that a broker takes by default."""
# Its limit (`offset.metadata.max.bytes`) is 4,096, and the client sends the closing NUL, too.


def parse_metadata(commit: Commit | None) -> dict[str, object]:
    """The content of a commit's metadata; empty when it is not ours."""
    try:
        metadata = json.loads(commit.metadata) if commit and commit.metadata else {}
    except (ValueError, RecursionError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def encode_marks(marks: PartitionMarks) -> str:
    """Marks as a text without quotes, of about 40 characters for each lane.

    >>> marks = PartitionMarks("robot.raw", bytes(16), 0)
    >>> marks.accept_raw(7)
    True
    >>> decode_marks(encode_marks(marks)) == marks
    True
    """
    return b85encode(zlib.compress(marks.to_text().encode(), 9)).decode()


def decode_marks(text: object) -> PartitionMarks | None:
    """What `encode_marks` was given; None for what it did not write, such as nothing at all."""
    if not isinstance(text, str):
        return None
    try:
        return PartitionMarks.from_json(json.loads(zlib.decompress(b85decode(text))))
    except (ValueError, zlib.error, KeyError, TypeError, RecursionError):
        return None
