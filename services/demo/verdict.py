"""Whether a demo was exact, and whether its run proves anything. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from services.audit import StageAudit
from services.demo.kills import Kills
from services.expected import Expected
from services.naive import Naive

LEAST_REPLAYS = 0.03
"""Minimum share of replays in the totals' input: with fewer, the demo would prove nothing."""


def kills_off(services: Sequence[Kills]) -> list[str]:
    """What is wrong with the kills, one sentence each."""
    wrong = []
    for kills in services:
        if kills.counted < kills.wanted:
            wrong.append(f"{kills.service}: only {kills.counted} of {kills.wanted} kills count")
        if kills.finished_open < kills.wanted_open:
            wrong.append(
                f"{kills.service}: only {kills.finished_open} of {kills.wanted_open} kills between seal and "
                "commit were finished by the next life"
            )
    return wrong


def replays_off(service: str, replays: int, reported: int, records: int) -> list[str]:
    """What is wrong with the number of replays among the records of a service, and with what it has reported, one sentence each."""
    wrong = []
    if replays < LEAST_REPLAYS * records:
        wrong.append(
            f"only {replays} of {records} messages were replays, less than {LEAST_REPLAYS:.0%}: that proves nothing"
        )
    if reported > replays:
        wrong.append(f"{service} reported {reported} replays, but there are {replays}")
    return wrong


def naive_off(naive: Naive) -> list[str]:
    """What is wrong with the plain consumer: that nothing is."""
    if naive.too_many > 0:
        return []
    return ["a plain consumer would have counted right: that proves nothing"]


@dataclass(frozen=True, kw_only=True)
class DemoOutcome(ABC):
    """The outcome of a demo.

    Attributes:
        records: messages in the input of the judged service, all of them read and committed.
        reported_replays: replays that it has reported; killed lives report only a part.
        naive: what a plain consumer of the same messages counts.
    """

    service: ClassVar[str]
    truth: Expected
    records: int
    reported_replays: int
    naive: Naive
    kills: Sequence[Kills]

    @property
    def replays(self) -> int:
        """Messages in excess of one for each report and robot: each of them was published before."""
        return self.records - self.truth.messages

    @property
    def failures(self) -> list[str]:
        """Everything that is wrong, one sentence each."""
        return [
            *self.wrong,
            *kills_off(self.kills),
            *replays_off(self.service, self.replays, self.reported_replays, self.records),
            *naive_off(self.naive),
        ]

    @property
    @abstractmethod
    def wrong(self) -> list[str]:
        """What the audit has found, one sentence each."""

    @property
    @abstractmethod
    def last_line(self) -> str:
        """The result in one line."""


@dataclass(frozen=True, kw_only=True)
class TotalsOutcome(DemoOutcome):
    """The outcome of the demo of totals."""

    service = "totals"
    stages: Sequence[StageAudit]

    @property
    def wrong(self) -> list[str]:
        return [
            f"stage {stage.stage}: {len(stage.findings)} findings" for stage in self.stages if stage.findings
        ]

    @property
    def last_line(self) -> str:
        word = "not exact" if self.failures else "exact"
        keys = sum(stage.keys for stage in self.stages)
        return (
            f"{word}: {keys} keys, {self.stages[0].events} events, {self.replays} replays ignored, "
            f"{max(stage.missing for stage in self.stages)} missing, {max(stage.doubled for stage in self.stages)} doubled"
        )
