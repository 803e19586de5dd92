"""`sqe-chain readers`: shows the readers of a flow that run side by side, and changes which partitions they have."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import typer

from sqe_chain.cli.console import ERR, print_json, print_table
from sqe_chain.cli.listening import beating, working_on
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import FlowArgument, JsonOption, Operation, Option, Stores, command, settings_in
from sqe_chain.errors import ConfigurationError
from sqe_chain.features.readers import Readers, read_record
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.changing_readers import ChangeReaders
from sqe_chain.operations.forget import known_flow
from sqe_chain.ports import StateStore
from sqe_chain.ports.readers import Partitions
from sqe_chain.runtime.connecting import open_stores

app = typer.Typer(no_args_is_help=True, help="Readers of one flow that run side by side.")


@app.command("show")
@command
def show(target: FlowArgument, *, stores: Stores, json: JsonOption = False) -> None:
    """Show the readers of a flow: their partitions, who runs them, and up to where they have read."""
    flow = load_flow(target)
    with open_stores(flow, stores.urls()) as found:
        readers = read_record(found[""], flow.name).readers if found else None
        lines = [] if readers is None else _lines(readers, found[""])
    if readers is None or not lines:
        raise ConfigurationError(
            f"the store knows no readers of flow {flow.name!r}: it has not run with --partitions"
        )
    if json:
        for line in lines:
            print_json(line._asdict())
        return
    print_table(
        ("partitions", "name", "plan", "claimed by", "read up to"),
        (
            (partitions, name, plan, claimed_by or "-", ", ".join(f"{tp}@{at}" for tp, at in offsets.items()))
            for partitions, name, plan, claimed_by, offsets in lines
        ),
    )
    if readers.new:
        ERR.print(
            f"a change to {'; '.join(str(one) for one in readers.new)} has begun and is not finished: run readers change again"
        )


class _Line(NamedTuple):
    """What is shown of a reader."""

    partitions: str
    name: str
    plan: int
    claimed_by: str | None
    offsets: dict[str, int]


def _lines(readers: Readers, home: StateStore) -> list[_Line]:
    found = []
    for partitions, name in readers.sets.items():
        known = known_flow(home, name)
        ends = known.plan.ends() if known is not None and known.plan is not None else {}
        offsets = {f"{topic}[{number}]": one.stop for (topic, number), one in ends.items()}
        plan, claimed_by = (-1, None) if known is None else (known.home.number, known.home.run_id or None)
        found.append(_Line(str(partitions), name, plan, claimed_by, offsets))
    return found


@app.command("change")
@command
def change(
    target: FlowArgument,
    *,
    to: Annotated[
        list[str],
        Option(
            "A set that there shall be: 0-3, or 0,2,4-7, or 8- (8 and all above). Name all; those that are there already stay. "
            "Repeatable.",
            "SET",
        ),
    ],
    operation: Operation,
    start: Annotated[
        Literal["earliest", "latest"] | None,
        Option(
            "Where partitions begin that no reader has read; by default at offset 0, if nothing is missing."
        ),
    ] = None,
) -> None:
    """Give the input partitions of a flow to other readers: 0-3 to 0-1 and 2-3; also of a flow that runs as one so far.

    Stop the readers concerned first; it waits for those that are alive. What they have begun is finished, and the new readers go on
    exactly where they have ended. It may be killed and run again.
    """
    flow = load_flow(target)
    wanted = [Partitions.parse(text) for text in to]
    flow.check_apart()
    with working_on(flow, settings_in(operation, start=start), operation) as found:
        done = beating(found, ChangeReaders(found.env, wanted, found.asked_to_stop))
    ERR.print(_summary(flow, [str(one) for one in done.old], [str(one) for one in done.new]))


def _summary(flow: CompiledFlow, old: list[str], new: list[str]) -> str:
    if not old and not new:
        return f"flow {flow.name!r}: these are its readers already"
    was = f"{'; '.join(old)} became " if old else ""
    return f"flow {flow.name!r}: {was}{'; '.join(new)}; start a reader for each: sqe-chain run ... --partitions {new[0]}"
