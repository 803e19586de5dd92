"""The ends of a stream: in a topic, where the values of an input are published under its position, and in a table."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

from sqe_chain.codecs import Codec
from sqe_chain.envelope.revisions import FIRST, MAX_REVISION
from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import (
    MAX_PARTITIONS,
    TOPIC_LENGTH,
    caller_line,
    check_bool,
    check_choice,
    check_int,
    check_name,
    check_topic,
    output_codec,
    refused_at,
)
from sqe_chain.flow.fields import declared_key
from sqe_chain.flow.functions import UserFunction
from sqe_chain.flow.nodes import Carrier, OutputNode
from sqe_chain.flow.part import StreamPart
from sqe_chain.flow.signatures import OutputKeyInContext, OutputKeyOf, Value
from sqe_chain.wings import WINGS, load


class OutputOptions(TypedDict, total=False):
    """What an output may be given besides its key."""

    codec: Codec[Any] | str | None
    carrier: Carrier
    name: str | None
    headers: bool
    separate: bool
    revision: int


class PublishSteps(StreamPart[Value]):
    """The ends of a stream, in a topic or in a table."""

    __slots__ = ()

    @overload
    def to(
        self,
        topic: str,
        *,
        partitions: int,
        key: str | OutputKeyOf[Value] | None = None,
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

    def to(  # noqa: PLR0913 - a declaration names what it needs
        self,
        topic: str,
        *,
        partitions: int,
        key: UserFunction | str | None = None,
        codec: Codec[Any] | str | None = None,
        carrier: Carrier = "value",
        name: str | None = None,
        headers: bool = True,
        separate: bool = False,
        revision: int = 1,
    ) -> None:
        """Publish: the values of one input and key become one envelope.

        Args:
            topic: output topic.
            partitions: N of ``murmur2(key) % N``; permanent. To grow, give the output a new name.
            key: ``value -> bytes | str | None``, or the name of a field; without it the stage's key, else the message's.
            codec: a codec, or the name of one; by default the one that takes the type of each value.
            carrier: where the chain is: in the "value", which is then an envelope; or in the "headers". Then the value is the
                bare payload, for readers without sqe-chain (`sqe_chain.envelope.carrier`), and each payload is a record.
            name: permanent name of the output; by default the topic.
            headers: pass the input's headers on (outputs before any stage only).
            separate: an envelope for each value, also where one input gives several with one key; permanent. All of them have the time
                of the input, which is their place in the order of times.
            revision: one more each time that what was published is corrected under its name; `sqe-chain correct` begins it. All
                outputs of a flow have the same one.

        Raises:
            FlowError: a name clash, a loop into the flow's own input, partitions below 1, or an unknown codec.
        """
        where = caller_line()
        check_choice("carrier", carrier, ("value", "headers"), where)
        check_int("revision", revision, 1, MAX_REVISION, where)
        return self._to(
            topic,
            where,
            partitions,
            key,
            name,
            headers=headers,
            encoding=output_codec(topic, codec, where),
            carrier=carrier,
            separate=separate,
            revision=revision,
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

    def ingest(  # noqa: PLR0913 - a declaration names what it needs
        self,
        table: str,
        *,
        partition_key: str | Sequence[str],
        row_key: str | Sequence[str],
        columns: Mapping[str, str] | Sequence[str | object] | None = None,
        payload: type | None = None,
        at: str | os.PathLike[str] | None = None,
        options: Mapping[str, str] | None = None,
        version: int = 0,
        replaces: bool = False,
        max_row_bytes: int = 16 * 1024 * 1024,
        store: str | None = None,
    ) -> None:
        """Write each value as a row of a table in Delta Lake or Cassandra: exactly once, at the end of the batch (docs/tables.md).

        Partition key and row key identify a row; a later row replaces an earlier one for readers. What is not a row
        of the table goes to the poison policy.

        Args:
            table: name of the table and of the stage; permanent.
            partition_key: the column, or columns, by which rows are spread over state partitions and lie together.
            row_key: the column, or columns, by which the rows of a partition key are sorted and identified.
            columns: name -> type (see `sqe_chain.ext.tables.Column`); or names of fields, and `Column` objects. By default all
                fields of the values' type: a protobuf message, a msgspec Struct or a dataclass. Columns may be added later.
            payload: type of the values, where the flow cannot know it: after `map`, `flat_map` and stages.
            at: the directory or address under which the table gets a directory of its own, or a keyspace
                (``cassandra://host[:port]/keyspace``, as for stores). By default the environment variable SQE_CHAIN_TABLES
                when the flow is declared, else the directory ``tables``.
            options: logins and settings of an object store, for delta-rs; or options of stores in Cassandra.
            version: of the table, from 0: another one is another table, under the stage name ``TABLE.vN``.
            replaces: rows are replayed in order to replace what is there: no chunk is skipped because it looks the same.
            max_row_bytes: largest row, in bytes of its cells.
            store: name of the store for the stage's headers; by default the service's.

        Raises:
            FlowError: a name clash, a field that cannot be a column, a key that is none, or a stage after `changes()`.
        """
        where = caller_line()
        check_name("table", table, where)
        with refused_at(f"{where}: table {table!r}"):
            declare = load(WINGS, "ingest", "tables")
        name, kind, key = declare(
            where,
            table,
            payload or self._value_type(),
            partition_key=partition_key,
            row_key=row_key,
            columns=columns,
            at=at,
            options=options,
            version=version,
            replaces=replaces,
            max_row_bytes=max_row_bytes,
        )
        self._stage(name, kind, where, store=store, key=key)

    def _to(
        self,
        topic: str,
        where: str,
        partitions: int,
        key: UserFunction | str | None,
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
            if other.revision != more.get("revision", FIRST):
                raise FlowError(
                    f"{where}: output {output!r} has revision {more.get('revision', FIRST)}, output {other.name!r} has {other.revision} "
                    f"({other.declared_at}). Expected one revision for all outputs of a flow, which are corrected together. Declare the same"
                )
        if topic in self.flow.so_far().input_topics:
            raise FlowError(f"{where}: flow {self.flow.name!r} reads {topic!r} itself: that would be a loop")
        check_int("partitions", partitions, 1, MAX_PARTITIONS, where)
        for what in ("headers", "separate"):
            check_bool(what, more.get(what, False), where)
        self.flow.add(
            OutputNode,
            where,
            self.node,
            key=declared_key(key, self._value_type(), where),
            name=output,
            topic=topic,
            partitions=partitions,
            **more,
        )
