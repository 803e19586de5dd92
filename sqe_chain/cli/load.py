"""`sqe-chain load`: loads what a flow's files hold and is not counted yet, with a progress bar, and ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from sqe_chain.cli.console import ERR, OUT, print_json, reported
from sqe_chain.cli.listening import show_cursor
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import (
    DEFAULTS,
    AbandonOption,
    CreateTopicsOption,
    EngineOption,
    FilesOption,
    FlowArgument,
    JsonOption,
    KafkaConfigOption,
    LogJsonOption,
    MasterOption,
    MaxExcludedOption,
    MaxExcludedShareOption,
    OpenFilesOption,
    OptionalKafkaOption,
    SparkConfOption,
    StoreOption,
    TakeoverOption,
    TracebackOption,
    WeakOption,
    WorkersOption,
)
from sqe_chain.cli.values import paths_of, properties, store_urls
from sqe_chain.errors import ConfigurationError
from sqe_chain.protocol.events import Committed, Event, FilesSeen, TableReplaced
from sqe_chain.protocol.interfaces import Observer, When
from sqe_chain.protocol.overwrite import Mode
from sqe_chain.protocol.settings import Settings
from sqe_chain.runtime.connecting import EngineChoice
from sqe_chain.runtime.launching import Deployment, launch
from sqe_chain.runtime.lines import WARNINGS, Lines
from sqe_chain.runtime.owner import this_process
from sqe_chain.runtime.statistics import Statistics
from sqe_chain.runtime.stop import ServiceClock
from sqe_chain.safe_text import shown

_MEGA = 1_000_000
CloseWindowsOption = Annotated[
    bool,
    typer.Option("--close-windows", help="At the end close all windows and publish their final results."),
]
OverwriteOption = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace all rows of the flow's tables by those of the files, at the end and at once.",
    ),
]
OverwritePartitionsOption = Annotated[
    bool,
    typer.Option(
        "--overwrite-partitions",
        help="Replace only the rows whose partition keys are in the files; other rows stay.",
    ),
]
AgainOption = Annotated[
    bool,
    typer.Option(
        "--again",
        help="Overwrite although the last load was an overwrite with the same contents: the flow's functions have changed.",
    ),
]
DropOverwriteOption = Annotated[
    bool,
    typer.Option(
        "--drop-overwrite",
        help="Give up the overwrite that is under way, and end: tables stay as they are.",
    ),
]
MaxRecordsOption = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, envvar="SQE_CHAIN_MAX_RECORDS", help="Rows of one batch, over all files."
    ),
]


class _Rate(ProgressColumn):
    """Rows a second."""

    def render(self, task: Task) -> Text:
        """The rate, as soon as it is known."""
        return Text(f"{task.speed:,.0f} rows/s" if task.speed else "", "progress.data.speed")


class Loading:
    """What a load has done so far, and the bar that shows it. Implements `protocol.interfaces.Observer`.

    Attributes:
        seen: which files there are; None: they were not looked at yet.
        rows: read by this load.
        left_out: of these, left out by the poison policy.
        overwrites: what has become of tables, a sentence each.
    """

    def __init__(self) -> None:
        self.seen: FilesSeen | None = None
        self.rows = self.left_out = 0
        self.overwrites: list[str] = []
        self._files = self._size = 0
        self._since = 0
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[what]}"),
            _Rate(),
            TimeRemainingColumn(),
            console=ERR,
        )
        self._task = self._bar.add_task("looking at files", total=None, what="")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar in a terminal, as long as the context lasts."""
        if not ERR.is_terminal:
            yield
            return
        with self._bar:
            yield

    def looked(self, size: int) -> None:
        """Note that a file was looked at.

        Args:
            size: its bytes.
        """
        self._files += 1
        self._size += size
        self._bar.update(self._task, what=f"{self._files:,} files, {self._size / _MEGA:,.1f} MB")

    def step(self, number: int, when: When) -> None:
        """Ignored: events are enough."""

    def event(self, event: Event) -> None:
        """Move the bar."""
        if isinstance(event, FilesSeen):
            self.seen, self._since = event, 0
            self._bar.update(self._task, description="loading", total=event.rows)
        elif isinstance(event, Committed):
            self.rows += event.inputs
            self._since += event.inputs
            self.left_out += event.excluded
        elif isinstance(event, TableReplaced):
            what = "all rows" if event.mode == "table" else "the partition keys of these files"
            self.overwrites.append(
                f"table {event.table}: {what} replaced by those of {event.files:,} files (plan {event.plan})"
            )
        elif event.name in WARNINGS and ERR.is_terminal:
            fields = event.fields()
            ERR.print(Text(f"{event.name}  {shown(fields.get('text', fields))}"))
        if self.seen is not None:
            done = self.seen.rows - self.seen.rows_left + self._since
            files = self.seen.files - self.seen.files_left
            what = f"rows {done:,}/{self.seen.rows:,}  files {files:,}/{self.seen.files:,}  {self._size / _MEGA:,.1f} MB"
            self._bar.update(self._task, completed=done, what=what)

    def result(self) -> dict[str, int]:
        """What has become of the load."""
        files = self.seen.files if self.seen is not None else 0
        rows, left = (self.seen.rows, self.seen.rows_left - self._since) if self.seen is not None else (0, 0)
        return {"files": files, "rows": rows, "read": self.rows, "left_out": self.left_out, "left": left}


