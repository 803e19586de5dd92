"""`Flow`: what users create, and add sources to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Generic, Literal, TypedDict, Unpack, overload

from sqe_chain.codecs import Codec
from sqe_chain.codecs.change import Row
from sqe_chain.errors import FlowError
from sqe_chain.flow.context import Context
from sqe_chain.flow.declaration import (
    TOPIC_LENGTH,
    caller_line,
    check_bool,
    check_choice,
    check_name,
    check_topic,
    declared,
    format_of_files,
    payload_codec,
    refused_at,
    row_codec,
)
from sqe_chain.flow.event_time import NoTimestamp
from sqe_chain.flow.fields import declared_value
from sqe_chain.flow.functions import DeclaredFunction, UserFunction
from sqe_chain.flow.nodes import Nulls, SourceNode
from sqe_chain.flow.picture import as_svg, as_text
from sqe_chain.flow.shapes import is_generic
from sqe_chain.flow.signatures import Made, Payload, TimeOf
from sqe_chain.flow.stream import Changes, CustomStage, Filter, Stage, Stream, WindowStage
from sqe_chain.flow.topology import Topology
from sqe_chain.ports.files import HASH_DIGITS, Csv, FileSource, Format
from sqe_chain.wings import needing

__all__ = ["Changes", "CustomStage", "Filter", "Flow", "Stage", "Stream", "WindowStage"]

FilePaths = str | PathLike[str] | Iterable[str | PathLike[str]]
"""A path or a pattern of paths, or several."""

MAX_SOURCE_NAME = TOPIC_LENGTH - 1 - HASH_DIGITS
"""Characters of a name of files: with a dot and a hash it is a topic."""


class TimeOptions(TypedDict, Generic[Payload], total=False):
    """What gives the values of a source their event times."""

    timestamp: TimeOf[Payload] | None
    no_timestamp: NoTimestamp


class SourceOptions(TimeOptions[Payload], Generic[Payload], total=False):
    """What a source of topics may be given besides its payloads."""

    raw: bool
    nulls: Literal["poison", "skip"]


class FileOptions(TimeOptions[Payload], Generic[Payload], total=False):
    """What a source of files may be given besides its payloads and paths."""

    file_format: Format | None
    csv: Csv | None


@dataclass
class Flow(Topology):
    """A named flow. Names are permanent: a renamed flow or output is another writer.

    Args:
        name: flow name, ``[A-Za-z0-9._-]``; also the Kafka group id.
        poison: what happens to inputs that cannot be decoded or on which user code fails. `stop`: the service stops. `dead_letter`:
            they go to a topic of their own. `skip`: they are counted, and ignored. `park`: they wait in the store, with what follows
            them of the same key, until they are released.
        dead_letter_topic: where `dead_letter` sends them; by default ``<name>.dead-letters``.
        dead_letter_partitions: partitions used there.
        state_partitions: number P of state partitions; fixed when the flow first starts.
        max_lanes: lanes that one input partition may carry.
        recreated: what to do when known roots arrive again through an intermediate topic that was recreated.
        allow_compacted: accept inputs with `cleanup.policy=compact`.
        traces: outputs of stages bear a `traceparent`, by which a trace leads on to the records that they were made of
            (docs/tracing.md). Outputs before any stage forward the input's headers anyway.
        transactional: all that a batch publishes is one Kafka transaction. So readers of committed records that know nothing of positions
            get each output once, in order (docs/transactions.md). The flow then has a topic ``<name>.published``, and a store.

    Raises:
        FlowError: a name or number is out of bounds.
    """

    @overload
    def source(
        self,
        topics: str | Iterable[str],
        payload: type[Payload],
        *,
        codec: Codec[Payload] | str | None = None,
        **options: Unpack[SourceOptions[Payload]],
    ) -> Stream[Payload]: ...

    @overload
    def source(
        self,
        topics: str | Iterable[str],
        payload: Codec[Payload],
        **options: Unpack[SourceOptions[Payload]],
    ) -> Stream[Payload]: ...

    @overload
    def source(
        self,
        topics: str | Iterable[str],
        payload: Callable[[bytes], Made],
        **options: Unpack[SourceOptions[Made]],
    ) -> Stream[Made]: ...

    @overload
    def source(
        self,
        topics: str | Iterable[str],
        payload: Callable[[bytes, Context], Made],
        **options: Unpack[SourceOptions[Made]],
    ) -> Stream[Made]: ...

    @overload
    def source(
        self,
        topics: str | Iterable[str],
        payload: Callable[[bytes | None], Made] | Callable[[bytes | None, Context], Made],
        *,
        nulls: Literal["decode"],
        raw: bool = False,
        **options: Unpack[TimeOptions[Made]],
    ) -> Stream[Made]: ...

    def source(
        self,
        topics: str | Iterable[str],
        payload: type[Any] | Codec[Any] | UserFunction | None = None,
        *,
        codec: Codec[Any] | str | None = None,
        raw: bool = False,
        nulls: Nulls = "poison",
        timestamp: UserFunction | str | None = None,
        no_timestamp: NoTimestamp = "poison",
    ) -> Stream[Any]:
        """Read one or more topics.

        Args:
            topics: topic name, or several with the same payloads.
            payload: type of the payloads: a protobuf message, a `msgspec.Struct`, a dataclass, dict, bytes, ...; a codec of such a
                type; or a decoder ``bytes -> value``.
            codec: a codec, or its name ("protobuf", "json", "bytes", one of your own); by default the one that takes
                this type.
            raw: the messages carry no envelope: their own coordinates are the root.
            nulls: what becomes of null values: "decode" passes them to the decoder, "skip" ignores them, "poison" treats
                them as poison.
            timestamp: ``value -> time``, or the name of a field: the event time of an input. It is milliseconds
                since 1970, text in ISO 8601, or a datetime, the last two with their time zone. Windows and filters go by it,
                and outputs keep it. Without it, event time is the record's time, or the envelope's. For a value with rows of
                several times, return the earliest, and give stages `time=` (docs/exploded-times.md).
            no_timestamp: a value for which `timestamp` gives no time is "poison", or keeps the time of its "record". What
                the function raises is poison.

        Raises:
            FlowError: a topic is read twice, or a name or type is wrong.
        """
        where = caller_line()
        names = self._topics(topics, where)
        what = f"source {names[0]!r}"
        codec_of_type, decoder = _payload(
            what, f"{what} needs the type of its payloads", payload, codec, where
        )
        check_bool("raw", raw, where)
        check_choice("nulls", nulls, ("poison", "skip", "decode"), where)
        if nulls == "decode" and decoder is None:
            raise FlowError(f"{where}: nulls='decode' needs a decoder function that accepts None")
        if timestamp is None and no_timestamp != "poison":
            raise FlowError(
                f"{where}: no_timestamp={no_timestamp!r} is for values without timestamp(value). Give that"
            )
        return self._read(
            where,
            decoder,
            timestamp,
            no_timestamp,
            topics=names,
            codec=codec_of_type,
            raw=raw,
            nulls=nulls,
        )

    def changes_of(
        self,
        topic: str,
        row: type[Row],
        *,
        key: str | Iterable[str],
        codec: Codec[dict[str, Any]] | None = None,
        name: str | None = None,
        store: str | None = None,
    ) -> Changes[Row]:
        """Read the changes of a table in a database, as Debezium publishes them: each once, with the row before.

        It is a stage: it stores the last row and position of each key. docs/database-changes.md states what it promises.

        Args:
            topic: name of the table's topic: by default ``topic.prefix``, schema and table, with dots.
            row: type of the rows: a `msgspec.Struct`, a dataclass, or dict. Columns that it does not declare are ignored.
            key: the columns of the table's primary key. The text of their values is the stream's key; of several, a list as JSON.
            codec: what reads events and their keys as dicts: ``Avro(dict)`` for Avro by a schema registry. By default they are JSON.
            name: stage name; permanent. By default the topic.
            store: name of the store for this stage; by default the service's.

        Raises:
            FlowError: a name exists, a topic is read twice, JSON does not take the type, or the codec is none of dicts.
        """
        where = caller_line()
        columns = (key,) if isinstance(key, str) else tuple(key)
        if not columns or not all(isinstance(column, str) and column for column in columns):
            raise FlowError(f"{where}: key={key!r}; the name of a column, or several names")
        check_topic(topic, where)
        names = self._topics(topic, where)
        what = f"the table of topic {topic!r}"
        if codec is not None and (
            codec.python_type is not dict or codec.wants_headers or codec.has_reader_schema
        ):
            raise FlowError(
                f"{where}: {what} cannot be read by {codec!r}. Expected a codec of dict that reads payloads without headers, and without a "
                "schema= of its own, since keys have another one. Give codec=Avro(dict), and the type of the rows before it"
            )
        rows, _ = _payload(what, f"{what} needs the type of its rows", row, None, where)
        if rows is None or rows.name != "json" or not (row is dict or rows.fields()):
            raise FlowError(
                f"{where}: {what} takes rows that are objects of JSON, got {row!r}. Give a dataclass, a msgspec.Struct, or dict"
            )
        with refused_at(where), needing("Change events", "json"):
            from sqe_chain.codecs import debezium  # noqa: PLC0415 - protobuf works without msgspec
        decoder = declared("decoder", debezium.EventDecoder(columns), 1, where) if codec is None else None
        encoded = None if codec is None else debezium.EventCodec(codec, columns)
        events = self._read(
            where, decoder, debezium.time_of, "poison", topics=names, codec=encoded, raw=True, nulls="skip"
        )
        stage = events.key_by(debezium.key_of).stage(
            topic if name is None else name, "changes", store=store, rows=rows
        )
        return Changes(self, stage.node)

    @overload
    def files(
        self, name: str, payload: type[Payload], paths: FilePaths, **options: Unpack[FileOptions[Payload]]
    ) -> Stream[Payload]: ...

    @overload
    def files(
        self,
        name: str,
        payload: Callable[[bytes], Made] | Callable[[bytes, Context], Made],
        paths: FilePaths,
        **options: Unpack[FileOptions[Made]],
    ) -> Stream[Made]: ...

    def files(
        self,
        name: str,
        payload: type[Any] | UserFunction | None,
        paths: FilePaths,
        *,
        file_format: Format | None = None,
        csv: Csv | None = None,
        timestamp: UserFunction | str | None = None,
        no_timestamp: NoTimestamp = "poison",
    ) -> Stream[Any]:
        """Read the rows of files: Parquet, CSV, or lines of JSON. Each row of each content counts once.

        A file's content is its identity: a second load of the same content adds nothing, and all rows of a changed file are new.

        Args:
            name: of the source; permanent: together with a content's hash it is the topic of the rows.
            payload: type of a row: a `msgspec.Struct`, a dataclass, dict, a protobuf message; or a decoder of a row as JSON in
                UTF-8. Columns that the type does not have are ignored.
            paths: path of a file, or a pattern with ``*``, ``?``, ``[...]`` and ``**``; or several of them. They can be replaced
                when the flow is run.
            file_format: of all of them; by default that of their suffix (.parquet, .csv, .jsonl, .ndjson; text also
                with .gz or .zst).
            csv: the dialect of CSV files; by default that of RFC 4180, with the names of columns in the first row.
            timestamp: see `source`. Rows have no time but this.
            no_timestamp: see `source`; the time of the "record" is unknown.

        Raises:
            FlowError: a name or type is wrong, or the name is that of another input.
        """
        where = caller_line()
        check_name("source", name, where, MAX_SOURCE_NAME)
        self._topics(name, where)
        given = tuple(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else (paths,)
        patterns = tuple(fspath(path) for path in given if isinstance(path, str | PathLike))
        if (
            not patterns
            or len(patterns) < len(given)
            or not all(isinstance(path, str) and path for path in patterns)
        ):
            raise FlowError(f"{where}: files {name!r} need paths, or patterns of them; got {paths!r}")
        if csv is not None and not isinstance(csv, Csv):
            raise FlowError(f"{where}: csv={csv!r}; a Csv of sqe_chain.flow, or None")
        what = f"files {name!r}"
        source = FileSource(name, patterns, format_of_files(what, patterns, file_format, where), csv or Csv())
        codec, decoder = _payload(what, f"{what} need the type of a row", payload, None, where)
        rows = None if codec is None else row_codec(what, codec, source.format, where)
        return self._read(
            where,
            decoder,
            timestamp,
            no_timestamp,
            topics=(name,),
            codec=rows,
            raw=True,
            nulls="poison",
            files=source,
        )

    def to_text(self) -> str:
        """The flow as a tree of text, sources first: what ``sqe-chain show`` prints."""
        return as_text(self.so_far())

    def to_svg(self) -> str:
        """The flow as a picture, from left to right."""
        return as_svg(self.so_far())

    def _repr_html_(self) -> str:
        return as_svg(self.so_far())

    def _read(
        self,
        where: str,
        decoder: DeclaredFunction | None,
        timestamp: UserFunction | str | None,
        no_timestamp: object,
        *,
        codec: Codec[Any] | None,
        **fields: Any,  # noqa: ANN401 - the fields of SourceNode
    ) -> Stream[Any]:
        check_choice("no_timestamp", no_timestamp, ("poison", "record"), where)
        value_type = None if codec is None or codec.python_type is object else codec.python_type
        node = self.add(
            SourceNode,
            where,
            decoder=decoder,
            codec=codec,
            timestamp=declared_value("timestamp", timestamp, value_type, where),
            no_timestamp=no_timestamp,
            **fields,
        )
        return Stream(self, node)

    def _topics(self, topics: object, where: str) -> tuple[str, ...]:
        if not isinstance(topics, Iterable):
            raise FlowError(f"{where}: topics={topics!r}; must be the name of a topic, or several names")
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if not names:
            raise FlowError(f"{where}: a source needs at least one topic")
        known = self.so_far()
        for topic in names:
            check_topic(topic, where)
            for other in known.sources:
                if topic in other.topics:
                    raise FlowError(
                        f"{where}: topic {topic!r} is already read at {other.declared_at}; use that stream twice"
                    )
            for output in known.outputs:
                if topic == output.topic:
                    raise FlowError(
                        f"{where}: {topic!r} is written at {output.declared_at}: that would be a loop"
                    )
        if len(set(names)) != len(names):
            raise FlowError(f"{where}: a topic is named twice in {names}. Name it once")
        return names


def _payload(
    what: str, wanted: str, payload: object, codec: Codec[Any] | str | None, where: str
) -> tuple[Codec[Any] | None, DeclaredFunction | None]:
    """The codec of a source whose payloads have a class, or its decoder.

    Raises:
        FlowError: it has neither, or a codec beside a decoder.
    """
    if isinstance(payload, Codec) and codec is None:
        return payload, None
    if isinstance(payload, type):
        return payload_codec(what, payload, codec, where), None
    if is_generic(payload) or not callable(payload):
        raise FlowError(
            f"{where}: {wanted}, or a decoder, got {payload!r}, which is neither a class nor a function"
        )
    if codec is not None:
        raise FlowError(
            f"{where}: {what} has a decoder, so codec={codec!r} would not be used. Give one of the two"
        )
    return None, declared("decoder", payload, 1, where)
