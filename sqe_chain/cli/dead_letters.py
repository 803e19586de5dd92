"""`sqe-chain dead-letters replay` sends dead-letter records back; `sqe-chain excluded` lists the inputs that plans skipped."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import islice
from typing import Annotated

import typer
from rich.text import Text

from sqe_chain.cli.console import ERR, OUT, print_json, print_table
from sqe_chain.cli.dead_letter_records import DeadLetterNarrowing, discard_records, list_records, show_record
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import FlowArgument, JsonOption, Kafka, LimitOption, Stores, command
from sqe_chain.cli.values import topic_name
from sqe_chain.errors import ConfigurationError
from sqe_chain.errors.safe_text import one_line
from sqe_chain.features.readers import read_record
from sqe_chain.operations.dead_letter_replay import DeadLetterReplay, ReplayResult
from sqe_chain.protocol.plan import kept_plans
from sqe_chain.runtime.connecting import open_log, open_stores

app = typer.Typer(no_args_is_help=True, help="Inputs that a flow has skipped and kept: dead-letter records.")


app.command("list")(list_records)
app.command("show")(show_record)
app.command("discard")(discard_records)


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
            raise ConfigurationError(
                f"the store has no flow {name!r}: it has not run with this --store. Run it, or give the right store"
            )
    plans = [plan for kept in by_name.values() for plan in kept]
    numbered = ((plan.number, exclusion) for plan in plans for exclusion in plan.exclusions)
    by_error = Counter(exclusion.error for plan in plans for exclusion in plan.exclusions)
    if json:
        for number, exclusion in islice(numbered, limit):
            print_json({"plan": number, **asdict(exclusion)})
        return
    print_table(
        ("plan", "input", "policy", "error", "text"),
        (
            (
                number,
                f"{exclusion.topic}[{exclusion.partition}]@{exclusion.offset}",
                exclusion.policy,
                exclusion.error,
                exclusion.text,
            )
            for number, exclusion in islice(numbered, limit or 100)
        ),
    )
    counts = ", ".join(f"{count} {error}" for error, count in by_error.most_common())
    ERR.print(
        f"{by_error.total()} inputs skipped in plans {min(plan.number for plan in plans)} to {max(plan.number for plan in plans)}"
        + (f": {counts}" if counts else "")
    )
