"""Options that several commands share. Most can also be set in the environment, as ``SQE_CHAIN_...``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sqe_chain.engines import MOST_WORKERS
from sqe_chain.protocol.settings import Settings

DEFAULTS = Settings()
"""The default settings of a service."""

FlowArgument = Annotated[
    str, typer.Argument(metavar="MODULE:FLOW", help="Where the flow is, as in services.fastening:totals.")
]
KafkaOption = Annotated[
    str,
    typer.Option(
        "--kafka", metavar="HOST:PORT", envvar="SQE_CHAIN_KAFKA", help="Brokers, separated by commas."
    ),
]
OptionalKafkaOption = Annotated[
    str | None,
    typer.Option(
        "--kafka",
        metavar="HOST:PORT",
        envvar="SQE_CHAIN_KAFKA",
        help="Brokers, separated by commas; not needed by flows that read files and publish nothing.",
    ),
]
FilesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--files",
        metavar="SOURCE=PATH",
        help="Paths or patterns of a source of files, instead of those that the flow declares. Repeatable.",
    ),
]
AbandonOption = Annotated[
    list[str] | None,
    typer.Option(
        "--abandon",
        metavar="HASH",
        help="Do not read the rest of the file with this content, which is gone; what was read stays counted. Repeatable.",
    ),
]
OpenFilesOption = Annotated[
    int,
    typer.Option(
        "--open-files",
        metavar="N",
        min=1,
        envvar="SQE_CHAIN_OPEN_FILES",
        help="Files that are read at the same time.",
    ),
]
KafkaConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        metavar="FILE",
        envvar="SQE_CHAIN_KAFKA_CONFIG",
        help="File of librdkafka properties (name=value, ${NAME} is taken from the environment): SASL, TLS, ...",
    ),
]
PartitionsOption = Annotated[
    str | None,
    typer.Option(
        "--partitions",
        metavar="SET",
        envvar="SQE_CHAIN_PARTITIONS",
        help="Read only these input partitions, as one of several readers of the flow: 0-3, or 0,2,4-7, or 8- (8 and all above).",
    ),
]
StoreOption = Annotated[
    list[str] | None,
    typer.Option(
        "--store",
        metavar="[NAME=]URL",
        envvar="SQE_CHAIN_STORE",
        help="redis://HOST:PORT/DB, cassandra://HOST:PORT/KEYSPACE or sqlite:///FILE; NAME= for stages that name this store. Repeatable.",
    ),
]
TakeoverOption = Annotated[
    bool, typer.Option("--takeover", help="Do not wait for a run that seems alive; it is fenced off.")
]
CreateTopicsOption = Annotated[
    int | None,
    typer.Option(
        "--create-topics",
        metavar="N",
        min=0,
        envvar="SQE_CHAIN_CREATE_TOPICS",
        help="Create missing topics: outputs with the partitions that the flow declares, inputs with N "
        "(0: inputs must exist).",
    ),
]
EngineOption = Annotated[
    Literal["spark", "inprocess"],
    typer.Option(
        "--engine", envvar="SQE_CHAIN_ENGINE", help="Where tasks run: on Spark, or in this process."
    ),
]
WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        max=MOST_WORKERS,
        envvar="SQE_CHAIN_WORKERS",
        help="With --engine inprocess: spread the tasks over N processes on this machine; 1: all run in this process.",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        envvar="SQE_CHAIN_MASTER",
        help="Spark's master: local[2], spark://HOST:PORT.",
    ),
]
SparkConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--spark-conf", metavar="K=V", envvar="SQE_CHAIN_SPARK_CONF", help="A property of Spark. Repeatable."
    ),
]
WeakOption = Annotated[
    bool,
    typer.Option(
        "--allow-weak-durability",
        envvar="SQE_CHAIN_ALLOW_WEAK_DURABILITY",
        help="Accept stores that may lose acknowledged writes.",
    ),
]
MaxExcludedOption = Annotated[
    int,
    typer.Option(
        "--max-excluded",
        metavar="N",
        min=0,
        envvar="SQE_CHAIN_MAX_EXCLUDED",
        help="Stop before sealing a batch that would exclude more inputs than this, and more than the share.",
    ),
]
MaxExcludedShareOption = Annotated[
    float,
    typer.Option(
        "--max-excluded-share",
        metavar="SHARE",
        min=0,
        max=1,
        envvar="SQE_CHAIN_MAX_EXCLUDED_SHARE",
        help="The same limit as a share of the records read by the batch, 0 to 1; 1: never stop for this.",
    ),
]
LogJsonOption = Annotated[
    bool,
    typer.Option("--log-json", envvar="SQE_CHAIN_LOG_JSON", help="JSON lines on standard error, no panel."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, one object on each line.")]
TracebackOption = Annotated[
    bool,
    typer.Option("--traceback", envvar="SQE_CHAIN_TRACEBACK", help="With an error, also show its traceback."),
]
