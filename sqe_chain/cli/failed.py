"""`sqe-chain failed`: lists, shows, releases and discards what a flow could not process, whatever its policy and its stages are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
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
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.operations.failed_letters import FailedLetters
from sqe_chain.operations.failed_shown import history_of, kept_message
from sqe_chain.operations.undecided import list_failed_records
from sqe_chain.ports import Log, StateStore
from sqe_chain.runtime.connecting import Deployment, EngineChoice, follow_failover, open_inputs, open_stores

app = typer.Typer(no_args_is_help=True, help="Records that a flow could not process: what becomes of them.")

_STOPS = "With poison='stop' no failed record is kept: the service stops at it, and PoisonError names it"
_NAMED = 3
"""Records that a message names."""
_PLACE = "TOPIC[PARTITION]@OFFSET"
_PlacesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar=f"[{_PLACE}]...", help="Where the flow read them, as list shows it; by default all."
    ),
]


Listing = Callable[[], Iterable[FailedRecord]]
"""Lists all that a flow could not process, as it is now."""


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
    places: _PlacesArgument = None,
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
            list_failed(
                filter(selection, list_failed_records(flow, log, home)), states, limit=limit, json=json
            )
            if flow.poison == "stop":
                ERR.print(_STOPS)


def _show_record(
    flow: CompiledFlow, place: str, log: Log, home: StateStore | None, *, show_payloads: bool
) -> None:
    """Print a failed record, with what was decided about it."""
    record = next((own for own in list_failed_records(flow, log, home) if str(own) == place), None)
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
    places: _PlacesArgument = None,
    *,
    operation: OperationOptions,
    engine: EngineOptions,
    narrowing: Narrowing,
    json: JsonOption = False,
) -> None:
    """Let failed records count with the present code, each once. Without options all that are still to decide.

    Stop the service and its standbys first if the flow has stages: the command claims the flow, and waits while another run has
    it. What fails again stays as it is. You may kill the command and run it again.

    The exit status is 1 if selected records failed again or cannot be released. It is 2 if no record failed at a given place, and 0 if
    all count, or none is to be decided.
    """
    flow, selection = load_flow(target), narrowing.selection(places)
    with _working(flow, operation, engine.choice() if flow.keeps_plans else None) as (work, failed):
        _check_places(flow, failed, selection)
        result = work.release(selection)
        tried = result.released or result.again or result.stuck
        unchanged = "" if tried else _why_unchanged(flow, failed, selection)
    if json:
        print_json({"flow": flow.name, **asdict(result)})
    else:
        _print_release(result)
    if result.again or result.stuck:
        raise typer.Exit(1)
    if unchanged:
        ERR.print(unchanged)


def _check_places(flow: CompiledFlow, failed: Listing, selection: FailedSelection) -> None:
    """Check that a record failed at each of the places that are given, before anything is decided.

    Raises:
        ConfigurationError: none did at one of them.
    """
    narrowed = selection != FailedSelection(places=selection.places)
    # What was parked and counts is listed nowhere.
    if not selection.places or narrowed or flow.poison == "park":
        return
    unknown = sorted(selection.places - {str(record) for record in failed()})
    if unknown:
        raise ConfigurationError(
            f"no failed record was read at {', '.join(unknown)}. Expected places that `sqe-chain failed list --state all` shows. Nothing was "
            "changed"
        )


def _why_unchanged(flow: CompiledFlow, failed: Listing, selection: FailedSelection) -> str:
    """Why nothing was to be decided about a selection, as a sentence."""
    known = {str(record): record.status for record in filter(selection, failed())}
    if not known:
        unlisted = (
            "; those that were released count now, and are not listed any more"
            if flow.poison == "park"
            else ""
        )
        return f"no failed record matches{unlisted}"
    some = [f"{place} is {status} already" for place, status in known.items()][:_NAMED]
    return f"nothing was to be decided: {', '.join(some)}" + (", …" if len(known) > len(some) else "")


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
    places: _PlacesArgument = None,
    *,
    operation: OperationOptions,
    narrowing: Narrowing,
    yes: Annotated[bool, Option("Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Let failed records never count. Without options all that are still to decide.

    Stop the service and its standbys first if the flow has stages: the command claims the flow, and waits while another run has
    it. What waits behind a discarded record stays parked, unless it is selected too. Dead-letter records stay in their topic, and list still shows them.

    The exit status is 2 if no record failed at a given place, else 0.
    """
    flow, selection = load_flow(target), narrowing.selection(places)
    which = "all failed records" if selection == FailedSelection() else "these failed records"
    if not yes and typer.prompt(f"Type {flow.name} to discard {which} of that flow", err=True) != flow.name:
        raise ConfigurationError("that is another name. Nothing was discarded")
    with _working(flow, operation) as (work, failed):
        _check_places(flow, failed, selection)
        result = work.discard(selection)
        unchanged = "" if result.discarded else _why_unchanged(flow, failed, selection)
    if json:
        print_json({"flow": flow.name, **asdict(result)})
    else:
        OUT.print(f"records that never count: {result.discarded}")
        OUT.print(f"still to decide: {result.left}")
    if unchanged:
        ERR.print(unchanged)


@contextmanager
def _reading(flow: CompiledFlow, servers: Servers) -> Iterator[tuple[Log, StateStore | None]]:
    """Kafka and the flow's store; None if it has none."""
    deployment = Deployment(servers.kafka, servers.kafka_config, servers.urls())
    with open_stores(flow, deployment.stores) as opened:
        yield follow_failover(open_inputs(flow, deployment), opened, flow), opened.get("")


@contextmanager
def _working(
    flow: CompiledFlow, operation: OperationOptions, engine: EngineChoice | None = None
) -> Iterator[tuple[Decisions, Listing]]:
    """What decides about the failed records of a flow, and what lists them; its claim is kept alive meanwhile."""
    with prepare_command(flow, settings_in(operation), operation, engine) as prepared:
        env = prepared.env
        failed = partial(
            list_failed_records, flow, env.ports.log, env.ports.home if flow.keeps_plans else None
        )
        if not flow.keeps_plans:
            yield (
                FailedLetters(flow, env.ports.log, env.clock.now_ms, env.new_run_id, prepared.asked_to_stop),
                failed,
            )
            return
        work = FailedInPlans(prepared.env, prepared.asked_to_stop)
        with heartbeat(prepared, work.beat):
            yield work, failed