def load(  # noqa: PLR0913 - each is an option of the command
    target: FlowArgument,
    *,
    store: StoreOption = None,
    files: FilesOption = None,
    kafka: OptionalKafkaOption = None,
    kafka_config: KafkaConfigOption = None,
    engine: EngineOption = "inprocess",
    workers: WorkersOption = 1,
    master: MasterOption = None,
    spark_conf: SparkConfOption = None,
    open_files: OpenFilesOption = DEFAULTS.open_files,
    abandon: AbandonOption = None,
    close_windows: CloseWindowsOption = False,
    overwrite: OverwriteOption = False,
    overwrite_partitions: OverwritePartitionsOption = False,
    again: AgainOption = False,
    drop_overwrite: DropOverwriteOption = False,
    create_topics: CreateTopicsOption = None,
    takeover: TakeoverOption = False,
    allow_weak_durability: WeakOption = False,
    max_records: MaxRecordsOption = DEFAULTS.max_records,
    max_excluded: MaxExcludedOption = DEFAULTS.max_excluded,
    max_excluded_share: MaxExcludedShareOption = DEFAULTS.max_excluded_share,
    json: JsonOption = False,
    log_json: LogJsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Load what the files of a flow hold and is not counted yet, and end.

    Interrupted by anything, the next load goes on where this one was; a second load of the same files adds nothing. With --overwrite
    readers of a table see its old rows until all files are read, and from then on those of the files.
    """
    with reported(traceback=traceback, as_json=log_json):
        settings = Settings(
            overwrite=_overwritten(table=overwrite, partitions=overwrite_partitions),
            again=again,
            drop_overwrite=drop_overwrite,
            takeover=takeover,
            max_records=max_records,
            max_excluded=max_excluded,
            max_excluded_share=max_excluded_share,
            allow_weak_durability=allow_weak_durability,
            open_files=open_files,
            abandon=tuple(abandon or ()),
            owner=this_process().as_text(),
        )
        flow = load_flow(target)
        if not flow.file_sources():
            raise ConfigurationError(f"flow {flow.name!r} reads no files: run it with sqe-chain run")
        found = Loading()
        deployment = Deployment(
            kafka=kafka,
            kafka_config=kafka_config,
            stores=store_urls(store or ()),
            engine=EngineChoice(engine, master, properties("--spark-conf", spark_conf or ()), workers),
            create_topics=create_topics,
            once=True,
            close_windows=close_windows,
            files=paths_of(files or ()),
            looked=found.looked,
        )

        @contextmanager
        def observers(_statistics: Statistics, _clock: ServiceClock) -> Iterator[Sequence[Observer]]:
            lines = [Lines(flow.name, as_json=log_json)] if log_json or not ERR.is_terminal else []
            with found.shown():
                yield [found, *lines]

        launch(flow, settings, deployment, observers=observers, restore=show_cursor)
        result = found.result()
        if not result["files"] and not drop_overwrite:
            ERR.print("there were no files with rows")
        if json:
            print_json(result)
        else:
            _print(result, found.overwrites)


def _overwritten(*, table: bool, partitions: bool) -> Mode | None:
    if table and partitions:
        raise ConfigurationError(
            "--overwrite replaces all rows, --overwrite-partitions some: give one of them"
        )
    return "table" if table else "partitions" if partitions else None


def _print(result: Mapping[str, int], overwrites: Iterable[str]) -> None:
    OUT.print(
        f"{result['read']:,} rows read, {result['left_out']:,} of them left out; {result['files']:,} files hold "
        f"{result['rows']:,} rows, {result['left']:,} of them still to be read",
    )
    for text in overwrites:
        OUT.print(text)
