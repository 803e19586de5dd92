"""`sqe-chain failed`: lists, shows, releases and discards what a flow could not process, whatever its policy and its stages are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Annotated, Protocol

import typer
from rich.text import Text

from sqe_chain.cli.console import ERR, OUT, as_json, print_json
from sqe_chain.cli.failed_records import Narrowing, list_failed, shown_record, states_named
from sqe_chain.cli.listening import heartbeat, prepare_command
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import (
    EngineOptions,
    FlowArgument,
    JsonOption,
    KafkaIfNeeded,
    LimitOption,
    OperationOptions,
    Stores,
    command,
    settings_in,
)
from sqe_chain.envelope.message import read
from sqe_chain.errors import ConfigurationError, EnvelopeError
from sqe_chain.errors.safe_text import one_line
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.failed import (
    DiscardResult,
    FailedRecord,
    FailedSelection,
    ReleaseResult,
)
from sqe_chain.operations.failed_in_plans import FailedInPlans, list_in_plans
from sqe_chain.operations.failed_letters import FailedLetters
from sqe_chain.operations.failed_shown import history_of, kept_message
from sqe_chain.operations.skipped_inputs import skipped_in_commits
from sqe_chain.ports import Log, StateStore
from sqe_chain.runtime.connecting import Deployment, EngineChoice, open_inputs, open_stores

app = typer.Typer(no_args_is_help=True, help="Records that a flow could not process: what becomes of them.")

_PLACE = "TOPIC[PARTITION]@OFFSET"
PlacesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar=f"[{_PLACE}]...", help="Where the flow read them, as list shows it; by default all."
    ),
]


@dataclass(frozen=True, kw_only=True)
class Servers(Stores, KafkaIfNeeded):
    """What one needs to read."""


class Decisions(Protocol):
    """What decides about failed records."""

    def release(self, selection: FailedSelection = ...) -> ReleaseResult:
        """Let them count."""

    def discard(self, selection: FailedSelection = ...) -> DiscardResult:
        """Let them never count."""


@app.command("list")
@command
def list_records(
    target: FlowArgument,
    places: PlacesArgument = None,
    *,
    servers: Servers,
    narrowing: Narrowing,
    state: Annotated[
        list[str] | None,
        Option(
            "Only in this state: open, parked, releasing, unsure, unreadable, released, discarded, or all. By default what is still to "
            "decide. Repeatable.",
            "STATE",
        ),
    ] = None,
    show_payloads: Annotated[bool, Option("With a place, also show the record's value.")] = False,
    limit: LimitOption = None,
    json: JsonOption = False,
) -> None:
    """List what a flow could not process, and count it by error. With places, show all that is known of these records.

    It goes back as far as the dead-letter topic does. What was skipped with poison='skip' is kept nowhere: the newest of it is
    listed as discarded. Of a record at a given place it shows why it failed, its chain and headers, and what was decided about it.
    """
    flow, selection, states = load_flow(target), narrowing.selection(places), states_named(state)
    with _reading(flow, servers) as (log, home):
        if places:
            for place in places:
                _show_record(flow, place, log, home, show_payloads=show_payloads)
        else:
            list_failed(filter(selection, _records(flow, log, home)), states, limit=limit, json=json)


def _show_record(
    flow: CompiledFlow, place: str, log: Log, home: StateStore | None, *, show_payloads: bool
) -> None:
    """Print a failed record, with what was decided about it."""
    record = next((own for own in _records(flow, log, home) if str(own) == place), None)
    if record is None:
        raise ConfigurationError(
            f"no failed record was read at {place}. Expected a place that `sqe-chain failed list --state all` shows"
        )
    kept = kept_message(flow, record, log, home)
    shown = shown_record(record) | {"history": history_of(flow, record, log)}
    if kept is not None:
        message, headers = kept
        shown["headers"] = [[name, as_json(value)] for name, value in headers]
        try:
            shown["chain"] = str(read(message.value(), headers=headers).chain)
        except EnvelopeError as error:
            shown["chain"] = f"cannot be read: {error}"
        if show_payloads:
            shown["value"] = as_json(message.value())
    print_json(shown)


@app.command("release")
@command
def release_records(
    target: FlowArgument,
    places: PlacesArgument = None,
    *,
    operation: OperationOptions,
    engine: EngineOptions,
    narrowing: Narrowing,
    json: JsonOption = False,
) -> None:
    """Let failed records count with the present code, each once. Without options all that are still to decide.

    Stop the service and its standbys first if the flow has stages: the command claims the flow, and waits while another run has it. What fails again
    stays as it is. You may kill the command and run it again.
    """
    flow, selection = load_flow(target), narrowing.selection(places)
    with _working(flow, operation, engine.choice() if flow.keeps_plans else None) as work:
        result = work.release(selection)
    if json:
        print_json({"flow": flow.name, **asdict(result)})
    else:
        _print_release(result)


def _print_release(result: ReleaseResult) -> None:
    OUT.print(f"records that count now: {result.released}")
    if result.outputs:
        OUT.print(f"outputs published for them: {result.outputs}")
    for what, count in result.dropped.items():
        ERR.print(Text(f"of them a stage dropped: {what} {count}; a rebuild counts them at their place"))
    if result.again:
        ERR.print(
            f"records that stay, since they or one before them of their key failed again: {result.again}"
        )
    if result.stuck:
        ERR.print(
            f"records that cannot be released, only discarded, or wait behind one that cannot: {result.stuck}"
        )
    for place, reason in result.reasons:
        ERR.print(Text("  " + one_line(f"{place}: {reason}")))
    OUT.print(f"still to decide: {result.left}")


@app.command("discard")
@command
def discard_records(
    target: FlowArgument,
    places: PlacesArgument = None,
    *,
    operation: OperationOptions,
    narrowing: Narrowing,
    yes: Annotated[bool, Option("Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Let failed records never count. Without options all that are still to decide.

    Stop the service and its standbys first if the flow has stages: the command claims the flow, and waits while another run has it. What waits behind a discarded record stays parked, unless it is selected
    too. Dead-letter records stay in their topic, and list still shows them.
    """
    flow, selection = load_flow(target), narrowing.selection(places)
    which = "all failed records" if selection == FailedSelection() else "these failed records"
    if not yes and typer.prompt(f"Type {flow.name} to discard {which} of that flow", err=True) != flow.name:
        raise ConfigurationError("that is another name. Nothing was discarded")
    with _working(flow, operation) as work:
        result = work.discard(selection)
    if json:
        print_json({"flow": flow.name, **asdict(result)})
        return
    OUT.print(f"records that never count: {result.discarded}")
    OUT.print(f"still to decide: {result.left}")


