"""From payloads to envelopes: what one input gives for one output and key goes out together.

`.to()` gathers a *collection*: one envelope with several payloads, applied as a whole or not at all.
Ordinals count an input's envelopes of one (output, shard) over all partitions, in the order of their
first unit, and `of` says how many they are: so they are all known before the first is encoded.

Source: KUKA's rule that flat-mapped events stay together as one collection under their one offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqe_chain.context import Origin
from sqe_chain.errors import OutputTooLarge, PoisonError
from sqe_chain.flow import Flow
from sqe_chain.partitioner import Partitioner
from sqe_chain.ports import Headers, Output
from sqe_chain.steps import Made
from sqe_chain.template import OutputTemplate

Collection = tuple[bytes | None, str, list[bytes | None]]
"""Key, type name and payloads of one envelope."""

RECORD_OVERHEAD = 512
"""Bytes of a record batch's header, and slack, that `max.message.bytes` has to hold beside a record."""


class Gatherer:
    """Turns payloads into records, for one shard. One per task and (stage, state partition).

    Args:
        flow: the flow.
        shard: the state partition that publishes; None before the first stage.
        max_bytes: topic -> `max.message.bytes`; a topic that is absent is not checked.
    """

    def __init__(self, flow: Flow, shard: int | None, max_bytes: Mapping[str, int]) -> None:
        self._flow = flow
        self._shard = shard
        self._targets = {
            node.index: (
                f"{flow.name}/{node.name}",
                node.topics[0],
                Partitioner(node.partitions),
                node.partitions,
                max_bytes.get(node.topics[0], 1 << 62) - RECORD_OVERHEAD,
                node.headers and shard is None,
            )
            for node in flow.outputs()
        }
        self._templates: dict[tuple[int, int], OutputTemplate] = {}
        self._previous: dict[tuple[int, int], bytes] = {}
        self._written: list[tuple[int, int, bytes]] = []  # by this input; counts only if nothing of it fails

    def gather(self, made: Sequence[Made], origin: Origin) -> list[Output]:
        """The records for all payloads that one input gave here.

        Args:
            made: payloads in the order of their units.
            origin: the input.

        Raises:
            PoisonError: payloads of one output and key have several types.
            OutputTooLarge: a record is larger than its topic accepts.
            ChainTooLong: the input has 32 links already.
        """
        self._written.clear()
        if len(made) == 1:
            output, key, type_name, payload = made[0]
            outputs = self._encode(output, [(key, type_name, [payload])], origin)
        else:
            outputs = []
            for output, collections in self._collections(made, origin).items():
                outputs += self._encode(output, list(collections.values()), origin)
        for lane, partition, written in self._written:
            if written > self._previous.get((lane, partition), b""):
                self._previous[lane, partition] = written
        return outputs

    def _collections(self, made: Sequence[Made], origin: Origin) -> dict[int, dict[bytes | None, Collection]]:
        """Payloads by output and key, both in the order of their first unit."""
        found: dict[int, dict[bytes | None, Collection]] = {}
        for output, key, type_name, payload in made:
            by_key = found.setdefault(output, {})
            collection = by_key.get(key)
            if collection is None:
                by_key[key] = key, type_name, [payload]
            elif collection[1] != type_name:
                raise PoisonError(
                    f"output {self._flow.nodes[output].name!r} got payloads of two types for one key from "
                    f"{origin}: {collection[1]} and {type_name}"
                )
            else:
                collection[2].append(payload)
        return found

    def _encode(self, index: int, collections: list[Collection], origin: Origin) -> list[Output]:
        """The records of one output, for one input."""
        name, topic, partitioner, partitions, limit, with_headers = self._targets[index]
        template = self._templates.get((origin.lane, index)) or self._template(index, origin)
        chain, position, timestamp_ms = origin.chain_bytes, origin.position, origin.timestamp_ms
        headers: Headers | None = origin.headers if with_headers else None
        lane, of = template.lane, len(collections)
        written: dict[int, bytes] = {}
        outputs: list[Output] = []
        for ordinal, (key, type_name, payloads) in enumerate(collections):
            partition = origin.place.partition % partitions if key is None else partitioner(key)
            previous = written.get(partition) or self._previous.get((lane, partition), b"")
            value, own = template.encode(
                chain,
                origin.offset,
                origin.epoch,
                ordinal,
                of,
                position,
                timestamp_ms,
                key,
                type_name,
                payloads,
                previous,
            )
            if len(value) + len(key or b"") + (headers_size(headers) if headers else 0) > limit:
                raise OutputTooLarge(
                    f"output {name!r}: {origin} gave a record of {len(value)} bytes, topic {topic!r} accepts "
                    f"{limit + RECORD_OVERHEAD} (max.message.bytes); raise it, or split the payloads over keys"
                )
            if own > previous:
                written[partition] = own
            outputs.append((topic, partition, key, value, headers, timestamp_ms))
        self._written += [(lane, partition, own) for partition, own in written.items()]
        return outputs

    def _template(self, index: int, origin: Origin) -> OutputTemplate:
        place = origin.place
        template = self._templates[origin.lane, index] = OutputTemplate(
            lane=origin.stated_lane,
            topic=place.topic,
            topic_id=place.topic_id,
            partition=place.partition,
            output=self._targets[index][0],
            shard=self._shard,
        )
        return template


def headers_size(headers: Headers) -> int:
    """Bytes that a record's headers take, with room for their lengths."""
    return sum(len(name.encode()) + len(content or b"") + 10 for name, content in headers)
