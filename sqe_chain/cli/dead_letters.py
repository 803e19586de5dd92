"""`sqe-chain dead-letters` lists dead-letter records, sends them back, or passes over them; `sqe-chain excluded` lists skipped inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Annotated, Any

import typer
from rich.text import Text

from sqe_chain.cli.console import ERR, OUT, as_json, print_json, print_table
from sqe_chain.cli.failed_records import Narrowing, by_error, confirm_discard, list_failed
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import FlowArgument, JsonOption, Kafka, LimitOption, Stores, command
from sqe_chain.cli.values import moment_ms, offsets_named, place_named, topic_name
from sqe_chain.envelope.message import read
from sqe_chain.errors import ConfigurationError, EnvelopeError
from sqe_chain.errors.safe_text import one_line
from sqe_chain.features.readers import read_record
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.dead_letter_replay import DeadLetterReplay, ReplayResult
from sqe_chain.operations.dead_letters import Selection
from sqe_chain.ports import Log, Message, Range
from sqe_chain.protocol.stored_plans import kept_plans, never_run
from sqe_chain.runtime.connecting import open_log, open_stores
from sqe_chain.task.dead_letters import DeadLetter, parse_dead_letter

app = typer.Typer(no_args_is_help=True, help="Inputs that a flow has skipped and kept: dead-letter records.")


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
            since_ms=moment_ms("--since", self.since),
            until_ms=moment_ms("--until", self.until),
        )


@app.command("list")
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
    flow, selection = load_flow(target), narrowing.selection
    log = open_log(kafka.kafka, kafka.kafka_config)
    list_failed(_selected(log, flow, selection), "dead-letter records", limit=limit, json=json)


def _selected(log: Log, flow: CompiledFlow, selection: Selection) -> Iterator[dict[str, Any]]:
    for message, record in _records_of(log, flow.dead_letter_topic):
        if record is not None and record.flow == flow.name and selection.takes(record, message):
            yield {
                "at": f"{message.topic()}[{message.partition()}]@{message.offset()}",
                "read_at": str(record),
                "time_ms": message.timestamp()[1],
                "key": message.key(),
                "error": record.error,
                "text": record.text,
            }


@app.command("show")
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
    there = next(_records_of(log, topic, (partition, offset)), None)
    if there is None:
        raise ConfigurationError(
            f"there is no record at {place}. Expected a place that `sqe-chain dead-letters list` shows"
        )
    message, record = there
    shown: dict[str, object] = {
        "at": place,
        "key": as_json(message.key()),
        "time_ms": message.timestamp()[1],
    }
    if record is not None:
        shown |= {"flow": record.flow, "read_at": str(record), "lane": record.lane}
        shown |= {"error": record.error, "text": record.text}
        shown["headers"] = [[name, as_json(value)] for name, value in record.headers]
        try:
            shown["chain"] = str(read(message.value(), headers=record.headers).chain)
        except EnvelopeError as error:
            shown["chain"] = f"cannot be read: {error}"
    if show_payloads:
        shown["value"] = as_json(message.value())
    print_json(shown)


@app.command("discard")
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
    until = None if stops is None else _stops_in(flow.dead_letter_topic, stops)
    log = open_log(kafka.kafka, kafka.kafka_config)
    which = "all dead-letter records" if until is None and not selection.text else "these dead-letter records"
    confirm_discard(flow.name, which, yes=yes)
    count = DeadLetterReplay(flow, log, selection=selection).discard(until)
    OUT.print(
        f"{count} {'records' if selection.text else 'offsets'} of {flow.dead_letter_topic} are passed over"
    )


def _stops_in(topic: str, texts: list[str]) -> dict[int, int]:
    """Partition of a topic -> offset."""
    offsets = offsets_named("--to", texts)
    for named, partition in offsets:
        if named != topic:
            raise ConfigurationError(f"--to {named}[{partition}]: expected a partition of {topic!r}")
    return {partition: offset for (_, partition), offset in offsets.items()}


@app.command("replay")
@command
def replay(
    target: FlowArgument,
    *,
    kafka: Kafka,
    narrowing: DeadLetterNarrowing,
    to: Annotated[
        str | None,
        Option(
            "A topic that the flow reads with envelopes; by default each record goes to where the flow read it.",
            "TOPIC",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Send the dead-letter records of a flow back to its inputs, each once; with options, only some of them.

    You may kill it and run it again with the same options: a second run sends only new records. Other services that read the same topic count
    the records again. Then give this flow a separate topic for them, with --to. Do not also fold the inputs again with fixed
    code (rebuild, rewind): the flow would count these records twice.
    """
    flow = load_flow(target)
    log = open_log(kafka.kafka, kafka.kafka_config)
    result = DeadLetterReplay(flow, log, None if to is None else topic_name(to), narrowing.selection).run()
    if json:
        print_json({"flow": flow.name, **asdict(result)})
    else:
        _print_result(flow.dead_letter_topic, result)


