"""Every option that several commands take, declared once; those that belong together are a group, taken as a whole.

A group is a frozen dataclass: `command` lets typer see its fields as options, and gives the command the group. Most
options can also be set in the environment, as ``SQE_CHAIN_...``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import typer

from sqe_chain.cli.console import report_errors
from sqe_chain.cli.option_table import PANELS, SHARED, TABLE, Option
from sqe_chain.cli.values import paths_of, properties, store_urls
from sqe_chain.features.settings import NAMES, settings_of
from sqe_chain.plans.settings import Settings
from sqe_chain.runtime.connecting import Deployment, EngineChoice

DEFAULTS = Settings()
"""The default settings of a service."""
_FEW: Final = 7
"""Options that need no panels: their help fits a screen."""
ALSO: Final = "Also, as `sqe-chain --help` describes them:"
"""How the paragraph with the names of shared options begins."""

FlowArgument = Annotated[
    str, typer.Argument(metavar="MODULE:FLOW", help="Where the flow is, as in services.fastening:totals.")
]
StartOption = Annotated[
    Literal["earliest", "latest"] | None,
    Option("Where a new flow begins; by default at offset 0, if no records are missing.", env=True),
]
TakeoverOption = Annotated[bool, TABLE["takeover"]]
WeakOption = Annotated[bool, TABLE["allow_weak_durability"]]
ResumeOption = Annotated[bool, Option("Continue an attempt that was interrupted; the code must be the same.")]
LimitOption = Annotated[
    int | None, Option("Show at most N; by default 100 in a table, all as JSON.", "N", least=1)
]
JsonOption = Annotated[bool, TABLE["json"]]
_LogJsonOption = Annotated[bool, TABLE["log_json"]]
_TracebackOption = Annotated[bool, TABLE["traceback"]]


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """Brokers, for a command that cannot do without."""

    kafka: str
    kafka_config: Path | None = None


@dataclass(frozen=True, kw_only=True)
class KafkaIfNeeded:
    """Brokers, for flows that may do without."""

    kafka: str | None = None
    kafka_config: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Stores:
    """Where states, claim and plans are."""

    store: list[str] | None = None

    def urls(self) -> dict[str, str]:
        """Store name -> address; "" is the default, which holds the metadata.

        Raises:
            ConfigurationError: a name is given twice.
        """
        return store_urls(self.store or ())


@dataclass(frozen=True, kw_only=True)
class _ClaimOptions:
    """How a command claims the flow that it changes, and reports what it does."""

    takeover: TakeoverOption = False
    allow_weak_durability: WeakOption = False
    log_json: _LogJsonOption = False


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What runs the tasks."""

    engine: Literal["spark", "inprocess"] = "spark"
    workers: int = 1
    master: str | None = None
    spark_conf: list[str] | None = None

    def choice(self) -> EngineChoice:
        """The engine.

        Raises:
            ConfigurationError: a property is no K=V, or the number of workers does not fit.
        """
        conf = properties("--spark-conf", self.spark_conf or ())
        return EngineChoice(self.engine, self.master, conf, self.workers)


@dataclass(frozen=True, kw_only=True)
class SkipLimits:
    """How many inputs one batch may skip."""

    max_excluded: int = DEFAULTS.max_excluded


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Stores, KafkaIfNeeded):
    """What a command takes that moves states, and how it reports."""

    log_json: _LogJsonOption = False


@dataclass(frozen=True, kw_only=True)
class ReaderOptions(_ClaimOptions, Stores, KafkaIfNeeded):
    """What one needs to show readers, or to change them."""


