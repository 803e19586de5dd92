"""`sqe-chain parked`: lists inputs that wait with `poison="park"`, lets them count after a fix, or drops them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from sqe_chain.cli.console import ERR, OUT, print_json
from sqe_chain.cli.failed_records import Narrowing, confirm_discard, list_failed
from sqe_chain.cli.listening import prepare_command, work_with_heartbeat
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import (
    EngineOptions,
    FlowArgument,
    JsonOption,
    LimitOption,
    OperationOptions,
    Stores,
    command,
    settings_in,
)
from sqe_chain.operations.parked import ParkedResult, ParkedSelection, ParkedWork, check_parks, parked_in
from sqe_chain.runtime.connecting import open_stores

app = typer.Typer(
    no_args_is_help=True, help="Inputs that failed and wait, with what follows them of the same key."
)


@dataclass(frozen=True, kw_only=True)
class ParkedNarrowing(Narrowing):
    """Which parked records are meant."""

    topic: Annotated[str | None, Option("Only read from this topic.", "TOPIC")] = None

    @property
    def selection(self) -> ParkedSelection:
        """The same, once it is read.

        Raises:
            ConfigurationError: a pattern is empty.
        """
        return ParkedSelection(error=self.error, key=self.key, no_key=self.no_key, topic=self.topic)


@app.command("list")
@command
def list_parked(
    target: FlowArgument,
    *,
    stores: Stores,
    narrowing: ParkedNarrowing,
    limit: LimitOption = None,
    json: JsonOption = False,
) -> None:
    """List the parked records of a flow in the order in which they would count, and count them by error."""
    flow, selection = load_flow(target), narrowing.selection
    with open_stores(flow, stores.urls()) as opened:
        records = [record for record in parked_in(opened[""], flow) if selection(record)]
    shown = (
        {
            "read_at": str(record),
            "time_ms": record.timestamp_ms,
            "key": record.record_key,
            "error": record.error,
            "text": record.text,
            "bytes": record.size,
        }
        for record in records
    )
    list_failed(shown, "parked records", limit=limit, json=json)


@app.command("release")
@command
def release_parked(
    target: FlowArgument,
    *,
    operation: OperationOptions,
    engine: EngineOptions,
    narrowing: ParkedNarrowing,
    json: JsonOption = False,
) -> None:
    """Let parked records count, with the present code, in their order. Stop the service first, and start it with the same code.

    All records of a key go together: one that is selected takes along the others. What fails again stays parked. You may kill
    the command and run it again: each record counts once.
    """
    flow, selection = load_flow(target), narrowing.selection
    check_parks(flow)  # before anything is connected
    with prepare_command(flow, settings_in(operation), operation, engine.choice()) as prepared:
        work = ParkedWork(prepared.env, selection, stopped=prepared.asked_to_stop)
        result = work_with_heartbeat(prepared, work)
    _show(flow.name, result, "count now", json=json)


@app.command("discard")
@command
def discard_parked(
    target: FlowArgument,
    *,
    operation: OperationOptions,
    narrowing: ParkedNarrowing,
    yes: Annotated[bool, Option("Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Drop parked records: they never count, also not when states are folded again. Stop the service first.

    What waits behind a dropped record stays parked until it is released, unless it is selected too. Without options, all parked
    records are dropped.
    """
    flow, selection = load_flow(target), narrowing.selection
    check_parks(flow)
    which = "all parked records" if selection == ParkedSelection() else "these parked records"
    confirm_discard(flow.name, which, yes=yes)
    with prepare_command(flow, settings_in(operation), operation) as prepared:
        work = ParkedWork(prepared.env, selection, discards=True, stopped=prepared.asked_to_stop)
        result = work_with_heartbeat(prepared, work)
    _show(flow.name, result, "are discarded", json=json)


def _show(flow: str, result: ParkedResult, done: str, *, json: bool) -> None:
    if json:
        print_json({"flow": flow, **asdict(result)})
        return
    OUT.print(f"records that {done}: {result.done}")
    if result.again:
        ERR.print(
            f"records that stay parked, since they or one before them of their key failed again: {result.again}"
        )
    if result.stuck:
        ERR.print(
            f"records that cannot count, or wait behind one that cannot: {result.stuck}. Their envelopes cannot be read, or their topic was "
            "created again. Discard them"
        )
    OUT.print(f"parked now: {result.waiting}")
