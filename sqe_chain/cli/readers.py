"""`sqe-chain readers`: shows the readers of a flow that run side by side, or changes which partitions they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from sqe_chain.cli.console import ERR, print_json, print_table
from sqe_chain.cli.listening import prepare_command, work_with_heartbeat
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import (
    FlowArgument,
    JsonOption,
    ReaderOptions,
    Stores,
    command,
    settings_in,
)
from sqe_chain.errors import ConfigurationError
from sqe_chain.features.readers import Readers, read_record
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.changing_readers import ChangeReaders
from sqe_chain.operations.forget import known_flow
from sqe_chain.ports import StateStore
from sqe_chain.ports.readers import Partitions
from sqe_chain.runtime.connecting import open_stores


@command
def readers(
    target: FlowArgument,
    *,
    to: Annotated[
        list[str] | None,
        Option(
            "A set of partitions: 0-3, or 0,2,4-7, or 8- (8 and all above). Name all sets; those that exist stay. "
            "Repeatable.",
            "SET",
        ),
    ] = None,
    start: Annotated[
        Literal["earliest", "latest"] | None,
        Option("Where unread partitions begin; by default at offset 0, if nothing is missing."),
    ] = None,
    operation: ReaderOptions,
    json: JsonOption = False,
) -> None:
    """Show the readers of a flow: their partitions, who runs them, and up to where they have read.

    With --to, give its input partitions to other readers: 0-3 to 0-1 and 2-3; also of a flow that runs as one so far. Stop these
    readers first; the command waits for those that are alive. It finishes what they have begun, and the new readers continue
    exactly where they have ended. You may kill it and run it again.
    """
    flow = load_flow(target)
    if to:
        _change(flow, to, start, operation)
    else:
        _show(flow, operation, as_lines=json)


def _show(flow: CompiledFlow, stores: Stores, *, as_lines: bool) -> None:
    with open_stores(flow, stores.urls()) as opened:
        known = read_record(opened[""], flow.name).readers if opened else None
        lines = [] if known is None else _lines(known, opened[""])
    if known is None or not lines:
        raise ConfigurationError(
            f"flow {flow.name!r}: the store knows no readers of it: it has not run with --partitions. Run it so"
        )
    if as_lines:
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
    if known.new:
        ERR.print(
            f"a change to {'; '.join(str(partitions) for partitions in known.new)} has begun and is not finished: run readers with the same --to again"
        )


class _ReaderLine(NamedTuple):
    """What is shown of a reader."""

    partitions: str
    name: str
    plan: int
    claimed_by: str | None
    offsets: dict[str, int]


def _lines(readers: Readers, home: StateStore) -> list[_ReaderLine]:
    lines = []
    for partitions, name in readers.sets.items():
        known = known_flow(home, name)
        ends = known.plan.ends() if known is not None and known.plan is not None else {}
        offsets = {f"{topic}[{number}]": planned.stop for (topic, number), planned in ends.items()}
        plan, claimed_by = (-1, None) if known is None else (known.home.number, known.home.run_id or None)
        lines.append(_ReaderLine(str(partitions), name, plan, claimed_by, offsets))
    return lines


def _change(
    flow: CompiledFlow,
    to: Sequence[str],
    start: Literal["earliest", "latest"] | None,
    operation: ReaderOptions,
) -> None:
    if operation.kafka is None:
        raise ConfigurationError("--to without brokers. Expected them. Give --kafka HOST:PORT")
    wanted = [Partitions.parse(text) for text in to]
    flow.check_apart()
    with prepare_command(flow, settings_in(operation, start=start), operation) as prepared:
        done = work_with_heartbeat(prepared, ChangeReaders(prepared.env, wanted, prepared.asked_to_stop))
    ERR.print(
        _summary(
            flow, [str(partitions) for partitions in done.old], [str(partitions) for partitions in done.new]
        )
    )


def _summary(flow: CompiledFlow, old: list[str], new: list[str]) -> str:
    if not old and not new:
        return f"flow {flow.name!r}: these are its readers already"
    was = f"{'; '.join(old)} became " if old else ""
    return f"flow {flow.name!r}: {was}{'; '.join(new)}; start a reader for each: sqe-chain run ... --partitions {new[0]}"
