"""`sqe-chain rebuild`, `rewind` and `announce`: fold states again, and republish what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from sqe_chain.cli.console import ERR
from sqe_chain.cli.listening import prepare_command, work_with_heartbeat
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import (
    EngineOptions,
    FlowArgument,
    OperationOptions,
    ResumeOption,
    SkipLimits,
    command,
    settings_in,
)
from sqe_chain.cli.values import target as target_of
from sqe_chain.errors import ConfigurationError, NotCaughtUp
from sqe_chain.features.file_inputs import check_no_files
from sqe_chain.operations.announcement import Announcement, stages_to_announce
from sqe_chain.operations.rebuild import Rebuild
from sqe_chain.ports import TopicPartition
from sqe_chain.protocol.without_plans import Republisher
from sqe_chain.runtime.launching import Prepared

To = Mapping[TopicPartition, int] | int | None


@command
def rebuild(
    target: FlowArgument,
    *,
    operation: OperationOptions,
    engine: EngineOptions,
    limit: SkipLimits,
    resume: ResumeOption = False,
    accept_lost_dead_letters: bool = False,
    announce: Annotated[
        bool, Option("Then publish the newest state of every key again; see sqe-chain announce.")
    ] = False,
) -> None:
    """Fold all states of a flow again from its inputs, up to its last batch.

    It builds the new states next to the old ones, which stay unchanged until one write cuts over. It publishes nothing,
    except with `--announce`. The inputs must still hold everything since the flow began.
    """
    flow = load_flow(target)
    if announce:
        stages_to_announce(flow)  # otherwise it would be refused only when everything is folded
    with prepare_command(
        flow,
        settings_in(operation, limit, accept_lost_dead_letters=accept_lost_dead_letters),
        operation,
        engine.choice(),
    ) as prepared:
        results = [_fold_again(prepared, None, resume=resume)]
        if announce:
            try:
                results.append(_announce(prepared))
            except NotCaughtUp as error:  # it first has to catch up, which is no error
                results.append(f"states are not republished yet: {error}: sqe-chain announce {target}")
    for result in results:
        ERR.print(result)


@command
def rewind(
    target: FlowArgument,
    *,
    to: Annotated[
        list[str],
        Option(
            "A time with its zone, by the records' timestamps; or the offset to be read next, repeatable.",
            "TIME|TOPIC[PARTITION]=OFFSET",
        ),
    ],
    operation: OperationOptions,
    engine: EngineOptions,
    limit: SkipLimits,
    republish: Annotated[bool, Option("Publish the outputs of inputs after that point again.")] = False,
    resume: ResumeOption = False,
    accept_lost_dead_letters: bool = False,
) -> None:
    """Put a flow back to an earlier point: fold its states again up to there, and let it continue from there.

    The flow folds the inputs after that point a second time, and publishes nothing for them without --republish.
    A flow without states only moves its offsets and publishes: it needs --republish.
    """
    flow = load_flow(target)
    settings = settings_in(operation, limit, accept_lost_dead_letters=accept_lost_dead_letters)
    choice, where = engine.choice(), target_of(to)
    check_no_files(flow)
    if not flow.stages and not republish:
        raise ConfigurationError(
            f"flow {flow.name!r} has no stages, and could only publish again. Expected --republish, if you want that "
            "(receivers ignore what they have counted)"
        )
    with prepare_command(flow, settings, operation, choice) as prepared:
        if flow.keeps_plans:
            result = _fold_again(prepared, where, republish=republish, resume=resume)
        else:
            result = _move(prepared, where)
    ERR.print(result)


@command
def announce(
    target: FlowArgument,
    *,
    stage: Annotated[
        list[str] | None,
        Option(
            "Only the states of this stage; by default of all with outputs after changes(). Repeatable.",
            "NAME",
        ),
    ] = None,
    operation: OperationOptions,
) -> None:
    """Publish the newest state of every key again to the outputs after changes().

    For receivers that need the states that a rebuild has changed. They count each message once, however often you kill and
    repeat this command. The service must have caught up since the last rebuild or rewind.
    """
    flow = load_flow(target)
    stages_to_announce(flow, stage or ())  # before anything is connected
    with prepare_command(flow, settings_in(operation), operation) as prepared:
        result = _announce(prepared, stage or ())
    ERR.print(result)


def _fold_again(prepared: Prepared, to: To, *, republish: bool = False, resume: bool = False) -> str:
    plan = work_with_heartbeat(
        prepared,
        Rebuild(prepared.env, prepared.engine, to, republish, resume, stopped=prepared.asked_to_stop),
    )
    return f"flow {prepared.env.flow.name!r} is now at plan {plan.number}, folded again; start its service"


def _move(prepared: Prepared, to: Mapping[TopicPartition, int] | int) -> str:
    service = Republisher(prepared.env)
    if not prepared.env.settings.once.takeover:
        service.check_stopped()
    try:
        service.start()
        offsets = service.rewind(to)
    finally:
        service.leave()
    partitions = ", ".join(
        f"{topic}[{partition}]@{offset}" for (topic, partition), offset in sorted(offsets.items())
    )
    return f"flow {prepared.env.flow.name!r} continues from {partitions}; start its service"


def _announce(prepared: Prepared, stages: Sequence[str] = ()) -> str:
    """Republish states, and return a sentence about what was published."""
    result = work_with_heartbeat(prepared, Announcement(prepared.env, stages, prepared.asked_to_stop))
    parts = [f"{count} messages for stage {stage!r}" for stage, count in result.outputs.items()]
    if result.known:
        parts.append(f"published before and unchanged since: {', '.join(result.known)}")
    done = "; ".join(parts) or "there are none"
    return f"flow {prepared.env.flow.name!r} has republished its states at plan {result.plan}: {done}"
