"""How tasks on the service's own machine hand it what a transaction publishes: by a file in memory, not through Java or a pipe.

Through Java the outputs of a batch took four times the processor time of their transformation: its heap was full of copies of them.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from sqe_chain.ports import Output

Place = tuple[int, int]
"""Where outputs are in the file: offset and length, in bytes."""


@dataclass(frozen=True, slots=True)
class SharedFile:
    """How processes of the same machine and user reach the service's file.

    Attributes:
        path: of the file, as the service has it open.
        label: what the system calls the file. On another machine the path may be that of another one.
    """

    path: str
    label: str

    def put(self, outputs: list[Output]) -> Place | None:
        """Append outputs; None: they cannot be handed over so, because the service is elsewhere, or memory is short."""
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        except OSError:
            return None
        try:
            if str(Path(f"/proc/self/fd/{file}").readlink()) != self.label:
                return None
            blob = marshal.dumps(outputs)
            if os.write(file, blob) != len(blob):
                return None
            # Appending is atomic, and leaves the position of this opening behind what it has written.
            return os.lseek(file, 0, os.SEEK_CUR) - len(blob), len(blob)
        except OSError:
            return None
        finally:
            os.close(file)


class SharedOutputs:
    """The service's side: a file for each attempt at a batch, which is gone with the service, however that ends.

    Args:
        wanted: whether the service publishes outputs itself, as those of a transactional flow.

    Attributes:
        file: for the tasks of the attempt; None: they hand over nothing so.
        places: of what they have put there, in the order in which it is published.
    """

    def __init__(self, *, wanted: bool) -> None:
        self.file: SharedFile | None = None
        self.places: list[Place] = []
        self._wanted = wanted
        self._file = -1

    def begin(self) -> None:
        """Begin an attempt: late tasks of an earlier one cannot reach its file."""
        self.release()
        if self._wanted and hasattr(os, "memfd_create"):  # Linux
            name = f"sqe-chain-{uuid4().hex}"
            self._file = os.memfd_create(name)
            self.file = SharedFile(f"/proc/{os.getpid()}/fd/{self._file}", f"/memfd:{name} (deleted)")

    def blocks(self) -> Iterator[list[Output]]:
        """What tasks have put there."""
        for offset, size in self.places:
            yield marshal.loads(os.pread(self._file, size, offset))  # noqa: S302 - made by a task of this service

    def release(self) -> None:
        """Give the memory back, as soon as no task has the file open."""
        if self.file is not None:
            os.close(self._file)
        self.file, self.places = None, []
