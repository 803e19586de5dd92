"""Files as inputs: which of them enter, which are read to their ends, and how much is still to come.

A file is a topic with one partition and its content's hash for an id. Plans list only the files that are being read. A few at a
time enter, in the order of their paths; those that are read to their ends leave. Their hashes remain, so that they are not read
again. Flows that go by event time take all files at once, because later ones would be late. They keep all of them in their plans,
because event time is looked up in all partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

from sqe_chain.errors import (
    ChainError,
    ConfigurationError,
    PlanMismatch,
    PoisonError,
    RecreatedTopic,
    TruncatedInput,
)
from sqe_chain.features.events import FilesSeen
from sqe_chain.features.observing import BatchObserver
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.look import Infos
from sqe_chain.plans.plan import Plan, Section
from sqe_chain.plans.results import BatchResult
from sqe_chain.plans.settings import FeatureSettings
from sqe_chain.ports import TopicInfo
from sqe_chain.ports.files import HASH_DIGITS, gone, is_hash

_ALL = "files"
"""Where a partition's number stands for topics: the lag of a source's files is one number."""


_MOST_FILES = 10**15
_LEAST_DIGITS = 8


@dataclass(frozen=True, slots=True)
class FileSettings(FeatureSettings):
    """How files are read.

    Attributes:
        open_files: files of a flow that are read at the same time; those that go by event time read all.
        abandon: hashes of files, or their beginnings, whose remaining rows are not read.
    """

    open_files: int = 16
    abandon: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.open_files) is not int or not 1 <= self.open_files <= _MOST_FILES:
            raise ConfigurationError(f"open_files={self.open_files!r}; a whole number, 1 to {_MOST_FILES}")
        for digits in self.abandon:
            if not is_hash(f"{digits:0<32}") or len(digits) < _LEAST_DIGITS:
                raise ConfigurationError(
                    f"abandon={digits!r}. Expected the hash of a content, as the error about its file gives it, or its first "
                    f"{_LEAST_DIGITS} digits or more"
                )


@dataclass(frozen=True, slots=True)
class LoadedFiles(Section):
    """Which files a flow reads, and has read.

    Attributes:
        entered: topic -> path and number of rows, of the files among the ranges.
        finished: source of files -> the contents that were read to their ends and have no range any more. Their
            hashes of 32 digits, one after the other.
    """

    name: ClassVar[str] = "files"
    entered: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    finished: Mapping[str, str] = field(default_factory=dict)

    def carried(self, last: Plan, plan: Plan) -> LoadedFiles:
        """All of them; those that are not among the ranges any more are finished, if any row was read."""
        left = self.entered.keys() - {planned.topic for planned in plan.ranges}
        if not left:
            return self
        begun = {planned.topic for planned in last.ranges if planned.stop > 0}
        entered = {topic: known for topic, known in self.entered.items() if topic not in left}
        return LoadedFiles(entered, with_finished(self.finished, left & begun))

    def to_json(self) -> list[Any]:
        return [self.entered, self.finished] if self.entered or self.finished else []

    @classmethod
    def from_json(cls, raw: list[Any]) -> Self:
        entered, finished = raw
        return cls({topic: (path, rows) for topic, (path, rows) in entered.items()}, finished)


@dataclass(frozen=True, slots=True)
class FileNews:
    """Files that enter and leave with the next empty plan.

    Attributes:
        entering: files that enter, each with one partition, from its first row on.
        leaving: topics that plans do not list any more.
        needed: a plan of its own is sealed for it; else it waits for the next one.
        texts: the notices to emit.
    """

    entering: Sequence[TopicInfo] = ()
    leaving: frozenset[str] = frozenset()
    needed: bool = False
    texts: tuple[str, ...] = ()


def news_of_files(flow: CompiledFlow, settings: FileSettings, last: Plan, infos: Infos) -> FileNews:
    """Which files enter and leave after a plan. Pure.

    A few enter at a time. Those that are read to their ends, abandoned, or gone before the first row leave.
    """
    if not flow.file_sources:
        return FileNews()
    abandoned = abandoned_files(last, settings.abandon) - read_files(last)
    missed, entering = gone_files(last, infos), entering_files(flow, last, infos, settings)
    left = leaving_files(flow, last) | abandoned | missed
    texts = (_abandonment_text(last, abandoned),) if abandoned else ()
    return FileNews(entering, left, bool(entering or abandoned or missed), texts)


def with_entered(plan: Plan, infos: Iterable[TopicInfo]) -> Plan:
    """A plan without an id by which inputs enter, with the paths and numbers of rows of those that are files."""
    entered = files_in(infos)
    if not entered:
        return plan
    files = LoadedFiles.of(plan)
    return plan.with_sections(replace(files, entered={**files.entered, **entered}))


def explained(last: Plan, error: ChainError) -> ChainError:
    """An error about an input as its user knows a file: by the path, and the row's number. Others are as they were."""
    topic = error.topic or ""
    known = LoadedFiles.of(last).entered.get(topic)
    if known is None:
        return error
    path, rows = known
    if isinstance(error, RecreatedTopic):
        stop = last.next_offsets().get((topic, 0), 0)
        return gone(topic, f"{path}, of which {stop:,} of {rows:,} rows are read").at(topic, 0, stop)
    if isinstance(error, TruncatedInput):
        return PlanMismatch(
            f"{path}: row {error.offset} is read as something else than before, though the file's content is the same: how files "
            "are read was declared otherwise (csv=..., file_format=...), so row numbers mean other rows. Declare it as it was, until the "
            "file is read to its end"
        ).at(topic, error.partition, error.offset)
    if isinstance(error, PoisonError) and error.offset is not None:
        named = type(error)(f"{path}, row {error.offset}: {error}")
        return named.at(topic, error.partition, error.offset)
    return error


