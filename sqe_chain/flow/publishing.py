"""The end of a stream in a topic: the values of an input are published under its position."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack, overload

from sqe_chain.codecs import Codec
from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import (
    TOPIC_LENGTH,
    caller_line,
    check_bool,
    check_choice,
    check_int,
    check_name,
    check_topic,
    declared,
    output_codec,
)
from sqe_chain.flow.functions import OutputKeyInContext, OutputKeyOf, UserFunction, Value
from sqe_chain.flow.nodes import Carrier, OutputNode
from sqe_chain.flow.part import StreamPart
from sqe_chain.flow.topology import MAX_PARTITIONS


class OutputOptions(TypedDict, total=False):
    """What an output may be given besides its key."""

    codec: Codec[Any] | str | None
    carrier: Carrier
    name: str | None
    headers: bool


class PublishSteps(StreamPart[Value]):
    """The end of a stream in a topic."""

    __slots__ = ()

    @overload
    def to(
        self,
        topic: str,
        *,
        partitions: int,
        key: OutputKeyOf[Value] | None = None,
        **options: Unpack[OutputOptions],
    ) -> None: ...

    @overload
    def to(
        self,
        topic: str,
        *,
        partitions: int,
        key: OutputKeyInContext[Value],
        **options: Unpack[OutputOptions],
    ) -> None: ...

    def to(
        self,
        topic: str,
        *,
        partitions: int,
        key: UserFunction | None = None,
        codec: Codec[Any] | str | None = None,
        carrier: Carrier = "value",
        name: str | None = None,
        headers: bool = True,
    ) -> None:
        """Publish: the values of one input and key become one envelope.

        Args:
            topic: output topic.
            partitions: N of ``murmur2(key) % N``; permanent. To grow, give the output a new name.
            key: ``value -> bytes | str | None``; without it the stage's key, else the message's.
            codec: a codec, or the name of one; by default the one that takes the type of each value.
            carrier: where the chain is: in the "value", which is then an envelope; or in the "headers". Then the value is the
                bare payload, for readers without sqe-chain (`sqe_chain.envelope.carrier`), and each payload is a record.
            name: permanent name of the output; by default the topic.
            headers: pass the input's headers on (outputs before any stage only).

        Raises:
            FlowError: a name clash, a loop into the flow's own input, partitions below 1, or an unknown codec.
        """
        where = caller_line()
        check_choice("carrier", carrier, ("value", "headers"), where)
        return self._to(
            topic,
            where,
            partitions,
            key,
            name,
            headers=headers,
            encoding=output_codec(topic, codec, where),
            carrier=carrier,
        )

    def to_sqe(
        self, topic: str, *, partitions: int, process_id: int, name: str | None = None, headers: bool = True
    ) -> None:
        """Publish bare payloads under SQE's record keys, for readers that only understand those.

        A key holds process, source partition and source offset, and readers take what is beyond the highest offset that they
        have seen. So an input may give at most one payload here, before any stage, and the flow must read one topic only. The
        output partition is the source partition modulo `partitions`. Replays of services upstream are not written.

        Args:
            topic: output topic.
            partitions: N; permanent.
            process_id: `sqe_chain.envelope.replays.process_id` of the name by which these readers know this flow.
            name: permanent name of the output; by default the topic.
            headers: pass the input's headers on.

        Raises:
            FlowError: a stream after a stage, another output with these keys in the topic, a loop, a name that exists, or a wrong
                number.
        """
        where = caller_line()
        check_int("process_id", process_id, -(1 << 63), (1 << 63) - 1, where)
        if self.flow.so_far().depths[self.node.index]:
            raise FlowError(
                f"{where}: to_sqe({topic!r}) follows a stage, whose results do not come in the order of source offsets. "
                "Readers of SQE's record keys would take some for replays. Publish them with to(), and let another flow write them "
                "with to_sqe(), before any stage"
            )
        for other in self.flow.so_far().outputs:
            if (other.topic, other.process_id) == (topic, process_id):
                raise FlowError(
                    f"{where}: topic {topic!r} has an output with process_id={process_id} already ({other.declared_at}): readers would take "
                    "one of the two for replays of the other. Give each a process id of its own, or a topic"
                )
        self._to(topic, where, partitions, None, name, headers=headers, process_id=process_id)

    def _to(
        self,
        topic: str,
        where: str,
        partitions: int,
        key: UserFunction | None,
        name: str | None,
        **more: Any,  # noqa: ANN401 - the fields of OutputNode
    ) -> None:
        check_topic(topic, where)
        output = topic if name is None else name
        check_name("output", output, where, TOPIC_LENGTH)
        for other in self.flow.so_far().outputs:
            if other.name == output:
                raise FlowError(
                    f"{where}: output {output!r} already exists at {other.declared_at}; give this one a name=..."
                )
        if topic in self.flow.so_far().input_topics:
            raise FlowError(f"{where}: flow {self.flow.name!r} reads {topic!r} itself: that would be a loop")
        check_int("partitions", partitions, 1, MAX_PARTITIONS, where)
        check_bool("headers", more.get("headers"), where)
        self.flow.add(
            OutputNode,
            where,
            self.node,
            key=key,
            key_takes_context=key is not None and declared("key", key, 1, where).takes_context,
            name=output,
            topic=topic,
            partitions=partitions,
            **more,
        )