@contextmanager
def _reading(flow: CompiledFlow, servers: Servers) -> Iterator[tuple[Log, StateStore | None]]:
    """Kafka and the flow's store; None if it has none."""
    deployment = Deployment(servers.kafka, servers.kafka_config, servers.urls())
    with open_stores(flow, deployment.stores) as opened:
        yield open_inputs(flow, deployment), opened.get("")


def _records(flow: CompiledFlow, log: Log, home: StateStore | None) -> Iterable[FailedRecord]:
    if home is not None:
        return list_in_plans(flow, home, log)
    there = log.describe([flow.dead_letter_topic])
    letters = FailedLetters(flow, log, lambda: 0, str).list() if there else ()  # listing decides nothing
    return chain(letters, skipped_in_commits(flow, log))


@contextmanager
def _working(
    flow: CompiledFlow, operation: OperationOptions, engine: EngineChoice | None = None
) -> Iterator[Decisions]:
    """What decides about the failed records of a flow, with everything that it needs; its claim is kept alive meanwhile."""
    with prepare_command(flow, settings_in(operation), operation, engine) as prepared:
        if not flow.keeps_plans:
            env = prepared.env
            yield FailedLetters(flow, env.ports.log, env.clock.now_ms, env.new_run_id, prepared.asked_to_stop)
            return
        work = FailedInPlans(prepared.env, prepared.asked_to_stop)
        with heartbeat(prepared, work.beat):
            yield work