class FileReports(BatchObserver):
    """Reports which files there are, and the lag of a source's files as one number."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._seen: FilesSeen | None = None

    def result(self, result: BatchResult, plan: Plan, infos: Infos) -> BatchResult:
        lags = with_files(self.env.flow, result.lag_by_partition, new_files(self.env.flow, plan, infos))
        return replace(result, lag_by_partition=lags)

    def looked(self, last: Plan | None, infos: Infos) -> None:
        if last is None:
            return
        seen = seen_files(self.env.flow, last, infos)
        told = self._seen
        if told is None or (seen.files, seen.files_left, seen.rows) != (
            told.files,
            told.files_left,
            told.rows,
        ):
            self._seen = seen
            self.env.emit(seen)


def files_in(infos: Iterable[TopicInfo]) -> dict[str, tuple[str, int]]:
    """What a plan keeps of files; see `LoadedFiles.entered`."""
    return {info.name: (info.label, info.records) for info in infos if info.records >= 0}


def with_finished(finished: Mapping[str, str], topics: Iterable[str]) -> dict[str, str]:
    """The contents that are read to their ends, with more of them; see `LoadedFiles.finished`."""
    contents = dict(finished)
    for topic in sorted(topics):
        name, _, digits = topic.rpartition(".")
        contents[name] = contents.get(name, "") + digits
    return contents


def finished_topics(finished: Mapping[str, str]) -> frozenset[str]:
    """The topics of contents; see `LoadedFiles.finished`."""
    return frozenset(f"{name}.{digits}" for name, text in finished.items() for digits in _hashes(text))


def read_files(plan: Plan) -> frozenset[str]:
    """Topics of the files among the ranges that are read to their ends: nothing comes to them, and they may be gone."""
    if LoadedFiles.name not in plan.sections:
        return frozenset()
    entered = LoadedFiles.of(plan).entered
    return frozenset(
        planned.topic
        for planned in plan.ranges
        if planned.topic in entered and planned.stop >= entered[planned.topic][1]
    )


def new_files(flow: CompiledFlow, last: Plan, infos: Infos) -> list[TopicInfo]:
    """The files that were not begun, in the order of their paths; without empty ones."""
    known = (
        LoadedFiles.of(last).entered.keys() | finished_topics(LoadedFiles.of(last).finished)
        if flow.file_sources
        else set[str]()
    )
    return [info for topic, info in infos.items() if info.records > 0 and topic not in known]


def seen_files(flow: CompiledFlow, last: Plan, infos: Infos) -> FilesSeen:
    """Which files there are, and how much of them is not read."""
    there = [info for info in infos.values() if info.records > 0]
    new = new_files(flow, last, infos)
    read = read_files(last)
    begun = [
        planned for planned in last.ranges if planned.topic in LoadedFiles.of(last).entered.keys() - read
    ]
    rows_left = sum(info.records for info in new) + sum(
        LoadedFiles.of(last).entered[planned.topic][1] - planned.stop for planned in begun
    )
    return FilesSeen(len(there), len(new) + len(begun), sum(info.records for info in there), rows_left)


def entering_files(flow: CompiledFlow, last: Plan, infos: Infos, settings: FileSettings) -> list[TopicInfo]:
    """The files that enter with the next plan.

    Args:
        flow: the flow.
        last: the last plan.
        infos: the flow's topics.
        settings: how many files are read at the same time, and which are not read at all.
    """
    fresh, most = new_files(flow, last, infos), settings.open_files
    if settings.abandon:
        fresh = [info for info in fresh if not info.topic_id.hex().startswith(settings.abandon)]
    if flow.by_time:
        return fresh
    begun = len(LoadedFiles.of(last).entered) - len(read_files(last) | gone_files(last, infos))
    # Each time takes a plan of its own, so not for every file that is done.
    return fresh[: most - begun] if begun <= most // 2 else []


def leaving_files(flow: CompiledFlow, last: Plan) -> frozenset[str]:
    """The files that plans after this one do not list any more: topics."""
    return frozenset() if flow.by_time else read_files(last)


def gone_files(last: Plan, infos: Infos) -> frozenset[str]:
    """The files that are gone before a row of them was read: topics. They leave, and nobody misses them."""
    return frozenset(
        planned.topic
        for planned in last.ranges
        if planned.topic in LoadedFiles.of(last).entered and planned.stop == 0 and planned.topic not in infos
    )


def unneeded_files(last: Plan) -> frozenset[str]:
    """The files that may be gone after a plan, once it is finished: nothing of them was read, or all. Topics."""
    return read_files(last) | {
        planned.topic
        for planned in last.ranges
        if planned.topic in LoadedFiles.of(last).entered and planned.stop == 0
    }


def abandoned_files(last: Plan, abandon: Sequence[str]) -> frozenset[str]:
    """The files whose rest is not read: topics."""
    wanted = tuple(abandon)
    return (
        frozenset(
            topic for topic in LoadedFiles.of(last).entered if topic.rpartition(".")[2].startswith(wanted)
        )
        if wanted
        else frozenset()
    )


def _abandonment_text(last: Plan, topics: Iterable[str]) -> str:
    """The text of the notice that files are abandoned."""
    stops = {planned.topic: planned.stop for planned in last.ranges}
    unfinished = [
        f"{LoadedFiles.of(last).entered[topic][0]} ({topic.rpartition('.')[2]}) after {stops[topic]:,} of {LoadedFiles.of(last).entered[topic][1]:,} rows"
        for topic in sorted(topics)
    ]
    return f"abandoned: {', '.join(unfinished)}. What was read of them stays counted, the rest of these contents is never read"


def check_no_files(flow: CompiledFlow) -> None:
    """Check that a flow reads no files: these cannot be read again from an earlier place.

    Raises:
        ConfigurationError: it does.
    """
    if flow.file_sources:
        raise ConfigurationError(
            f"flow {flow.name!r} reads files, and plans keep of those that are done nothing but their hashes: it cannot be folded again, "
            "or rewound. Load the files with a flow of another name (its states begin empty, and its readers count all that it publishes as new)"
        )


def with_files(flow: CompiledFlow, lags: Mapping[str, int], waiting: Iterable[TopicInfo]) -> dict[str, int]:
    """The lag of each partition; that of all files of a source as one number, with files that have not entered yet."""
    shown_lags: dict[str, int] = {}
    for name, lag in lags.items():
        topic = name.rpartition("/")[0]
        declared = flow.declared_topic[topic]
        own = name if declared == topic else f"{declared}/{_ALL}"
        shown_lags[own] = shown_lags.get(own, 0) + lag
    for info in waiting:
        own = f"{flow.declared_topic[info.name]}/{_ALL}"
        shown_lags[own] = shown_lags.get(own, 0) + info.records
    return shown_lags


@lru_cache(maxsize=16)
def _hashes(text: str) -> frozenset[str]:
    return frozenset(text[at : at + HASH_DIGITS] for at in range(0, len(text), HASH_DIGITS))
