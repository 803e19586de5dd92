"""`sqe-chain load`: loads what a flow's files hold and the flow has not counted yet, with a progress bar, and ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

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

from sqe_chain.cli.console import ERR, OUT, print_json
from sqe_chain.cli.listening import show_cursor
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.options import BatchOptions, FlowArgument, JsonOption, command, settings_in
from sqe_chain.errors import ConfigurationError
from sqe_chain.errors.safe_text import shown
from sqe_chain.features.events import FilesSeen, TableReplaced
from sqe_chain.features.overwrite import Mode
from sqe_chain.plans.events import Committed, Event, Observer
from sqe_chain.runtime.launching import launch
from sqe_chain.runtime.lines import Lines

_MEGA = 1_000_000


@dataclass(frozen=True, kw_only=True)
class _LoadOptions(BatchOptions):
    """What a load takes."""

    overwrite: bool = False
    overwrite_partitions: bool = False
    again: bool = False
    drop_overwrite: bool = False
    json: JsonOption = False


class _Rate(ProgressColumn):
    """Rows a second."""

    def render(self, task: Task) -> Text:
        """The rate, as soon as it is known."""
        return Text(f"{task.speed:,.0f} rows/s" if task.speed else "", "progress.data.speed")


class Loading(Observer):
    """What a load has done so far, and the bar that shows it."""

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

    def __enter__(self) -> Self:
        """Show the bar, in a terminal."""
        if ERR.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; the last figures stay on the terminal."""
        if ERR.is_terminal:
            self._bar.stop()

    def looked(self, size: int) -> None:
        """Note that a file was looked at."""
        self._files += 1
        self._size += size
        self._bar.update(self._task, what=f"{self._files:,} files, {self._size / _MEGA:,.1f} MB")

    def event(self, event: Event) -> None:
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
        elif event.warns and ERR.is_terminal:
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


@command
def load(target: FlowArgument, *, options: _LoadOptions = _LoadOptions(engine="inprocess")) -> None:
    """Load what the files of a flow hold and the flow has not counted yet, and end.

    After any interruption, the next load continues where this one was. A second load of the same files adds nothing. With
    --overwrite, readers of a table see its old rows until all files are read, and then those of the files.
    """
    overwrite = _overwritten(table=options.overwrite, partitions=options.overwrite_partitions)
    settings = settings_in(options, overwrite=overwrite)
    flow = load_flow(target)
    if not flow.file_sources:
        raise ConfigurationError(
            f"flow {flow.name!r} reads no files. Expected a source of files. Run it with sqe-chain run"
        )
    loading = Loading()

    as_lines = options.log_json or not ERR.is_terminal
    observers: list[Observer] = [loading, *([Lines(flow.name, as_json=options.log_json)] if as_lines else [])]
    deployment = options.deployment(once=True, looked=loading.looked)
    launch(flow, settings, deployment, observers=observers, restore=show_cursor)
    result = loading.result()
    if not result["files"] and not options.drop_overwrite:
        ERR.print("there were no files with rows")
    if options.json:
        print_json(result)
    else:
        _print(result, loading.overwrites)


def _overwritten(*, table: bool, partitions: bool) -> Mode | None:
    if table and partitions:
        raise ConfigurationError(
            "--overwrite replaces all rows, --overwrite-partitions some. Expected one of them"
        )
    return "table" if table else "partitions" if partitions else None


def _print(result: Mapping[str, int], overwrites: Iterable[str]) -> None:
    OUT.print(
        f"{result['read']:,} rows read, {result['left_out']:,} of them skipped; {result['files']:,} files hold "
        f"{result['rows']:,} rows, {result['left']:,} of them still to be read"
    )
    for text in overwrites:
        OUT.print(text)
