"""Every option that several commands take, declared once; those that belong together are a group, taken as a whole.

A group is a frozen dataclass: `command` lets typer see its fields as options, and gives the command the group. Most
options can also be set in the environment, as ``SQE_CHAIN_...``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from sqe_chain.cli.console import reported
from sqe_chain.cli.values import paths_of, properties, store_urls
from sqe_chain.engines import MOST_WORKERS
from sqe_chain.protocol.settings import Settings
from sqe_chain.runtime.connecting import Deployment, EngineChoice


@dataclass(frozen=True)
class Option:
    """An option of the command line, as the annotation of what takes its value.

    Attributes:
        help: what it does.
        metavar: a word for its value.
        name: its name without dashes; by default that of the annotated field or parameter.
        env: whether it can be set in the environment too, as ``SQE_CHAIN_`` and its name.
        least: of numbers.
        most: of numbers.
    """

    help: str
    metavar: str | None = None
    name: str = ""
    env: bool = False
    least: float | None = None
    most: float | None = None

    def for_typer(self, field: str) -> Any:  # noqa: ANN401 - typer says no type
        """The same for typer, which takes the value of a field or parameter of this name."""
        name = self.name or field.replace("_", "-")
        env = f"SQE_CHAIN_{name.replace('-', '_').upper()}" if self.env else None
        return typer.Option(
            f"--{name}", help=self.help, metavar=self.metavar, envvar=env, min=self.least, max=self.most
        )


DEFAULTS = Settings()
"""The default settings of a service."""

FlowArgument = Annotated[
    str, typer.Argument(metavar="MODULE:FLOW", help="Where the flow is, as in services.fastening:totals.")
]
StartOption = Annotated[
    Literal["earliest", "latest"] | None,
    Option("Where a new flow begins; by default at offset 0, if no records are missing.", env=True),
]
TakeoverOption = Annotated[bool, Option("Do not wait for a run that seems alive; it is fenced off.")]
WeakOption = Annotated[bool, Option("Accept stores that may lose acknowledged writes.", env=True)]
KafkaConfigOption = Annotated[
    Path | None,
    Option(
        "File of librdkafka properties (name=value, ${NAME} is taken from the environment): SASL, TLS, ...",
        "FILE",
        env=True,
    ),
]
ResumeOption = Annotated[bool, Option("Continue an attempt that was interrupted; the code must be the same.")]
LimitOption = Annotated[
    int | None, Option("Show at most N; by default 100 in a table, all as JSON.", "N", least=1)
]
JsonOption = Annotated[bool, Option("JSON, one object on each line.")]
LogJsonOption = Annotated[bool, Option("JSON lines on standard error, no panel.", env=True)]
TracebackOption = Annotated[bool, Option("With an error, also show its traceback.", env=True)]


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """Brokers, for a command that cannot do without."""

    kafka: Annotated[str, Option("Brokers, separated by commas.", "HOST:PORT", env=True)]
    kafka_config: KafkaConfigOption = None


@dataclass(frozen=True, kw_only=True)
class KafkaIfNeeded:
    """Brokers, for flows that may do without."""

    kafka: Annotated[
        str | None,
        Option(
            "Brokers, separated by commas; not needed by flows that read files and publish nothing.",
            "HOST:PORT",
            env=True,
        ),
    ] = None
    kafka_config: KafkaConfigOption = None


@dataclass(frozen=True, kw_only=True)
class Stores:
    """Where states, claim and plans are."""

    store: Annotated[
        list[str] | None,
        Option(
            "redis://HOST:PORT/DB, cassandra://HOST:PORT/KEYSPACE or sqlite:///FILE; NAME= for stages that name this store. Repeatable.",
            "[NAME=]URL",
            env=True,
        ),
    ] = None

    def urls(self) -> dict[str, str]:
        """Store name -> address; "" is the default and home store.

        Raises:
            ConfigurationError: a name is given twice.
        """
        return store_urls(self.store or ())


@dataclass(frozen=True, kw_only=True)
class Claim:
    """How a command claims the flow that it changes, and what it says meanwhile."""

    takeover: TakeoverOption = False
    allow_weak_durability: WeakOption = False
    log_json: LogJsonOption = False


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What runs the tasks."""

    engine: Annotated[
        Literal["spark", "inprocess"], Option("Where tasks run: on Spark, or in this process.", env=True)
    ] = "spark"
    workers: Annotated[
        int,
        Option(
            "With --engine inprocess: spread the tasks over N processes on this machine; 1: all run in this process.",
            "N",
            env=True,
            least=1,
            most=MOST_WORKERS,
        ),
    ] = 1
    master: Annotated[str | None, Option("Spark's master: local[2], spark://HOST:PORT.", "URL", env=True)] = (
        None
    )
    spark_conf: Annotated[list[str] | None, Option("A property of Spark. Repeatable.", "K=V", env=True)] = (
        None
    )

    def choice(self) -> EngineChoice:
        """The engine.

        Raises:
            ConfigurationError: a property is no K=V, or the number of workers does not fit.
        """
        conf = properties("--spark-conf", self.spark_conf or ())
        return EngineChoice(self.engine, self.master, conf, self.workers)


