"""`sqe-chain dead-letters list`, `show` and `discard`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from sqe_chain.cli.console import ERR, OUT, as_json, print_json, print_table, utc
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.narrowing import Narrowing, confirm_discard, counts_by_error, key_cell
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import FlowArgument, JsonOption, Kafka, LimitOption, command
from sqe_chain.cli.values import moment_ms, place_named
from sqe_chain.envelope.message import read
from sqe_chain.errors import ConfigurationError, EnvelopeError
from sqe_chain.operations.dead_letter_replay import DeadLetterReplay
from sqe_chain.operations.dead_letters import DeadLetter, Selection, parse_dead_letter
from sqe_chain.ports import Log, Message, Range
from sqe_chain.runtime.connecting import open_log


@dataclass(frozen=True, kw_only=True)
class DeadLetterNarrowing(Narrowing):
    """Which dead-letter records are meant."""

    since: Annotated[str | None, Option("Only of this time or later: 2026-11-20T10:00:00Z.", "TIME")] = None
    until: Annotated[str | None, Option("Only of an earlier time.", "TIME")] = None

    @property
    def selection(self) -> Selection:
        """The same, once it is read.

        Raises:
            ConfigurationError: an option is no time, or an empty pattern.
        """
        return Selection(
            error=self.error,
            key=self.key,
            no_key=self.no_key,
            since_ms=None if self.since is None else moment_ms("--since", self.since),
            until_ms=None if self.until is None else moment_ms("--until", self.until),
        )


@command
def list_records(
    target: FlowArgument,
    *,
    kafka: Kafka,
    narrowing: DeadLetterNarrowing,
    limit: LimitOption = None,
    json: JsonOption = False,
) -> None:
    """List the dead-letter records of a flow with their reasons, and count them by error."""
    flow = load_flow(target)
    log = open_log(kafka.kafka, kafka.kafka_config)
    selection = narrowing.selection
    rows, counts = list[tuple[object, ...]](), Counter[str]()
    most = limit or (None if json else 100)
    for message, record in records_of(log, flow.dead_letter_topic):
        at_ms, key = message.timestamp()[1], message.key()
        if record is None or record.flow != flow.name or not selection.takes(record, message):
            continue
        counts[record.error] += 1
        if most is not None and counts.total() > most:
            continue
        place = f"{message.topic()}[{message.partition()}]@{message.offset()}"
        if json:
            print_json(
                {
                    "at": place,
                    "read_at": str(record),
                    "time_ms": at_ms,
                    "key": as_json(key),
                    "error": record.error,
                    "text": record.text,
                }
            )
        else:
            rows.append((place, str(record), utc(at_ms), key_cell(key), record.error, record.text))
    print_table(("at", "was read at", "time (UTC)", "key", "error", "text"), rows)
    ERR.print(f"{counts.total()} dead-letter records: {counts_by_error(counts)}")


@command
def show_record(
    target: FlowArgument,
    place: Annotated[
        str, typer.Argument(metavar="TOPIC[PARTITION]@OFFSET", help="Where the record is, as list shows it.")
    ],
    *,
    kafka: Kafka,
    show_payloads: Annotated[bool, Option("Also show its value.")] = False,
) -> None:
    """Show one dead-letter record: where it was read, why it was skipped, its chain and its own headers."""
    topic, partition, offset = place_named(place)
    flow = load_flow(target)
    log = open_log(kafka.kafka, kafka.kafka_config)
    if topic != flow.dead_letter_topic:
        raise ConfigurationError(
            f"{topic!r} does not hold the dead-letter records of flow {flow.name!r}. Expected {flow.dead_letter_topic!r}"
        )
    for message, record in records_of(log, topic, (partition, offset)):
        shown: dict[str, object] = {
            "at": place,
            "key": as_json(message.key()),
            "time_ms": message.timestamp()[1],
        }
        if record is not None:
            shown |= {
                "flow": record.flow,
                "read_at": str(record),
                "lane": record.lane,
                "error": record.error,
                "text": record.text,
            }
            shown["headers"] = [[name, as_json(value)] for name, value in record.headers]
            try:
                shown["chain"] = str(read(message.value(), headers=record.headers).chain)
            except EnvelopeError as error:
                shown["chain"] = f"cannot be read: {error}"
        if show_payloads:
            shown["value"] = as_json(message.value())
        print_json(shown)
        return
    raise ConfigurationError(
        f"there is no record at {place}. Expected a place that `sqe-chain dead-letters list` shows"
    )


@command
def discard_records(
    target: FlowArgument,
    *,
    kafka: Kafka,
    narrowing: DeadLetterNarrowing,
    stops: Annotated[
        list[str] | None,
        Option("Only records before this offset. Repeatable.", "TOPIC[PARTITION]=OFFSET", name="to"),
    ] = None,
    yes: Annotated[bool, Option("Do not ask.")] = False,
) -> None:
    """Pass over dead-letter records, so that no replay sends them back. They stay in their topic.

    Without options, all records that are there now are passed over.
    """
    flow, selection = load_flow(target), narrowing.selection
    offsets = (
        None if stops is None else dict(_partition_offset(flow.dead_letter_topic, text) for text in stops)
    )
    log = open_log(kafka.kafka, kafka.kafka_config)
    which = (
        "all dead-letter records" if offsets is None and not selection.text else "these dead-letter records"
    )
    confirm_discard(flow.name, which, yes=yes)
    count = DeadLetterReplay(flow, log, selection=selection).discard(offsets)
    OUT.print(
        f"{count} {'records' if selection.text else 'offsets'} of {flow.dead_letter_topic} are passed over"
    )


def _partition_offset(topic: str, text: str) -> tuple[int, int]:
    named, partition, offset = place_named(text)
    if named != topic:
        raise ConfigurationError(f"--to {text}: expected a partition of {topic!r}")
    return partition, offset


def records_of(
    log: Log, topic: str, only: tuple[int, int] | None = None
) -> Iterator[tuple[Message, DeadLetter | None]]:
    """The records of a topic of dead-letter records, or the one at a partition and offset.

    Raises:
        ConfigurationError: there is no such topic.
    """
    info = log.describe([topic]).get(topic)
    if info is None:
        raise ConfigurationError(
            f"there is no topic {topic!r}: the flow has skipped no record, or keeps none (poison='skip')"
        )
    partitions = range(info.partitions) if only is None else [only[0]] if only[0] < info.partitions else []
    bounds = log.bounds([(topic, partition) for partition in partitions])
    for partition in partitions:
        begin, end = bounds[topic, partition].begin, bounds[topic, partition].stable_end
        if only is not None:
            begin, end = max(begin, only[1]), min(end, only[1] + 1)
        if begin < end:
            for block in log.read(Range(topic, info.topic_id, partition, begin, end)):
                for message in block:
                    yield message, parse_dead_letter(message)
