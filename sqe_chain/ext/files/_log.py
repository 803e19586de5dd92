"""Files as a log: each content is a topic with one partition, each row a record. Everything else is another log's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.files._catalog import Catalog
from sqe_chain.ports import (
    Bounds,
    Commit,
    Log,
    Membership,
    Message,
    Range,
    TopicInfo,
    TopicPartition,
    TransactionalWriter,
    Writer,
)
from sqe_chain.ports.files import FileSource, gone

if TYPE_CHECKING:
    from sqe_chain.ext.files.rows import FileRows


class NoLog(Log):
    """The log of flows that read files and publish nothing: it has no topics. What needs one is a `ConfigurationError`."""

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        del topics
        return {}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        del topics
        return {}

    def create_topic(
        self, topic: str, partitions: int, *, kept: bool = False, compacted: bool = False
    ) -> None:
        del kept, compacted
        raise _needed(f"topic {topic!r} with {partitions} partitions")

    def delete_topic(self, topic: str) -> None:
        """There is none."""

    def delete_group(self, group: str) -> None:
        """There is none."""

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        for topic, _ in partitions:
            raise _needed(f"topic {topic!r}")
        return {}

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        raise _needed(f"topic {read_range.topic!r}")

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
        for wanted in ranges:
            raise _needed(f"topic {wanted.topic!r}")
        return []

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        del group, partitions
        return {}

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        """There is no log to commit to."""

    def join(self, group: str, topics: Iterable[str]) -> Membership:
        del topics
        raise _needed(f"group {group!r}")

    def writer(self) -> Writer:
        raise _needed("what is to be published")

    def transactional_writer(self, transactional_id: str, topics: Iterable[str]) -> TransactionalWriter:
        del topics
        raise _needed(f"what is to be published as {transactional_id!r}")

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        del timestamp_ms
        for topic, _ in partitions:
            raise _needed(f"topic {topic!r}")
        return {}


def _needed(what: str) -> ConfigurationError:
    return ConfigurationError(f"{what} needs Kafka: give --kafka HOST:PORT")


_BLOCK: Final = 1_000
_OPEN: Final = 64
"""Files that stay open between batches, each with up to four MiB of it: flows by event time read all files at the same time."""
_NO_TIME: Final = (0, -1)


@dataclass(slots=True)  # not frozen: one is made for each row
class _FileRecord:
    """A row as a record; a `sqe_chain.ports.Message`. It has no key, no headers and no time."""

    name: str  # topic of its file
    number: int  # the row's number
    content: bytes  # the row as JSON

    def topic(self) -> str:
        return self.name

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.number

    def key(self) -> None:
        """None."""

    def value(self) -> bytes:
        return self.content

    def headers(self) -> None:
        """None."""

    def timestamp(self) -> tuple[int, int]:
        return _NO_TIME

    def leader_epoch(self) -> None:
        """None."""

    def error(self) -> None:
        """None: there are no events among the records."""


class FilesLog(Log):
    """Files beside another log; see `sqe_chain.ports.Log`.

    The name of a source stands for the topics of its files in `describe`: these are given, in the order of their paths. Their
    positions are committed nowhere: the plan in the store has them.

    A pickled one looks at the files again where it is read, so they must be found there under the same paths.

    Args:
        sources: name -> which files.
        base: the log of all other topics.
        skip_bad: skip files that cannot be read, with a warning; else they stop the service.
        looked: called with the bytes of each file that was looked at.
    """

    def __init__(
        self,
        sources: Mapping[str, FileSource],
        base: Log,
        *,
        skip_bad: bool = False,
        looked: Callable[[int], object] = lambda _size: None,
    ) -> None:
        self.sources, self.base, self._skip_bad = dict(sources), base, skip_bad
        self._catalogs = {
            name: Catalog(source, skip_bad=skip_bad, looked=looked) for name, source in self.sources.items()
        }
        self._lock = Lock()
        self._open: dict[FileRows, None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without what was found out about files."""
        return partial(FilesLog, skip_bad=self._skip_bad), (self.sources, self.base)

    def __repr__(self) -> str:
        return f"FilesLog({', '.join(self.sources)}; {self.base!r})"

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """Describe topics; the name of a source gives all of its files.

        Raises:
            UnreadableFile, ChangedFile: a file cannot be read.
        """
        wanted, others = self._split(topics)
        infos: dict[str, TopicInfo] = {}
        for name, source in self.sources.items():
            named = {topic for topic in wanted if source.has(topic)}
            if name not in wanted and not named:
                continue
            for topic_id, rows in self._look(name).items():
                topic = source.topic(topic_id)
                if name in wanted or topic in named:
                    infos[topic] = TopicInfo(topic, topic_id, 1, label=rows.path, records=rows.count)
        return infos | (self.base.describe(others) if others else {})

    def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes]:
        wanted, others = self._split(topics)
        ids = {name: info.topic_id for name, info in self.describe(wanted).items()} if wanted else {}
        return ids | (self.base.topic_ids(others) if others else {})

    def create_topic(
        self, topic: str, partitions: int, *, kept: bool = False, compacted: bool = False
    ) -> None:
        self.base.create_topic(topic, partitions, kept=kept, compacted=compacted)

    def delete_topic(self, topic: str) -> None:
        # Files are left alone
        if not self._split([topic])[0]:
            self.base.delete_topic(topic)

    def delete_group(self, group: str) -> None:
        self.base.delete_group(group)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        own, others = self._split_partitions(partitions)
        bounds = {tp: Bounds(0, self._rows(tp[0]).count) for tp in own}
        return bounds | (self.base.bounds(others) if others else {})

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        """Read rows, or messages.

        Raises:
            ChangedFile: the file is not what it was, or gone.
            UnreadableFile: a part of it is damaged.
        """
        if not self._split([read_range.topic])[0]:
            yield from self.base.read(read_range)
            return
        if read_range.start >= read_range.stop:
            return  # of a file that is read to its end and may be gone
        rows, block = self._rows(read_range.topic), list[Message]()
        values = rows.values(read_range.start, read_range.stop)
        for offset, value in enumerate(values, read_range.start):
            block.append(_FileRecord(read_range.topic, offset, value))
            if len(block) == _BLOCK:
                yield block
                block = []
        if block:
            yield block
        self._keep_open(rows)

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
        own, others = self._split(wanted.topic for wanted in ranges)
        theirs = [wanted for wanted in ranges if wanted.topic in others]
        messages = dict(zip(theirs, self.base.read_all(theirs), strict=True)) if theirs else {}
        for wanted in ranges:
            if wanted.topic in own:
                messages[wanted] = [message for block in self.read(wanted) for message in block]
        return [messages[wanted] for wanted in ranges]

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        # Nothing is committed of files
        others = self._split_partitions(partitions)[1]
        return self.base.committed(group, others) if others else {}

    def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        # Files have no commits
        others = set(self._split_partitions(commits)[1])
        if others:
            self.base.commit(group, {tp: commit for tp, commit in commits.items() if tp in others})

    def join(self, group: str, topics: Iterable[str]) -> Membership:
        # Files have no commits
        return self.base.join(group, self._split(topics)[1])

    def writer(self) -> Writer:
        return self.base.writer()

    def transactional_writer(self, transactional_id: str, topics: Iterable[str]) -> TransactionalWriter:
        return self.base.transactional_writer(transactional_id, topics)

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        # Rows have no time, so of files it is the end
        own, others = self._split_partitions(partitions)
        offsets = {tp: self._rows(tp[0]).count for tp in own}
        return offsets | (self.base.offsets_at(others, timestamp_ms) if others else {})

    def _split(self, topics: Iterable[str]) -> tuple[set[str], set[str]]:
        """Topics of files and names of sources, and the others."""
        names = set(topics)
        own = {name for name in names if name in self.sources or self._source_of(name) is not None}
        return own, names - own

    def _split_partitions(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        tps = list(partitions)
        own = self._split(topic for topic, _ in tps)[0]
        return [tp for tp in tps if tp[0] in own], [tp for tp in tps if tp[0] not in own]

    def _source_of(self, topic: str) -> str | None:
        return next((name for name, source in self.sources.items() if source.has(topic)), None)

    def _keep_open(self, rows: FileRows) -> None:
        """Let a file stay open where its reading has ended, and close the one that was read longest ago."""
        with self._lock:
            self._open.pop(rows, None)
            self._open[rows] = None
            if len(self._open) > _OPEN:
                oldest = next(iter(self._open))
                del self._open[oldest]
                oldest.close()

    def _look(self, name: str) -> dict[bytes, FileRows]:
        with self._lock:
            return self._catalogs[name].look()

    def _rows(self, topic: str) -> FileRows:
        name, _, digits = topic.rpartition(".")
        with self._lock:
            rows = self._catalogs[name].find(bytes.fromhex(digits))
        if rows is None:
            raise gone(topic)
        return rows
