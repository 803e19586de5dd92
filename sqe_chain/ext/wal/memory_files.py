"""A directory in memory, which can be killed and lose power: for tests, rehearsals, and logs without a disk."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqe_chain.errors import LogLocked
from sqe_chain.ext.wal.files import Files
from sqe_chain.ext.wal.segment import SECTOR


@dataclass(slots=True)
class _File:
    """A file: what can be read, what was synced, and what was written since: place and bytes; a size to cut it to."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    writes: list[tuple[int, bytes | None]] = field(default_factory=list)

    def write(self, at: int, data: bytes | None) -> None:
        _apply(self.content, at, data)
        self.writes.append((at, data))

    def after_power_loss(self, choose: Callable[[int], int], sector_is_there: Callable[[], bool]) -> bytes:
        """What was synced, and a part of what was written since: in its order, without some sectors."""
        content = bytearray(self.synced)
        left = choose(sum(1 if data is None else len(data) for _, data in self.writes))
        for at, data in self.writes:
            size = 1 if data is None else len(data)
            if left >= size:
                _apply(content, at, data)
            elif left and data is not None:
                _apply(content, at, data[:left])
            left = max(0, left - size)
        synced = self.synced.ljust(len(content), b"\0")
        for at in range(0, len(content), SECTOR):
            sector = slice(at, min(at + SECTOR, len(content)))
            if content[sector] != synced[sector] and not sector_is_there():
                content[sector] = synced[sector]
        return bytes(content)


class MemoryFiles(Files):
    """See `Files`. What was not synced can be lost.

    Args:
        contents: files to begin with; durable.

    >>> files = MemoryFiles()
    >>> files.create("a")
    >>> files.write("a", 0, b"one")
    >>> files.sync("a"), files.sync_directory()
    (None, None)
    >>> files.write("a", 3, b"two")
    >>> files.killed().contents(), files.power_lost().contents()
    ({'a': b'onetwo'}, {'a': b'one'})
    """

    def __init__(self, contents: Mapping[str, bytes] | None = None) -> None:
        self._files = {
            name: _File(bytearray(content), bytes(content)) for name, content in (contents or {}).items()
        }
        self._durable = dict(self._files)
        self._moves: list[dict[str, _File]] = []
        self._locked = False

    @property
    def where(self) -> str:
        return "memory"

    def contents(self) -> dict[str, bytes]:
        """All files, as they can be read now; for `MemoryFiles(contents)`."""
        return {name: bytes(file.content) for name, file in sorted(self._files.items())}

    def killed(self) -> MemoryFiles:
        """The directory after the process was killed: everything that was written can be read, and is as durable as before."""
        left = copy.deepcopy(self)
        left.unlock()
        return left

    def power_lost(
        self, choose: Callable[[int], int] = lambda _: 0, sector_is_there: Callable[[], bool] = lambda: True
    ) -> MemoryFiles:
        """The directory after a loss of power: of what was not synced, the first part is there, however long.

        Args:
            choose: called with the length of what was not synced, for names once and then for each file; returns how much
                of it is there. Without it, nothing is.
            sector_is_there: called for each sector of that part; False: it was not written, and reads as it was before, or as zeros.
                Disks write in any order.
        """
        kept = choose(len(self._moves))
        names = self._moves[kept - 1] if kept else self._durable
        return MemoryFiles(
            {name: file.after_power_loss(choose, sector_is_there) for name, file in sorted(names.items())}
        )

    def lock(self) -> None:
        if self._locked:
            raise LogLocked("The write-ahead log in memory is open already: close it first")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def names(self) -> list[str]:
        return list(self._files)

    def size(self, name: str) -> int:
        return len(self._file(name).content)

    def read(self, name: str, at: int, size: int) -> bytes:
        return bytes(self._file(name).content[at : at + size])

    def create(self, name: str) -> None:
        if name in self._files:
            raise FileExistsError(17, "File exists", name)
        self._files[name] = _File()
        self._moves.append(dict(self._files))

    def write(self, name: str, at: int, data: bytes, zeros: int = 0) -> None:
        self._file(name).write(at, data + bytes(zeros))

    def overwrite(self, name: str, at: int, data: bytes) -> None:
        self._file(name).write(at, data)

    def truncate(self, name: str, size: int) -> None:
        self._file(name).write(size, None)

    def sync(self, name: str) -> None:
        file = self._file(name)
        file.synced = bytes(file.content)
        file.writes.clear()

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self._file(old)
        del self._files[old]
        self._moves.append(dict(self._files))

    def remove(self, name: str) -> None:
        self._file(name)
        del self._files[name]
        self._moves.append(dict(self._files))

    def sync_directory(self) -> None:
        self._durable = dict(self._files)
        self._moves.clear()

    def _file(self, name: str) -> _File:
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory", name) from None


def _apply(content: bytearray, at: int, data: bytes | None) -> None:
    if data is None:
        del content[at:]
        return
    content.extend(bytes(max(0, at - len(content))))
    content[at : at + len(data)] = data
