"""The loop: draw an input, change it, check it, keep it if something new came of it.

Coverage is guided in two ways. The outcome of each message (which error, in which of the ways) costs nothing to know, and is
compared for every input. Lines that follow each other are watched for inputs with a new outcome, and for a share of
all others. Watching takes several times as long as checking.
"""

from __future__ import annotations

import mmap
import resource
import signal
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from random import Random
from types import FrameType
from typing import Final
from zlib import crc32

from tests.lab.fuzzing.coverage import Coverage

WATCHED: Final = 32
"""One of this number of inputs is watched, whatever comes of it."""
LARGEST: Final = 12_000
"""Bytes of an input."""
HANGS_S: Final = 20
"""Seconds after which an input hangs; watched, or on a busy machine, they take a fraction of one."""
_SEEN_BITS: Final = 1 << 28


class Hang(Exception):
    """An input takes too long."""


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    Attributes:
        name: of the target.
        check: reads an input in all ways; adds what came of it to a set, and returns how many messages that were.
        mutated: makes an input of another one, within a number of bytes.
        share: of all executions.
    """

    name: str
    check: Callable[[bytes, set[Hashable]], int]
    mutated: Callable[[bytes, int, Random], bytes]
    share: float


@dataclass
class Engine:
    """One target, in one process.

    Attributes:
        target: the target.
        random: all that is drawn.
        corpus: inputs that each brought a new outcome.
        executions: messages read in all ways.
        inputs: the inputs that held these messages.
        distinct: how many of the inputs were certainly different.
        coverage: what was reached.
        outcomes: what came of messages so far.
        fresh: kept inputs that are not written to disk yet.
    """

    target: Target
    random: Random
    corpus: list[bytes] = field(default_factory=lambda: [b"\x00"])
    executions: int = 0
    inputs: int = 0
    distinct: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    outcomes: set[Hashable] = field(default_factory=set)
    fresh: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing was seen."""
        self._seen = bytearray(_SEEN_BITS >> 3)

    def learn(self, data: bytes) -> bool:
        """Check an input and watch it. Returns whether something new came of it."""
        before = len(self.coverage.arcs), len(self.outcomes)
        with self.coverage.watch():
            self.executions += self.target.check(data, self.outcomes)
        self.inputs += 1
        return (len(self.coverage.arcs), len(self.outcomes)) != before

    def step(self, current: Callable[[bytes], None]) -> None:
        """Check one more input.

        Args:
            current: called with the input that is about to be checked.
        """
        random, corpus = self.random, self.corpus
        # Those kept last are drawn more often: nobody has tried much with them yet.
        recent = random.random() < 0.3
        base = corpus[-1 - random.randrange(min(len(corpus), 32))] if recent else random.choice(corpus)
        data = self.target.mutated(base, LARGEST, random)
        current(data)
        known = len(self.outcomes)
        self.executions += self.target.check(data, self.outcomes)
        self.inputs += 1
        self._count(data)
        new = len(self.outcomes) > known
        if new or self.inputs % WATCHED == 0:
            arcs = len(self.coverage.arcs)
            with self.coverage.watch():
                self.target.check(data, set())
            new = new or len(self.coverage.arcs) > arcs
        if new:
            corpus.append(data)
            self.fresh.append(data)

    def _count(self, data: bytes) -> None:
        bit = crc32(data) % _SEEN_BITS
        if not self._seen[bit >> 3] >> (bit & 7) & 1:
            self._seen[bit >> 3] |= 1 << (bit & 7)
            self.distinct += 1


class Current:
    """The input that is being checked, in a file, for the case that the process dies of it."""

    def __init__(self, file: Path) -> None:
        """The file is made, or emptied."""
        file.write_bytes(bytes(LARGEST + 4))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 0)

    def __call__(self, data: bytes) -> None:
        """Note an input."""
        kept = data[:LARGEST]
        self._map[: 4 + len(kept)] = len(kept).to_bytes(4, "little") + kept

    @staticmethod
    def read(file: Path) -> bytes:
        """What was noted last."""
        found = file.read_bytes()
        return found[4 : 4 + int.from_bytes(found[:4], "little")]


def limited(memory_mb: int) -> None:
    """Let this process have no more memory than this, and end what hangs."""

    def hangs(number: int, frame: FrameType | None) -> None:
        raise Hang(f"an input takes more than {HANGS_S} s")

    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    signal.signal(signal.SIGALRM, hangs)


def until(
    engine: Engine, executions: int, seconds: float | None, current: Callable[[bytes], None]
) -> Iterator[int]:
    """Check inputs until a number of executions or of seconds; yields about once a second, so that the caller can count."""
    ends = None if seconds is None else time.monotonic() + seconds
    yielded = time.monotonic()
    while engine.executions < executions:
        signal.setitimer(signal.ITIMER_REAL, HANGS_S)
        engine.step(current)
        if engine.inputs % 16:
            continue
        now = time.monotonic()
        if now > yielded + 1:
            yielded = now
            yield engine.executions
        if ends is not None and now > ends:
            break
    signal.setitimer(signal.ITIMER_REAL, 0)


def name_of(data: bytes) -> str:
    """The name of an input's file."""
    return f"{blake2b(data, digest_size=8).hexdigest()}.bin"
