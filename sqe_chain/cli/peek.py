"""`sqe-chain peek`: shows the messages of a topic, envelopes in readable form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from json import loads
from typing import Annotated

import typer
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.json_format import MessageToDict, MessageToJson
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf
from rich.text import Text

from sqe_chain.cli.console import OUT, as_json, key_as_json, print_json, utc
from sqe_chain.cli.loading import load_module
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import JsonOption, Kafka, command
from sqe_chain.cli.values import topic_name
from sqe_chain.codecs import codec_name
from sqe_chain.codecs.protobuf import use_numbers
from sqe_chain.envelope.message import Envelope, read
from sqe_chain.errors import ConfigurationError, EnvelopeError
from sqe_chain.errors.safe_text import one_line
from sqe_chain.flow.stored import readable, readable_key
from sqe_chain.ports import Bounds, Log, Message, Range, TopicInfo
from sqe_chain.ports.log import shown_place
from sqe_chain.runtime.connecting import open_log
from sqe_chain.task.dead_letters import parse_dead_letter

_SHOWN_BYTES = 120
"""Bytes shown of a value that is not an envelope, in text output."""
_DEAD_LETTER = ("flow", "topic", "topic_id", "partition", "offset", "lane", "position", "error", "text")
"""What is shown of a dead-letter record, besides the message."""


@command
def peek(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to show.")],
    *,
    kafka: Kafka,
    json: JsonOption = False,
    limit: Annotated[int, Option("Messages of each partition.", "N", least=1)] = 10,
    begin: Annotated[
        str,
        Option(
            "The oldest messages, the newest, or those from an offset.", "earliest|latest|OFFSET", name="from"
        ),
    ] = "earliest",
    partition: Annotated[int | None, Option("Only this partition; by default all.", "P", least=0)] = None,
    types: Annotated[
        list[str] | None, Option("Module of generated protobuf code, to show payloads. Repeatable.", "MODULE")
    ] = None,
) -> None:
    """Show messages of a topic: envelopes with their chain; other messages as they are, with the reason.

    For dead-letter records, also show where the flow read the input and why it skipped it.
    """
    for module in types or ():
        load_module(module)
    log = open_log(kafka.kafka, kafka.kafka_config)
    for message in _messages(log, topic, partition, begin, limit):
        if json:
            print_json(_as_object(message))
        else:
            OUT.print(_as_text(message))


def _messages(log: Log, topic: str, partition: int | None, begin: str, limit: int) -> Iterator[Message]:
    info = log.describe([topic_name(topic)]).get(topic)
    if info is None:
        raise ConfigurationError(
            f"there is no topic {topic!r}. Expected a topic of this cluster. Check its name and --kafka"
        )
    if partition is not None and partition >= info.partitions:
        raise ConfigurationError(
            f"--partition {partition}: topic {topic!r} does not have it. Expected 0 to {info.partitions - 1}"
        )
    chosen = range(info.partitions) if partition is None else [partition]
    bounds = log.bounds([(topic, number) for number in chosen])
    for number in chosen:
        wanted = _range(info, number, bounds[topic, number], begin, limit)
        yield from islice((message for block in log.read(wanted) for message in block), limit)


def _range(info: TopicInfo, partition: int, bounds: Bounds, begin: str, limit: int) -> Range:
    end = bounds.stable_end
    if begin == "earliest":
        start = bounds.begin
    elif begin == "latest":  # offsets may be sparse: then fewer messages are shown
        start = max(bounds.begin, end - limit)
    elif begin.isascii() and begin.isdigit():
        start = min(max(bounds.begin, int(begin)), end)
    else:
        raise ConfigurationError(f"--from {begin!r}. Expected earliest, latest or an offset")
    return Range(info.name, info.topic_id, partition, start, end)


def _envelope(message: Message) -> Envelope | EnvelopeError:
    try:
        return read(message.value(), headers=message.headers())
    except EnvelopeError as error:
        return error


def _as_object(message: Message) -> dict[str, object]:
    shown: dict[str, object] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": message.timestamp()[1],
        "key": key_as_json(message.key()),
        "headers": [[name, as_json(value)] for name, value in message.headers() or ()],
    }
    dead = parse_dead_letter(message)
    if dead is not None:
        shown["dead_letter"] = _fields(dead, *_DEAD_LETTER)
        shown["headers"] = [[name, as_json(value)] for name, value in dead.headers]
    envelope = _envelope(message)
    if isinstance(envelope, EnvelopeError):
        return {**shown, "raw": as_json(message.value()), "reason": f"{type(envelope).__name__}: {envelope}"}
    content = {
        "event_id": envelope.event_id.hex(),
        "timestamp_ms": envelope.timestamp_ms,
        "key": key_as_json(envelope.key),
        "type": envelope.type,
        "payloads": [_payload(envelope.type, payload) for payload in envelope.payloads],
        "lane": f"{envelope.lane:016x}",
        "position": envelope.position.hex(),
        "previous": envelope.previous.hex(),
        "watermark_ms": envelope.watermark_ms,
        "chain": [link.to_json() for link in envelope.chain],
    }
    return {**shown, "envelope": content}


def _fields(of: object, *names: str) -> dict[str, object]:
    values = ((name, getattr(of, name)) for name in names)
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in values}


def _payload(name: str, payload: bytes | None) -> object:
    """A payload for JSON: its fields if this process has the type, else its bytes."""
    if payload is None:
        return None
    if codec_name(name) == "json":
        with suppress(ValueError):
            return loads(payload)
    message = _known(name, payload)
    if message is None:
        return as_json(payload)
    return use_numbers(message, MessageToDict(message, preserving_proto_field_name=True))


def _known(name: str, payload: bytes) -> Protobuf | None:
    try:
        descriptor = descriptor_pool.Default().FindMessageTypeByName(name)
        return message_factory.GetMessageClass(descriptor).FromString(payload)
    except (KeyError, DecodeError):
        return None


def _as_text(message: Message) -> Text:
    """A message for people: a line with its coordinates, then its content, indented."""
    key = message.key()
    shown = Text.assemble(
        (shown_place(message), "bold cyan"),
        f"  {utc(message.timestamp()[1])}",
        "  no key" if key is None else f"  key {readable_key(key)}",
    )
    dead = parse_dead_letter(message)
    if dead is not None:
        shown.append(
            "\n  "
            + one_line(f"dead-letter record of flow {dead.flow}, read at {dead}: {dead.error}: {dead.text}"),
            "yellow",
        )
    envelope = _envelope(message)
    if isinstance(envelope, EnvelopeError):
        shown.append("\n  " + one_line(f"{type(envelope).__name__}: {envelope}"), "yellow")
        value = message.value()
        if value is not None:
            more = f" ... {len(value):,} bytes" if len(value) > _SHOWN_BYTES else ""
            shown.append(f"\n  {readable(value[:_SHOWN_BYTES])}{more}")
        return shown
    lines = [f"event {envelope.event_id.hex()}  {utc(envelope.timestamp_ms)}  {envelope.type}"]
    lines += [f"payload {_payload_text(envelope.type, payload)}" for payload in envelope.payloads]
    if envelope.position:
        lines.append(f"lane {envelope.lane:016x}  position {envelope.position.hex()}")
    lines += [f"{'chain' if index == 0 else '   ->'} {link}" for index, link in enumerate(envelope.chain)]
    for line in lines:
        shown.append("\n  " + one_line(line))
    if not envelope.position:
        shown.append("\n  chain (origin)", "dim")
    return shown


def _payload_text(name: str, payload: bytes | None) -> str:
    if payload is None:
        return "deleted"
    message = _known(name, payload)
    if message is None:
        return readable(payload)
    return MessageToJson(message, preserving_proto_field_name=True, indent=None)
