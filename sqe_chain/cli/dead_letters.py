"""`sqe-chain dead-letters replay` sends dead letters back; `sqe-chain excluded` lists the inputs that plans left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Annotated

import typer
from rich.text import Text

from sqe_chain.cli.console import ERR, OUT, print_json, print_table
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import FlowArgument, JsonOption, Kafka, LimitOption, Option, Stores, command
from sqe_chain.cli.values import topic_name
from sqe_chain.errors import ConfigurationError
from sqe_chain.features.readers import read_record
from sqe_chain.operations.dead_letter_replay import DeadLetterReplay, ReplayResult
from sqe_chain.ports import StateStore
from sqe_chain.protocol.plan import Plan
from sqe_chain.runtime.connecting import open_log, open_stores
from sqe_chain.safe_text import one_line

app = typer.Typer(no_args_is_help=True, help="Inputs that a flow has left out and kept: dead letters.")


@app.command("replay")
@command
def replay(
    target: FlowArgument,
    *,
    kafka: Kafka,
    to: Annotated[
        str | None,
        Option(
            "A topic that the flow reads with envelopes; by default each letter goes to where it was read.",
            "TOPIC",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Send the dead letters of a flow back to its inputs, each once.

    It may be killed and run again; a second run sends only new letters. Other services that read the same topic count
    the letters again: then give this flow a separate topic for them, with --to. Do not also fold the inputs again with fixed code
    (rebuild, rewind): those that were sent back would be counted twice.
    """
    flow = load_flow(target)
    log = open_log(kafka.kafka, kafka.kafka_config)
    result = DeadLetterReplay(flow, log, None if to is None else topic_name(to)).run()
    if json:
        print_json({"flow": flow.name, **asdict(result)})
    else:
        _print_result(flow.dead_letter_topic, result)


def _print_result(topic: str, result: ReplayResult) -> None:
    OUT.print(f"dead letters sent back: {result.sent}")
    if result.known:
        OUT.print(f"duplicates, sent before: {result.known}")
    if result.others:
        OUT.print(f"records of {topic} that are not letters of this flow: {result.others}")
    if result.lost:
        ERR.print(f"offsets of {topic} that retention deleted before they were sent back: {result.lost}")
    if result.left:
        ERR.print(f"letters that cannot be sent back and stay in {topic}: {result.left}")
        for letter, reason in result.reasons:
            ERR.print(Text("  " + one_line(f"{letter}: {reason}")))
        if result.left > len(result.reasons):
            ERR.print("  ...")


@command
def excluded(
    target: FlowArgument, *, stores: Stores, limit: LimitOption = None, json: JsonOption = False
) -> None:
    """List the inputs that a flow has left out, newest batches first, and count them by error; of several readers one after the other.

    It goes back as far as the store keeps plans: 20 batches. Dead letters stay as long as their topic keeps them: see
    peek.
    """
    flow = load_flow(target)
    if not flow.stages:
        raise ConfigurationError(
            f"flow {flow.name!r} has no stages, hence no plans: the inputs that it leaves out are in its log lines, "
            "and with poison='dead_letter' in its dead letters: sqe-chain peek"
        )
    with open_stores(flow, stores.urls()) as opened:
        readers = read_record(opened[""], flow.name).readers
        names = list(readers.sets.values()) if readers is not None and readers.sets else [flow.name]
        plans = [plan for name in names for plan in _plans(name, opened[""])]
    found = ((plan.number, one) for plan in plans for one in plan.exclusions)
    by_error = Counter(one.error for plan in plans for one in plan.exclusions)
    if json:
        for number, one in islice(found, limit):
            print_json({"plan": number, **asdict(one)})
        return
    print_table(
        ("plan", "input", "policy", "error", "text"),
        (
            (number, f"{one.topic}[{one.partition}]@{one.offset}", one.policy, one.error, one.text)
            for number, one in islice(found, limit or 100)
        ),
    )
    counts = ", ".join(f"{count} {error}" for error, count in by_error.most_common())
    ERR.print(
        f"{by_error.total()} inputs left out in plans {min(plan.number for plan in plans)} to {max(plan.number for plan in plans)}"
        + (f": {counts}" if counts else "")
    )


def _plans(flow: str, home: StateStore) -> Iterator[Plan]:
    """The plans in the store, newest first."""
    current, _ = home.home(flow)
    if current is None or current.number < 0:
        raise ConfigurationError(f"the store has no flow {flow!r}: it has not run with this --store yet")
    for number in range(current.number, -1, -1):
        data = home.plan(flow, number)
        if data is None:
            return
        yield Plan.from_bytes(data)
