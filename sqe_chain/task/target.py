"""What an output remembers of what it wrote, and what it makes of each lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqe_chain.envelope.head import MAX_TIMESTAMP_MS
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.envelope.revisions import FIRST, REVISION_HEADER, name_with
from sqe_chain.envelope.template import OutputTemplate, WrittenLane, key_field
from sqe_chain.errors import OutputRefused, OutputTooLarge, RepeatedPosition
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import Origin, TopicIdPartition
from sqe_chain.flow.nodes import OutputNode
from sqe_chain.ports import Headers, TopicInfo
from sqe_chain.ports.accepting import refusal

RECORD_OVERHEAD = 512
"""Bytes of a record batch's header, and slack, that `max.message.bytes` has to hold beside a record."""

Saved = dict[WrittenLane, tuple[int, dict[int, bytes]]]
"""What `offset` and `previous` of lanes were before something was written."""

_KNOWN_KEYS = 200_000
_SHOWN = 60
"""Bytes of a key in errors."""


class Target:
    """One output, for one shard."""

    def __init__(
        self,
        flow: CompiledFlow,
        node: OutputNode,
        shard: int | None,
        info: TopicInfo | None,
        suffix: str,
        watermark_ms: int,
        revision: int = FIRST,
    ) -> None:
        family = name_with(f"{flow.declared_name}/{node.name}", revision)
        self.name = family + suffix
        self.revised: Headers = [(REVISION_HEADER, family.encode())] if revision != FIRST else []
        self.topic, self.index, self.headed = node.topic, node.index, flow.headed
        self.partitions = node.partitions
        self.process_id = node.process_id
        self.carrier = node.carrier
        # Without information a redo is at work: it publishes what was published, whatever the topic accepts now.
        self.largest = (info.max_message_bytes if info else 1 << 62) - RECORD_OVERHEAD
        self.info = info
        self.needs_key = info is not None and info.compacted
        # What a stage publishes comes from many inputs, and whose headers should it have?
        self.headers = node.headers and shard is None
        self.plain = node.carrier != "value" or node.process_id is not None  # a value is one payload
        self.separate = node.separate or self.plain
        self.keys: dict[bytes, tuple[int, bytes]] = {}
        self._shard = shard
        self._watermark_ms = min(watermark_ms, MAX_TIMESTAMP_MS)  # the latest that can be written
        self.lanes: dict[int, WrittenLane] = {}
        """Lane as marks use it -> what is written for its inputs."""

    def take(self, tp: TopicIdPartition, lane: WrittenLane, offset: int) -> None:
        """Note that the outputs of an input are made: all of them, and after those of inputs before it on its lane.

        So no position is written twice. Those of one input differ by their ordinals, those of two inputs by the inputs' own.
        Nobody else writes the lane in the batch.

        Raises:
            RepeatedPosition: outputs of this input, or of a later one on its lane, were made before.
        """
        # Readers take a position at or before the last one of a lane for a replay, and would skip this output in
        # silence.
        if offset <= lane.offset:
            raise RepeatedPosition(
                f"output {self.name!r}: {tp.topic}[{tp.partition}]@{offset} gave more after what it or a later input had given was "
                f"gathered (lane {lane.template.lane:016x}, up to offset {lane.offset}). Expected all that an input gives together, and "
                "inputs of a lane in their order: readers would take what comes now for a replay. A stage of your own kind must not go "
                "back to an input; otherwise this is a defect of sqe-chain: report it with the flow"
            ).at(tp.topic, tp.partition, offset)
        lane.offset = offset

    def key(self, key: bytes) -> tuple[int, bytes]:
        """The partition of a key, and its field in the envelope; remembered in `keys`."""
        # Forgetting all costs a hash for each key again, but a hit costs no bookkeeping.
        if len(self.keys) >= _KNOWN_KEYS:
            self.keys.clear()
        known = self.keys[key] = partition_of(key, self.partitions), key_field(key)
        return known

    def places(self, keys: Sequence[bytes | None], partition: int) -> list[tuple[int, bytes]]:
        """The partitions of keys, and their fields in envelopes.

        Args:
            keys: the keys.
            partition: the partition of their inputs, which decides about records without a key.
        """
        known: Any = self.keys.get
        places: list[Any] = list(map(known, keys))
        if all(places):
            return places
        # By the input's partition: the same in every attempt, and each lane has one output partition.
        none = partition % self.partitions, b""
        for row, key in enumerate(keys):
            if not places[row]:
                places[row] = none if key is None else known(key) or self.key(key)
        return places

    def lane(self, tp: TopicIdPartition, lane: int, stated: int, saved: Saved) -> WrittenLane:
        """What is written for inputs of a lane.

        Args:
            tp: where they are read.
            lane: as marks use it.
            stated: as their envelopes state it; 0 at the origin.
            saved: takes what it was before.
        """
        written = self.lanes.get(lane)
        if written is None:
            template = OutputTemplate(
                lane=stated,
                topic=tp.topic,
                topic_id=tp.topic_id,
                partition=tp.partition,
                output=self.name,
                shard=self._shard,
                watermark_ms=self._watermark_ms,
            )
            written = self.lanes[lane] = WrittenLane(template)
        # Before the first change: `_restore` takes the lane back if anything of this gathering fails.
        if written not in saved:
            saved[written] = written.offset, written.previous.copy()
        return written

    def check(self, origin: Origin, key: bytes | None, timestamp_ms: int | None, now_ms: int) -> None:
        """Raise OutputRefused for a record that the topic refuses."""
        reason = refusal(self.info, key, timestamp_ms, now_ms) if self.info else None
        if reason:
            raise OutputRefused(
                f"output {self.name!r}: {origin} gave a record {_of(key)}; topic {self.topic!r} {reason}"
            )

    def too_large(self, origin: Origin, key: bytes | None, size: int) -> OutputTooLarge:
        """The error for a record that the topic does not accept."""
        return OutputTooLarge(
            f"output {self.name!r}: {origin} gave a record {_of(key)} of {size} bytes, topic {self.topic!r} accepts "
            f"{self.largest + RECORD_OVERHEAD} (max.message.bytes); raise it, or split the payloads over keys"
        )


def _of(key: bytes | None) -> str:
    """Which key a record has, for errors: that of a state which has grown, for instance."""
    return "without a key" if key is None else f"of key {key[:_SHOWN]!r}"


def headers_size(headers: Headers) -> int:
    """Bytes that a record's headers take, with room for their lengths."""
    return sum(len(name.encode()) + len(content or b"") + 10 for name, content in headers)
