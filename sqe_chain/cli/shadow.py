"""`sqe-chain shadow`: runs new code beside a flow, compares its states with the flow's, and puts it in the flow's place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from sqe_chain.cli.console import ERR, OUT, print_json, print_table
from sqe_chain.cli.listening import prepare_command, work_with_heartbeat
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.move import export_in, unless_stopped
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import (
    EngineOptions,
    FlowArgument,
    JsonOption,
    OperationOptions,
    command,
    settings_in,
)
from sqe_chain.operations.comparing import ComparedStage
from sqe_chain.operations.rebuild import Rebuild
from sqe_chain.operations.shadow import (
    ComparedOutputs,
    Shadow,
    check_may_have_shadow,
    compare,
    compare_outputs,
    end_shadow,
    records_behind,
)
from sqe_chain.operations.switching import Switch

app = typer.Typer(
    no_args_is_help=True, help="New code beside a flow: it follows, is compared, and may take its place."
)


@app.command("start")
@command
def start(
    target: FlowArgument,
    *,
    from_export: Annotated[
        Path | None,
        Option(
            "Begin with the states of a file that `sqe-chain export` has written, and fold what came since.",
            "FILE",
        ),
    ] = None,
    operation: OperationOptions,
    engine: EngineOptions,
) -> None:
    """Run new code beside a flow, until stopped: it folds the same inputs into states of its own, and publishes nothing.

    Give the new code under the flow's name. It begins where the flow once began, or at an export, then stays right behind the flow. Stop it
    whenever you like: started again, it goes on. The flow's service is not disturbed.
    """
    flow = load_flow(target)
    check_may_have_shadow(flow)
    with (
        nullcontext() if from_export is None else export_in(from_export) as lines,
        prepare_command(flow, settings_in(operation), operation, engine.choice()) as prepared,
    ):
        export = None if lines is None else unless_stopped(prepared, lines)
        shadow = Shadow(prepared.env, prepared.engine, stopped=prepared.asked_to_stop, export=export)
        name = work_with_heartbeat(prepared, shadow)
        behind = records_behind(prepared.env)
    ERR.print(
        f"{name} was stopped, {behind} records behind the flow; sqe-chain shadow start goes on with it. {shadow.outputs.text()}"
    )


@app.command("report")
@command
def report(target: FlowArgument, *, operation: OperationOptions, json: JsonOption = False) -> None:
    """Compare states and outputs of a flow with those of its shadow.

    It compares only where both have counted the same. A state partition that goes on while it is read is not compared: try again, or stop the
    service for a moment. Nor is one compared where the shadow has not counted as far as the flow.

    The exit status is 0 if all was compared and is equal, and 1 if anything differs. It is 3 if nothing differs, and states could not be compared.
    """
    flow = load_flow(target)
    with prepare_command(flow, settings_in(operation), operation) as prepared:
        behind = records_behind(prepared.env)
        compared, outputs = compare(prepared.env), compare_outputs(prepared.env)
    if json:
        for stage in compared:
            print_json(asdict(stage))
        print_json({"outputs": _plain(outputs), "behind": behind})
    else:
        _show(compared)
        for text in outputs.texts():
            OUT.print(text)
        if any(stage.moved for stage in compared):
            OUT.print(f"not everything was compared: {_why(behind)}")
    if not outputs.same or any(stage.differs for stage in compared):
        raise typer.Exit(1)
    if any(stage.moved for stage in compared):
        raise typer.Exit(3)


def _why(behind: int) -> str:
    if behind:
        return f"the shadow is {behind} records behind the flow. Let `sqe-chain shadow start` catch up, then ask again"
    return "the flow or the shadow went on meanwhile. Ask again, or stop them for a moment"


def _plain(outputs: ComparedOutputs) -> dict[str, object]:
    plain, counts = asdict(outputs), outputs.counts
    del plain["counts"]
    names = ("since", "until", "equal", "different", "missing", "added", "examples", "gaps", "copied")
    return {name: getattr(counts, name) for name in names} | plain


def _show(compared: Sequence[ComparedStage]) -> None:
    print_table(
        ("stage", "equal", "different", "missing", "added", "state partitions not compared"),
        [
            (result.stage, "new" if result.new else "not in the new code", "", "", "", "")
            if result.new or result.gone
            else (result.stage, result.equal, result.different, result.missing, result.added, result.moved)
            for result in compared
        ],
    )
    print_table(("stage", "key", "flow", "new code"), _examples(compared))


def _examples(compared: Sequence[ComparedStage]) -> Iterator[tuple[str, str, str, str]]:
    for result in compared:
        for key, old, new in result.examples:
            texts = ("none" if state is None else dumps(state, ensure_ascii=False) for state in (old, new))
            yield result.stage, key, *texts  # type: ignore[misc]


@app.command("switch")
@command
def switch(
    target: FlowArgument,
    *,
    operation: OperationOptions,
    engine: EngineOptions,
    accept_differences: Annotated[
        bool, Option("Switch also if states differ: readers keep what was published of the old ones.")
    ] = False,
    back: Annotated[
        bool,
        Option("Go back to the states of before the last switch, whatever differs. Give the code of before."),
    ] = False,
) -> None:
    """Put the shadow's states in the place of the flow's. A service that runs is ended between two of its batches.

    It folds what the flow has counted last, compares all states and the last outputs, and cuts over in one step. If anything differs, nothing
    changes. Then start the service with the new code. You may kill it and run it again.
    """
    flow = load_flow(target)
    with prepare_command(flow, settings_in(operation), operation, engine.choice()) as prepared:
        work = Rebuild(
            prepared.env,
            prepared.engine,
            switch=Switch(back=back, accept_differences=accept_differences),
            stopped=prepared.asked_to_stop,
        )
        plan = work_with_heartbeat(prepared, work)
    ERR.print(
        f"flow {flow.name!r} has the states of this code, and is at plan {plan.number}; start its service with that code"
    )


@app.command("end")
@command
def end(target: FlowArgument, *, operation: OperationOptions) -> None:
    """End a shadow that is not needed any more, and delete its states; without one, the states of before the last switch. The flow is not touched."""
    flow = load_flow(target)
    with prepare_command(flow, settings_in(operation), operation) as prepared:
        name = end_shadow(prepared.env)
    ERR.print(f"{name} was ended, and its states are deleted")
