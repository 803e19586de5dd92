"""`sqe-chain correct`: begin a revision of a flow's outputs, which replaces what they had published."""

from __future__ import annotations

from typing import Annotated

from sqe_chain.cli.console import ERR, print_json
from sqe_chain.cli.listening import prepare_command
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import FlowArgument, JsonOption, OperationOptions, command, settings_in
from sqe_chain.cli.values import moment_ms
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.protocol.revising import Corrected
from sqe_chain.protocol.whole_revisions import check_may_be_revised
from sqe_chain.protocol.without_plans import Republisher

_ALL = "beginning"


@command
def correct(
    target: FlowArgument,
    *,
    since: Annotated[
        str,
        Option(
            "From when on: a time with its zone, by the timestamps of the records that caused all others; or 'beginning', for all.",
            "TIME",
            "from",
        ),
    ],
    operation: OperationOptions,
    dry_run: Annotated[bool, Option("Only show where the revision would begin; change nothing.")] = False,
    json: JsonOption = False,
) -> None:
    """Begin the revision that the flow's outputs are declared with, and put the flow back to where it begins.

    Stop the service, deploy the code that is right with to(..., revision=2), run this, and start the service. What it makes of records
    from that time on is published under the new revision. Readers count it instead of what was published before, once they take the
    revision up. You may kill this and run it again. It is for flows without stages.
    """
    flow = load_flow(target)
    if flow.stages:
        raise ConfigurationError(
            f"flow {flow.name!r} has stages: its states at a point in time mix what came before and after. Expected a flow without. "
            "Declare the next revision of its outputs, and run sqe-chain rebuild"
        )
    check_may_be_revised(flow)
    time_ms = None if since == _ALL else moment_ms("--from", since)
    with prepare_command(flow, settings_in(operation), operation) as prepared:
        service = Republisher(prepared.env)
        if not prepared.env.settings.once.takeover:
            service.check_stopped()
        try:
            corrected = service.correct(time_ms, dry=dry_run)
        finally:
            service.leave()
    if json:
        print_json(_as_json(flow, corrected, dry_run=dry_run))
        return
    for line in _lines(flow, corrected, dry_run=dry_run):
        ERR.print(line)


def _as_json(flow: CompiledFlow, corrected: Corrected, *, dry_run: bool) -> dict[str, object]:
    since = corrected.since
    return {
        "flow": flow.name,
        "revision": corrected.number,
        "since": None
        if since is None
        else {f"{topic}[{partition}]": offset for (topic, partition), (_, offset) in sorted(since.items())},
        "continues_from": {
            f"{topic}[{partition}]": offset
            for (topic, partition), offset in sorted(corrected.offsets.items())
        },
        "begun_before": corrected.begun_before,
        "dry_run": dry_run,
    }


def _lines(flow: CompiledFlow, corrected: Corrected, *, dry_run: bool) -> list[str]:
    known = _as_json(flow, corrected, dry_run=dry_run)
    since, offsets = (
        ", ".join(f"{place}@{offset}" for place, offset in places.items()) if isinstance(places, dict) else ""
        for places in (known["since"], known["continues_from"])
    )
    outputs = ", ".join(f"{flow.declared_name}/{node.name}" for node in flow.outputs)
    begins = f"at {since}" if since else "at the beginning of all roots"
    if dry_run:
        return [
            f"revision {corrected.number} of {outputs} would begin {begins}",
            f"flow {flow.name!r} would continue from {offsets}; nothing was changed",
        ]
    before = "had begun" if corrected.begun_before else "begins"
    return [
        f"revision {corrected.number} of {outputs} {before} {begins}",
        f"flow {flow.name!r} continues from {offsets}; start its service",
    ]
