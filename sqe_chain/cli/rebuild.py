"""`sqe-chain rebuild` and `sqe-chain rewind`: fold states again that a store has lost or code has computed wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from sqe_chain.cli.announce import announce_if_caught_up
from sqe_chain.cli.console import ERR, reported
from sqe_chain.cli.listening import heartbeat_lost, working_on
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import (
    DEFAULTS,
    EngineOption,
    FlowArgument,
    KafkaConfigOption,
    KafkaOption,
    LogJsonOption,
    MasterOption,
    MaxExcludedOption,
    MaxExcludedShareOption,
    SparkConfOption,
    StoreOption,
    TakeoverOption,
    TracebackOption,
    WeakOption,
    WorkersOption,
)
from sqe_chain.cli.values import properties
from sqe_chain.cli.values import target as target_of
from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import TopicPartition
from sqe_chain.protocol.announcement import stages_to_announce
from sqe_chain.protocol.file_inputs import check_no_files
from sqe_chain.protocol.rebuild import Rebuild
from sqe_chain.protocol.republish import Republisher
from sqe_chain.protocol.settings import Settings
from sqe_chain.runtime.connecting import EngineChoice
from sqe_chain.runtime.launching import Prepared
from sqe_chain.runtime.owner import this_process
from sqe_chain.runtime.stop import Heartbeat

To = Mapping[TopicPartition, int] | int | None

ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Continue an attempt that was interrupted; the code must be the same."),
]
AnnounceOption = Annotated[
    bool,
    typer.Option(
        "--announce", help="Then publish the newest state of every key once more; see sqe-chain announce."
    ),
]
RepublishOption = Annotated[
    bool,
    typer.Option("--republish", help="Publish the outputs of inputs after that point again."),
]


def rebuild(  # noqa: PLR0913 - each is an option of the command
    target: FlowArgument,
    *,
    kafka: KafkaOption,
    kafka_config: KafkaConfigOption = None,
    store: StoreOption = None,
    engine: EngineOption = "spark",
    workers: WorkersOption = 1,
    master: MasterOption = None,
    spark_conf: SparkConfOption = None,
    resume: ResumeOption = False,
    announce: AnnounceOption = False,
    takeover: TakeoverOption = False,
    allow_weak_durability: WeakOption = False,
    max_excluded: MaxExcludedOption = DEFAULTS.max_excluded,
    max_excluded_share: MaxExcludedShareOption = DEFAULTS.max_excluded_share,
    log_json: LogJsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Fold all states of a flow again from its inputs, up to its last batch.

    The new states are built next to the old ones, which stay unchanged until one write switches over. Nothing is
    published again, unless --announce is given. The inputs must still hold everything since the flow began.
    """
    with reported(traceback=traceback, as_json=log_json):
        flow = load_flow(target)
        if announce:
            stages_to_announce(flow)  # otherwise it would be refused only when everything is folded
        settings = Settings(
            takeover=takeover,
            allow_weak_durability=allow_weak_durability,
            max_excluded=max_excluded,
            max_excluded_share=max_excluded_share,
            owner=this_process().as_text(),
        )
        choice = EngineChoice(engine, master, properties("--spark-conf", spark_conf or ()), workers)
        with working_on(flow, settings, kafka, kafka_config, store, choice, log_json=log_json) as found:
            results = [_again(found, None, resume=resume)]
            if announce:
                results.append(announce_if_caught_up(found, target))
        for result in results:
            ERR.print(result)


def rewind(  # noqa: PLR0913 - each is an option of the command
    target: FlowArgument,
    *,
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="TIME|TOPIC[PARTITION]=OFFSET",
            help="A time with its zone, by the records' timestamps; or the offset to be read next, repeatable.",
        ),
    ],
    kafka: KafkaOption,
    kafka_config: KafkaConfigOption = None,
    store: StoreOption = None,
    engine: EngineOption = "spark",
    workers: WorkersOption = 1,
    master: MasterOption = None,
    spark_conf: SparkConfOption = None,
    republish: RepublishOption = False,
    resume: ResumeOption = False,
    takeover: TakeoverOption = False,
    allow_weak_durability: WeakOption = False,
    max_excluded: MaxExcludedOption = DEFAULTS.max_excluded,
    max_excluded_share: MaxExcludedShareOption = DEFAULTS.max_excluded_share,
    log_json: LogJsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Put a flow back to an earlier point: fold its states again up to there, and let it continue from there.

    It folds the inputs after that point a second time, and publishes nothing for them unless --republish is given.
    A flow without states only moves its offsets and publishes: it needs --republish.
    """
    with reported(traceback=traceback, as_json=log_json):
        flow = load_flow(target)
        settings = Settings(
            takeover=takeover,
            allow_weak_durability=allow_weak_durability,
            max_excluded=max_excluded,
            max_excluded_share=max_excluded_share,
            owner=this_process().as_text(),
        )
        choice = EngineChoice(engine, master, properties("--spark-conf", spark_conf or ()), workers)
        where = target_of(to)
        check_no_files(flow)
        if not flow.stages() and not republish:
            raise ConfigurationError(
                f"flow {flow.name!r} has no stages: it could only publish again; give --republish if you want that "
                "(receivers ignore what they have counted)"
            )
        with working_on(flow, settings, kafka, kafka_config, store, choice, log_json=log_json) as found:
            if flow.stages():
                result = _again(found, where, republish=republish, resume=resume)
            else:
                result = _move(found, where)
        ERR.print(result)


def _again(found: Prepared, to: To, *, republish: bool = False, resume: bool = False) -> str:
    work = Rebuild(found.env, found.engine, to, republish, resume, lambda: found.stop.requested)
    with Heartbeat(work.beat, found.stop, lambda error: heartbeat_lost(found, error)):
        plan = work.run()
    name = found.env.flow.name
    return f"flow {name!r} is now at plan {plan.number}, folded again; start its service"


def _move(found: Prepared, to: Mapping[TopicPartition, int] | int) -> str:
    service = Republisher(found.env)
    service.start()
    offsets = service.rewind(to)
    service.check_moved()
    partitions = ", ".join(
        f"{topic}[{partition}]@{offset}" for (topic, partition), offset in sorted(offsets.items())
    )
    return f"flow {found.env.flow.name!r} continues from {partitions}; start its service"
