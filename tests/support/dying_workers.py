"""A log and a store that kill the process that uses them, by SIGKILL, at a chosen point: of a worker, they are its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ports import Header, Message, Output, Range, StateStore, Writer


@dataclass(frozen=True)
class Kills:
    """The points at which processes still have to die: each is a file, and the process that removes it dies.

    Args:
        directory: empty.
    """

    directory: Path

    def arm(self, point: str, times: int = 1) -> None:
        """Let a number of processes die at a point: the next ones that reach it."""
        for number in range(times):
            (self.directory / f"{point} {number}").touch()

    def armed(self) -> list[str]:
        """What has not happened yet."""
        return sorted(file.name for file in self.directory.iterdir())

    def disarm(self) -> None:
        """Nobody else has to die."""
        for file in self.directory.iterdir():
            file.unlink()

    def at(self, point: str) -> None:
        """This point is reached."""
        for file in sorted(self.directory.glob(f"{point} [0-9]")):
            try:
                file.unlink()
            except FileNotFoundError:  # another process dies of it
                continue
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class DyingLog:
    """Points: `read` after a block, `publish` when the first half is acknowledged, `published` when all is."""

    log: KafkaLog
    kills: Kills

    def read(self, read_range: Range) -> Iterator[Sequence[Message]]:
        for block in self.log.read(read_range):
            yield block
            self.kills.at("read")

    def read_all(self, ranges: Sequence[Range]) -> Sequence[Sequence[Message]]:
        return [[message for block in self.read(input_range) for message in block] for input_range in ranges]

    def writer(self) -> Writer:
        return DyingWriter(self.log.writer(), self.kills)


@dataclass(frozen=True)
class DyingWriter:
    """See `DyingLog`."""

    writer: Writer
    kills: Kills

    def connect(self, topics: Sequence[str]) -> None:
        self.writer.connect(topics)

    def write(self, outputs: Sequence[Output]) -> None:
        half = len(outputs) // 2
        self.writer.write(outputs[:half])
        if "publish 0" in self.kills.armed():
            self.writer.flush()
            self.kills.at("publish")
        self.writer.write(outputs[half:])

    def flush(self) -> None:
        self.writer.flush()
        self.kills.at("published")

    def close(self) -> None:
        self.writer.close()


class DyingStore:
    """Points, each with the name of the stage: `load` after states were read, `before` and `after` a write."""

    def __init__(self, store: StateStore, kills: Kills) -> None:
        self.store, self.kills = store, kills

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "store":
            raise AttributeError(name)
        return getattr(self.store, name)

    def read(self, flow: str, stage: str, part: int, keys: Sequence[bytes]) -> Any:
        found = self.store.read(flow, stage, part, keys)
        self.kills.at(f"load {stage}")
        return found

    def write(self, flow: str, stage: str, *rest: Any) -> Header | None:
        self.kills.at(f"before {stage}")
        found = self.store.write(flow, stage, *rest)
        self.kills.at(f"after {stage}")
        return found
