"""`sqe-chain run`: runs a flow as a service."""

from __future__ import annotations

import signal
from typing import Annotated, Literal

import typer

from sqe_chain.cli.console import reported
from sqe_chain.cli.listening import listening, show_cursor
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import (
    DEFAULTS,
    AbandonOption,
    CreateTopicsOption,
    EngineOption,
    FilesOption,
    FlowArgument,
    KafkaConfigOption,
    LogJsonOption,
    MasterOption,
    MaxExcludedOption,
    MaxExcludedShareOption,
    OpenFilesOption,
    OptionalKafkaOption,
    PartitionsOption,
    SparkConfOption,
    StoreOption,
    TracebackOption,
    WeakOption,
    WorkersOption,
)
from sqe_chain.cli.values import paths_of, properties, store_urls
from sqe_chain.protocol.settings import Settings
from sqe_chain.runtime.connecting import EngineChoice
from sqe_chain.runtime.durations import duration_ms
from sqe_chain.runtime.launching import Deployment, launch
from sqe_chain.runtime.owner import this_process
from sqe_chain.runtime.stop import Stop


def run(  # noqa: PLR0913 - each is an option of the command
    target: FlowArgument,
    *,
    kafka: OptionalKafkaOption = None,
    kafka_config: KafkaConfigOption = None,
    store: StoreOption = None,
    interval: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            envvar="SQE_CHAIN_INTERVAL",
            help="How often a batch is made: 500ms, 5s, 1m. Flows without stages never wait for it.",
        ),
    ] = "5s",
    idle: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            envvar="SQE_CHAIN_IDLE",
            help="How long an input partition must be silent before stages that go by event time no longer wait for it.",
        ),
    ] = "5s",
    start: Annotated[
        Literal["earliest", "latest"] | None,
        typer.Option(
            envvar="SQE_CHAIN_START",
            help="Where a new flow begins; by default at offset 0, if no records are missing.",
        ),
    ] = None,
    engine: EngineOption = "spark",
    workers: WorkersOption = 1,
    master: MasterOption = None,
    spark_conf: SparkConfOption = None,
    partitions: PartitionsOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="Process the messages that are there now, then end.")
    ] = False,
    close_windows: Annotated[
        bool,
        typer.Option(
            "--close-windows",
            help="With --once: at the end of the input close all windows and publish their final results. What comes later and "
            "belongs before their end is late.",
        ),
    ] = False,
    create_topics: CreateTopicsOption = None,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Claim the flow although another run seems alive.")
    ] = False,
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGE", help="Forget a stored stage that the flow no longer has. Repeatable."),
    ] = None,
    accept_rollback: Annotated[
        bool, typer.Option("--accept-rollback", help="Continue although the whole store went back in time.")
    ] = False,
    allow_weak_durability: WeakOption = False,
    max_records: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            envvar="SQE_CHAIN_MAX_RECORDS",
            help="Records of one batch, over all partitions.",
        ),
    ] = 400_000,
    max_bytes: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            min=1,
            envvar="SQE_CHAIN_MAX_BYTES",
            help="Bytes of values read and published in one batch, by the average so far.",
        ),
    ] = 96 << 20,
    files: FilesOption = None,
    open_files: OpenFilesOption = DEFAULTS.open_files,
    abandon: AbandonOption = None,
    max_excluded: MaxExcludedOption = DEFAULTS.max_excluded,
    max_excluded_share: MaxExcludedShareOption = DEFAULTS.max_excluded_share,
    log_json: LogJsonOption = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65_535,
            envvar="SQE_CHAIN_METRICS_PORT",
            help="Serve metrics for Prometheus, /live and /ready on this port, to programs on this machine.",
        ),
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            envvar="SQE_CHAIN_METRICS_HOST",
            help="Address for --metrics-port; 0.0.0.0 for all networks, as in a container.",
        ),
    ] = "127.0.0.1",
    traceback: TracebackOption = False,
) -> None:
    """Run a flow as a service, until SIGTERM or Ctrl-C.

    Then it finishes the current batch, so that the next run can continue at once. A second Ctrl-C ends the
    process immediately, which is as safe as any crash.
    """
    with reported(traceback=traceback, as_json=log_json):
        settings = Settings(
            interval_ms=duration_ms(interval),
            idle_ms=duration_ms(idle),
            start=start,
            takeover=takeover,
            max_records=max_records,
            max_bytes=max_bytes,
            max_excluded=max_excluded,
            max_excluded_share=max_excluded_share,
            accept_rollback=accept_rollback,
            allow_weak_durability=allow_weak_durability,
            drop_stages=tuple(drop or ()),
            open_files=open_files,
            abandon=tuple(abandon or ()),
            owner=this_process().as_text(),
        )
        flow = load_flow(target)
        deployment = Deployment(
            kafka=kafka,
            kafka_config=kafka_config,
            stores=store_urls(store or ()),
            engine=EngineChoice(engine, master, properties("--spark-conf", spark_conf or ()), workers),
            create_topics=create_topics,
            once=once,
            close_windows=close_windows,
            files=paths_of(files or ()),
            partitions=partitions,
        )
        who = listening(
            deployment.flow_of(flow),
            kafka,
            log_json=log_json,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
        )
        stop = Stop()
        # Until the service has handlers of its own: it may wait for addresses before.
        before = signal.signal(signal.SIGTERM, lambda *_: stop.request("SIGTERM"))
        try:
            launch(flow, settings, deployment, observers=who, stop=stop, restore=show_cursor)
        finally:
            if before is signal.SIG_DFL:  # else the process ends, with the status of what has happened here
                signal.signal(signal.SIGTERM, before)