def _print_result(topic: str, result: ReplayResult) -> None:
    OUT.print(f"dead-letter records sent back: {result.sent}")
    if result.known:
        OUT.print(f"duplicates, sent before: {result.known}")
    if result.others:
        OUT.print(f"records of {topic} that are no dead-letter records of this flow: {result.others}")
    if result.lost:
        ERR.print(f"offsets of {topic} that retention deleted before they were sent back: {result.lost}")
    if result.left:
        ERR.print(f"dead-letter records that cannot be sent back and stay in {topic}: {result.left}")
        for place, reason in result.reasons:
            ERR.print(Text("  " + one_line(f"{place}: {reason}")))
        if result.left > len(result.reasons):
            ERR.print("  ...")


def _records_of(
    log: Log, topic: str, only: tuple[int, int] | None = None
) -> Iterator[tuple[Message, DeadLetter | None]]:
    """The records of a topic of dead-letter records, or the one at a partition and offset."""
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
        for message in chain.from_iterable(log.read(Range(topic, info.topic_id, partition, begin, end))):
            yield message, parse_dead_letter(message)


@command
def excluded(
    target: FlowArgument, *, stores: Stores, limit: LimitOption = None, json: JsonOption = False
) -> None:
    """List the inputs that a flow has skipped, newest batches first, and count them by error.

    It goes back as far as the store keeps plans: 20 batches. With several readers, it lists one after the other. Dead-letter
    records stay as long as their topic keeps them: see peek.
    """
    flow = load_flow(target)
    if not flow.stages:
        raise ConfigurationError(
            f"flow {flow.name!r} has no stages, hence no plans. Look for skipped inputs in its log lines. "
            "With poison='dead_letter' they are in its dead-letter topic too: sqe-chain peek"
        )
    with open_stores(flow, stores.urls()) as opened:
        readers = read_record(opened[""], flow.name).readers
        names = list(readers.sets.values()) if readers is not None and readers.sets else [flow.name]
        by_name = {name: list(kept_plans(opened[""], name)) for name in names}
    for name, kept in by_name.items():
        if not kept:
            raise never_run(name)
    plans = list(chain.from_iterable(by_name.values()))
    skipped = [(plan.number, exclusion) for plan in plans for exclusion in plan.exclusions]
    if json:
        for number, exclusion in islice(skipped, limit):
            print_json({"plan": number, **asdict(exclusion)})
        return
    rows = (
        (number, f"{it.topic}[{it.partition}]@{it.offset}", it.policy, it.error, it.text)
        for number, it in islice(skipped, limit or 100)
    )
    print_table(("plan", "input", "policy", "error", "text"), rows)
    counts = by_error(Counter(exclusion.error for _, exclusion in skipped))
    numbers = [plan.number for plan in plans]
    ERR.print(
        f"{len(skipped)} inputs skipped in plans {min(numbers)} to {max(numbers)}"
        + (f": {counts}" if counts else "")
    )