@dataclass(frozen=True, kw_only=True)
class OperationOptions(_ClaimOptions, Stores, Kafka):
    """What a command takes that works on a flow once."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions(SkipLimits, _ClaimOptions, EngineOptions, Stores, KafkaIfNeeded):
    """What a service takes, whether it ends by itself or not."""

    files: list[str] | None = None
    abandon: list[str] | None = None
    max_records: int = DEFAULTS.max_records
    create_topics: int | None = None
    close_windows: bool = False
    registry: str | None = None

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
            registry=self.registry,
        )


def settings_in(*groups: object, **others: Any) -> Settings:  # noqa: ANN401 - those of Settings
    """The settings of a run of this process, from the options in these groups that are named like them, and from others.

    Raises:
        ConfigurationError: one cannot work.
    """
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for group in groups
        for name, value in vars(group).items()
        if name in NAMES and value is not None
    }
    return settings_of(**{**given, **others})


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A command as typer calls it: with each option of a group by itself, and `--traceback`; errors become one line.

    Args:
        function: the command; a parameter whose type is a group takes that group. Its default has those of the options.
    """
    groups: dict[str, type[Any]] = {}
    declared: dict[str, Any] = {}
    parameters: dict[str, inspect.Parameter] = {}
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if not (isinstance(kind, type) and is_dataclass(kind)):
            declared[parameter.name] = kind
            parameters[parameter.name] = parameter.replace(kind=parameter.KEYWORD_ONLY)
            continue
        groups[parameter.name] = kind
        declared |= get_type_hints(kind, include_extras=True)
        for option in fields(kind):
            default = getattr(parameter.default, option.name, option.default)
            parameters[option.name] = inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is MISSING else default,
            )
    parameters["traceback"] = inspect.Parameter(
        "traceback",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
    )
    declared["traceback"] = _TracebackOption
    panels = _panels(parameters)
    parameters = {
        name: parameters[name].replace(annotation=_for_typer(name, declared[name], panels.get(name)))
        for name in (*(name for name in parameters if name not in panels), *panels)
    }

    def called(*, traceback: bool, **given: Any) -> None:  # noqa: ANN401 - each is an option
        with report_errors(traceback=traceback, as_json=given.get("log_json", False)):
            taken = {
                name: kind(**{option.name: given.pop(option.name) for option in fields(kind)})
                for name, kind in groups.items()
            }
            function(**taken, **given)

    paragraphs = [*(inspect.getdoc(function) or "").split("\n\n"), _shared_line(parameters)]
    called.__name__ = function.__name__
    called.__doc__ = "\n\n".join(
        " ".join(paragraph.split()) for paragraph in paragraphs
    )  # the terminal breaks the lines
    called.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    called.__annotations__ = {}
    return called


def _panels(names: Collection[str]) -> dict[str, str]:
    """Name of an option -> the panel that shows it, in the order of a help that is longer than a screen; else nothing."""
    shown = [(name, panel) for panel, options in PANELS.items() for name in options if name in names]
    return dict(shown) if len(shown) > _FEW else {}


def _shared_line(parameters: Mapping[str, inspect.Parameter]) -> str:
    """The names of the options that the help of a command does not describe."""
    names = [
        f"{_name_of(name)}{' (required)' if parameters[name].default is inspect.Parameter.empty else ''}"
        for name in SHARED
        if name in parameters
    ]
    return f"{ALSO} {', '.join(names)}."


def describe_shared() -> str:
    """The options of many commands, a paragraph each, for the help of all commands."""
    return "\n\n".join(
        f"{_name_of(name)}{f' {option.metavar}' if option.metavar else ''}: {option.help}"
        f"{f' [{option.variable(name)}]' if option.env else ''}"
        for name, option in SHARED.items()
    )


def _name_of(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _for_typer(name: str, kind: Any, panel: str | None) -> Any:  # noqa: ANN401 - annotations
    """The annotation of a parameter of this name, with typer's option in place of ours, or from the table."""
    base, *others = get_args(kind) if get_origin(kind) is Annotated else (kind, *_row(name))
    return (
        Annotated[
            base, *(extra.for_typer(name, panel) if isinstance(extra, Option) else extra for extra in others)
        ]
        if others
        else base
    )


def _row(name: str) -> tuple[Option, ...]:
    return (TABLE[name],) if name in TABLE else ()
