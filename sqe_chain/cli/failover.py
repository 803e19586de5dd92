"""`sqe-chain failover`: goes on in another Kafka cluster, which mirrors the topics of a flow."""

from __future__ import annotations

from typing import Annotated

from sqe_chain.cli.console import ERR, print_table, utc
from sqe_chain.cli.listening import prepare_command, work_with_heartbeat
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import FlowArgument, OperationOptions, command, settings_in
from sqe_chain.cli.values import properties
from sqe_chain.operations.failover import MARGIN_MS, Failover, check_may_fail_over
from sqe_chain.plans.layout import mark_name


@command
def failover(
    target: FlowArgument,
    *,
    operation: OperationOptions,
    topics: Annotated[
        list[str] | None,
        Option(
            "The name of an input or output in the other cluster, if it is another one. Repeatable.",
            "NAME=TOPIC",
        ),
    ] = None,
    margin_ms: Annotated[
        int,
        Option(
            "Begin to read this long before the last record that was counted; more costs only time.",
            "MS",
            least=0,
        ),
    ] = MARGIN_MS,
    accept_missing: Annotated[
        list[str] | None,
        Option("A lane, as the error names it, on which records may be missing there. Repeatable.", "LANE"),
    ] = None,
    dry_run: Annotated[
        bool, Option("Only show how far the other cluster has come, and what it lacks; change nothing.")
    ] = False,
) -> None:
    """Go on in the Kafka cluster of --kafka, which mirrors the inputs and outputs of the flow. The same command brings it back.

    All inputs must be envelopes that flows have published. Records that the mirror repeats are dropped. If it has not received all that
    was counted or published, nothing changes, and the lanes are named. Then start the service with the new --kafka: the store refuses the old cluster from then on.
    """
    flow = load_flow(target)
    check_may_fail_over(flow)
    names = properties("--topics", topics or ())
    with prepare_command(flow, settings_in(operation), operation, fails_over=True) as prepared:
        work = Failover(prepared.env, names, margin_ms, frozenset(accept_missing or ()))
        if dry_run:
            _show(work)
            return
        done = work_with_heartbeat(prepared, work)
    for missing in done.accepted:
        ERR.print(f"accepted: lane {missing.lane}: {missing.text}")
    known = ", ".join(f"{name} as {there}" for name, there in sorted(done.topics.items()))
    if done.unfinished is not None:
        ERR.print(
            f"plan {done.unfinished} is unfinished: the mirror has its inputs, and the service finishes it there"
        )
    ERR.print(
        f"flow {flow.name!r} goes on in cluster {done.cluster} after plan {done.plan}, and knows {known}; start its service there"
    )


def _show(work: Failover) -> None:
    """Show what a failover at this moment would find; ends with its error, if it would end with one."""
    outlook = work.look()
    print_table(
        ("partition", "there", "counted up to", "mirrored up to", "lacks lanes"),
        [
            (
                mark_name(*end.tp),
                mark_name(*end.there),
                utc(end.counted_ms) if end.counted_ms >= 0 else "",
                utc(end.there_ms) if end.there_ms >= 0 else "nothing",
                len(
                    {lacking.lane for lacking in (*outlook.missing, *outlook.needed) if lacking.tp == end.tp}
                ),
            )
            for end in work.ends(outlook)
        ],
    )
    for lacking in (*outlook.needed, *outlook.missing):
        ERR.print(f"lane {lacking.lane}: {lacking.text}")
    work.check(outlook)
    if outlook.unfinished is not None:
        ERR.print(
            f"plan {outlook.unfinished} is unfinished, and the other cluster has its inputs: the service would finish it there"
        )
    ERR.print("a failover would go through")
