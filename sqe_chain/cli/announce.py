"""`sqe-chain announce`: publish the newest state of every key once more, for receivers of `changes()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from sqe_chain.cli.console import ERR, reported
from sqe_chain.cli.listening import heartbeat_lost, working_on
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import (
    FlowArgument,
    KafkaConfigOption,
    KafkaOption,
    LogJsonOption,
    StoreOption,
    TakeoverOption,
    TracebackOption,
    WeakOption,
)
from sqe_chain.errors import NotCaughtUp
from sqe_chain.operations.announcement import Announcement, stages_to_announce
from sqe_chain.protocol.results import AnnouncementResult
from sqe_chain.protocol.settings import Settings
from sqe_chain.runtime.launching import Prepared
from sqe_chain.runtime.owner import this_process
from sqe_chain.runtime.stop import Heartbeat


def announce(  # noqa: PLR0913 - each is an option of the command
    target: FlowArgument,
    *,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            "--stage",
            metavar="NAME",
            help="Only the states of this stage; by default of all with outputs after changes(). Repeatable.",
        ),
    ] = None,
    kafka: KafkaOption,
    kafka_config: KafkaConfigOption = None,
    store: StoreOption = None,
    takeover: TakeoverOption = False,
    allow_weak_durability: WeakOption = False,
    log_json: LogJsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Publish the newest state of every key once more to the outputs after changes().

    For receivers that need the states that a rebuild has changed. They count each message once, however often this
    command is killed and repeated. The service must have caught up since the last rebuild or rewind.
    """
    with reported(traceback=traceback, as_json=log_json):
        flow = load_flow(target)
        stages = stage or ()
        stages_to_announce(flow, stages)  # before anything is connected
        settings = Settings(
            takeover=takeover, allow_weak_durability=allow_weak_durability, owner=this_process().as_text()
        )
        with working_on(flow, settings, kafka, kafka_config, store, log_json=log_json) as found:
            result = announce_states(found, stages)
        ERR.print(result)


def announce_states(found: Prepared, stages: Sequence[str] = ()) -> str:
    """Announce, and return a sentence about what was published.

    Args:
        found: the flow and its ports.
        stages: names of stages; none: all.
    """
    work = Announcement(found.env, stages, lambda: found.stop.requested)
    with Heartbeat(work.beat, found.stop, lambda error: heartbeat_lost(found, error)):
        result = work.run()
    return _summary(found.env.flow.name, result)


def announce_if_caught_up(found: Prepared, target: str) -> str:
    """The same after a rebuild; a flow that first has to catch up is no error.

    Args:
        found: the flow and its ports.
        target: how the user names the flow.
    """
    try:
        return announce_states(found)
    except NotCaughtUp as error:
        return f"not announced yet: {error}: sqe-chain announce {target}"


def _summary(flow: str, result: AnnouncementResult) -> str:
    parts = [f"{count} messages for stage {stage!r}" for stage, count in result.outputs.items()]
    if result.known:
        parts.append(f"announced before and unchanged since: {', '.join(result.known)}")
    return f"flow {flow!r} announces its states at plan {result.plan}: {'; '.join(parts) or 'there are none'}"
