"""When to kill which service, and which kills count. Pure: seeded randomness and the time are arguments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

from services.demo.life import Life

ANY_MOMENT_WITHIN_S = 3.0
PATIENCE_S = 4.0
FIRST_GUESS_OF_PERSIST_S = 0.1
LIVES_FOR_EACH_KILL = 4
OFTEN = 0.75
"""Share of lives that end at one of the wanted moments instead of at any moment."""


class Moment(Enum):
    """What a life is doing when it is killed."""

    ANY = "at any moment"
    SEALED = "between seal and the last persist"
    PUBLISHING = "between publishing and commit"


@dataclass(frozen=True, slots=True)
class Aim:
    """How a life is to end.

    Attributes:
        share: random, 0 to 1: how far into that moment.
        in_first_batch: it may be killed before it has committed anything in this life. Never in two
            consecutive lives, or the service would make no progress.
    """

    moment: Moment
    share: float
    in_first_batch: bool = True

    def is_due(self, life: Life, now_s: float, unacknowledged: int, enough: int) -> bool:
        """Whether to kill now, with as many messages unacknowledged as make it worthwhile; that limit falls as time passes."""
        if life.proved_s is None:
            return False
        if self.moment is Moment.SEALED:
            within = self.share * (life.persist_s or FIRST_GUESS_OF_PERSIST_S)
            return life.persists and now_s >= life.sealed_s + within
        if self.moment is Moment.PUBLISHING:
            if not life.batches and not self.in_first_batch:
                return False
            patience = max(0.0, 1.0 - (now_s - life.proved_s) / PATIENCE_S)
            return unacknowledged >= max(1.0, self.share * enough * patience)
        return now_s >= life.proved_s + self.share * ANY_MOMENT_WITHIN_S


@dataclass(slots=True)
class Kill:
    """One kill.

    Attributes:
        proved: it had published or persisted in that life.
        open_plan: the plan that was between seal and commit.
        said_twice: messages published since its last commit: the next life publishes them again.
        finished: the next life reported that it has finished that plan.
    """

    service: str
    life: int
    proved: bool
    open_plan: int | None
    said_twice: int
    batches: int
    finished: bool = False


class Kills:
    """The kills of one service: how many count, and how the next one is to happen.

    `wanted` kills must count; `wanted_open` of them between seal and commit, with the plan finished by the next life.
    """

    def __init__(self, service: str, wanted: int, wanted_open: int, random: Random) -> None:
        self.service = service
        self.wanted = wanted
        self.wanted_open = wanted_open
        self.all: list[Kill] = []
        self._random = random

    @property
    def counted(self) -> int:
        """Kills that count."""
        return sum(kill.proved for kill in self.all)

    @property
    def finished_open(self) -> int:
        """Kills between seal and commit whose plan the next life has finished."""
        return sum(kill.proved and kill.finished for kill in self.all)

    @property
    def said_twice(self) -> int:
        """Messages that the victim had published and not committed, over all kills."""
        return sum(kill.said_twice for kill in self.all)

    @property
    def done(self) -> bool:
        """Whether there were enough kills."""
        return self.counted >= self.wanted and self.finished_open >= self.wanted_open

    @property
    def hopeless(self) -> bool:
        """Whether so few kills count that something else must be wrong."""
        return not self.done and len(self.all) >= LIVES_FOR_EACH_KILL * max(self.wanted, self.wanted_open)

    def next_aim(self) -> Aim:
        """How the life that begins now is to end; wanted open plans and replays come first."""
        share = self._random.random()
        often = self._random.random() < OFTEN
        if self.wanted_open:
            missing = self.wanted_open - self.finished_open
            if missing > 0 and (often or self.wanted - self.counted <= missing):
                return Aim(Moment.SEALED, share * 0.8)
            return Aim(Moment.ANY, share)
        in_first_batch = not self.all or self.all[-1].batches > 0
        if often or self.done:
            return Aim(Moment.PUBLISHING, 0.3 + 0.7 * share, in_first_batch)
        return Aim(Moment.ANY, share)

    def record(self, life: Life, said_twice: int) -> Kill:
        """Record a kill, when the victim's output has been read completely."""
        kill = Kill(
            life.service, life.number, life.proved_s is not None, life.open_plan, said_twice, life.batches
        )
        self.all.append(kill)
        return kill

    def recovered(self, redone: tuple[int, ...]) -> bool:
        """Record which plans the life after the last kill finished; returns whether the open one is among them."""
        if not self.all or self.all[-1].open_plan is None:
            return False
        self.all[-1].finished = self.all[-1].open_plan in redone
        return self.all[-1].finished
