"""A service of the demo, over all its lives."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.demo.kills import Aim, Kill, Kills, Moment
from services.demo.life import Life, parse_line
from services.demo.positions import Standing
from services.demo.process import Process, tail
from services.demo.progress import ServiceRow

TAIL_LINES = 30


class DemoFailed(Exception):
    """The demo cannot continue, or proves nothing; the text gives the reason."""


@dataclass(slots=True)
class Victim:
    """One service.

    Attributes:
        begin: starts its process.
        levels: how many times it persists in a batch.
        said_before: messages in its output topic when this life began.
        done_before: inputs committed before this life began.
        past: its lives before the current one.
    """

    name: str
    begin: Callable[[], Process]
    kills: Kills
    log: Path
    levels: int = 1
    said_before: int = 0
    done_before: int = 0
    said: int = 0
    standing: Standing = field(default_factory=lambda: Standing(0, 0))
    past: list[Life] = field(default_factory=list)
    life: Life = field(init=False)
    _aim: Aim = field(init=False)
    _process: Process | None = None

    def __post_init__(self) -> None:
        self.life = Life(self.name, 0, levels=self.levels)

    @property
    def replays(self) -> int:
        """Replays that all its lives have reported; what was not reported before a kill is missing."""
        return sum(life.replays for life in (*self.past, self.life))

    @property
    def unacknowledged(self) -> int:
        """Messages in its output topic since its last commit."""
        return max(0, self.said - self.said_before - self.life.outputs)

    @property
    def row(self) -> ServiceRow:
        """Its row in the progress table."""
        kills = self.kills
        open_plans = f"{kills.finished_open}/{kills.wanted_open}" if kills.wanted_open else ""
        return ServiceRow(
            service=self.name,
            life=self.life.number,
            state=self.life.state,
            kills=f"{kills.counted}/{kills.wanted}",
            open_plans=open_plans,
            done=self.standing.done,
            lag=self.standing.lag,
            replays=self.replays,
        )

    def start(self, done: int) -> None:
        """Begin the next life.

        Args:
            done: inputs that are committed now.
        """
        if self.life.number:
            self.past.append(self.life)
            # A busy broker may have taken the last commit after the kill. Then nothing of it is published twice.
            if done > self.done_before:
                self.kills.all[-1].said_twice = 0
        self.done_before = done
        self.life = Life(self.name, self.life.number + 1, levels=self.levels)
        self.said_before = self.said
        self._aim = self.kills.next_aim()
        self._process = self.begin()

    def hear(self, line: str, at_s: float) -> str | None:
        """Record a line of its output; returns a note if it is worth showing."""
        event = parse_line(line)
        if event is None:
            return None
        self.life.apply(event, at_s)
        if event.event == "recovered" and self.kills.recovered(event.redone):
            return f"{self.life.name} has finished plan {self.kills.all[-1].open_plan}, left open by the kill"
        return None

    def is_due(self, enough: int) -> bool:
        """Whether to kill it now, once so much is published and not committed that the kill is worthwhile."""
        return self._process is not None and self._aim.is_due(
            self.life, time.monotonic(), self.unacknowledged, enough
        )

    @property
    def is_watched(self) -> bool:
        """Whether it is to be killed while it has published more than it has committed."""
        at_work = self._process is not None and self.life.proved_s is not None
        return at_work and self._republishes and self._aim.moment is Moment.PUBLISHING

    def hold(self) -> None:
        """Stop it, to read its progress."""
        if self._process is not None:
            self._process.hold()

    def let_go(self) -> None:
        """Resume it."""
        if self._process is not None:
            self._process.let_go()

    def has_committed_more(self, done: int) -> bool:
        """Whether it has committed more, in all its lives, than its log lines show: then nothing will be published twice."""
        return done - self.done_before > self.life.inputs

    def kill(self) -> None:
        """Send SIGKILL to the whole session; then its output is complete."""
        if self._process is not None:
            self._process.kill()

    def bury(self, done: int) -> Kill:
        """Record the kill, when its output is read and `said` is up to date."""
        self._process = None
        twice = self.unacknowledged if self._republishes and not self.has_committed_more(done) else 0
        self.done_before = done
        return self.kills.record(self.life, twice)

    @property
    def _republishes(self) -> bool:
        return not self.kills.wanted_open

    def stop(self) -> None:
        """Send SIGTERM; it must finish its batch and end with status 0.

        Raises:
            DemoFailed: it did not.
        """
        if self._process is None:
            return
        status = self._process.stop()
        if status != 0:
            raise DemoFailed(f"{self.life.name} ended with status {status} after SIGTERM\n{self.tail()}")
        self._process = None

    def check_alive(self) -> None:
        """Raise DemoFailed if it has ended by itself."""
        if self._process is not None and (status := self._process.ended) is not None:
            raise DemoFailed(f"{self.life.name} ended by itself with status {status}\n{self.tail()}")

    def tail(self) -> str:
        """The end of its output."""
        return f"--- end of {self.log}\n{tail(self.log, TAIL_LINES)}"


def summary(kills: Sequence[Kill]) -> str:
    """One sentence on the kills of one service."""
    counted = [kill for kill in kills if kill.proved]
    opened = [kill for kill in counted if kill.open_plan is not None]
    text = f"killed {len(kills)} times, {len(counted)} of them after it had published or persisted"
    if opened:
        finished = sum(kill.finished for kill in opened)
        text += (
            f"; {len(opened)} between seal and commit, {finished} of these plans finished by the next life"
        )
    return text