@dataclass(frozen=True, kw_only=True)
class MostExcluded:
    """How many inputs one batch may exclude."""

    max_excluded: Annotated[
        int,
        Option(
            "Stop before sealing a batch that would exclude more inputs than this, and more than the share.",
            "N",
            env=True,
            least=0,
        ),
    ] = DEFAULTS.max_excluded
    max_excluded_share: Annotated[
        float,
        Option(
            "The same limit as a share of the records read by the batch, 0 to 1; 1: never stop for this.",
            "SHARE",
            env=True,
            least=0,
            most=1,
        ),
    ] = DEFAULTS.max_excluded_share


@dataclass(frozen=True, kw_only=True)
class Servers(Stores, KafkaIfNeeded):
    """What a command takes that moves states, and what it says meanwhile."""

    log_json: LogJsonOption = False


@dataclass(frozen=True, kw_only=True)
class Operation(Claim, Stores, Kafka):
    """What a command takes that works on a flow once."""


@dataclass(frozen=True, kw_only=True)
class Batches(MostExcluded, Claim, Engine, Stores, KafkaIfNeeded):
    """What a service takes, whether it ends by itself or not."""

    files: Annotated[
        list[str] | None,
        Option(
            "Paths or patterns of a source of files, instead of those that the flow declares. Repeatable.",
            "SOURCE=PATH",
        ),
    ] = None
    open_files: Annotated[int, Option("Files that are read at the same time.", "N", env=True, least=1)] = (
        DEFAULTS.open_files
    )
    abandon: Annotated[
        list[str] | None,
        Option(
            "Do not read the rest of the file with this content, which is gone; what was read stays counted. Repeatable.",
            "HASH",
        ),
    ] = None
    max_records: Annotated[
        int, Option("Records of one batch, over all partitions and files.", "N", env=True, least=1)
    ] = DEFAULTS.max_records
    create_topics: Annotated[
        int | None,
        Option(
            "Create missing topics: outputs with the partitions that the flow declares, inputs with N "
            "(0: inputs must exist).",
            "N",
            env=True,
            least=0,
        ),
    ] = None
    close_windows: Annotated[
        bool,
        Option(
            "At the end of the input (`load`, or --once) close all windows and publish their final results. What comes "
            "later and belongs before their end is late."
        ),
    ] = False

    def deployment(
        self,
        *,
        once: bool,
        partitions: str | None = None,
        looked: Callable[[int], object] = lambda _size: None,
    ) -> Deployment:
        """Servers and engine; for the arguments see `Deployment`.

        Raises:
            ConfigurationError: an option has no such value.
        """
        return Deployment(
            kafka=self.kafka,
            kafka_config=self.kafka_config,
            stores=self.urls(),
            engine=self.choice(),
            create_topics=self.create_topics,
            once=once,
            close_windows=self.close_windows,
            files=paths_of(self.files or ()),
            looked=looked,
            partitions=partitions,
        )


def settings_in(*groups: object, **others: Any) -> Settings:  # noqa: ANN401 - those of Settings
    """The settings of a run of this process, from the options that are named like them.

    Args:
        groups: groups of options.
        others: further settings, and those that an option of their name does not hold as they are.

    Raises:
        ConfigurationError: one cannot work.
    """
    known = {one.name for one in fields(Settings)}
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for group in groups
        for name, value in vars(group).items()
        if name in known and value is not None
    }
    return Settings(**{**given, **others})


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A command as typer calls it: with each option of a group by itself, and `--traceback`; errors become one line.

    Args:
        function: the command; a parameter whose type is a group takes that group. Its default has those of the options.
    """
    groups: dict[str, type[Any]] = {}
    parameters: dict[str, inspect.Parameter] = {}
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if not (isinstance(kind, type) and is_dataclass(kind)):
            annotation = _for_typer(parameter.name, kind)
            parameters[parameter.name] = parameter.replace(annotation=annotation, kind=parameter.KEYWORD_ONLY)
            continue
        groups[parameter.name] = kind
        declared = get_type_hints(kind, include_extras=True)
        for one in fields(kind):
            default = getattr(parameter.default, one.name, one.default)
            parameters[one.name] = inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is MISSING else default,
                annotation=_for_typer(one.name, declared[one.name]),
            )
    parameters["traceback"] = inspect.Parameter(
        "traceback",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=_for_typer("traceback", TracebackOption),
    )

    def called(*, traceback: bool, **given: Any) -> None:  # noqa: ANN401 - each is an option
        with reported(traceback=traceback, as_json=given.get("log_json", False)):
            taken = {
                name: kind(**{one.name: given.pop(one.name) for one in fields(kind)})
                for name, kind in groups.items()
            }
            function(**taken, **given)

    called.__name__, called.__doc__ = function.__name__, function.__doc__
    called.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    called.__annotations__ = {}
    return called


def _for_typer(name: str, kind: Any) -> Any:  # noqa: ANN401 - annotations
    """The annotation of a parameter of this name, with typer's option in place of ours."""
    base, *others = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    return (
        Annotated[base, *(one.for_typer(name) if isinstance(one, Option) else one for one in others)]
        if others
        else base
    )
