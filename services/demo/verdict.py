"""Whether the totals were exact, and whether the run proves anything. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.audit import StageAudit
from services.demo.kills import Kills
from services.expected import Expected
from services.naive import Naive

LEAST_REPLAYS = 0.03
"""Minimum share of replays in the totals' input: with fewer, the demo would prove nothing."""


def kills_off(services: Sequence[Kills]) -> list[str]:
    """What is wrong with the kills, one sentence each."""
    found = []
    for kills in services:
        if kills.counted < kills.wanted:
            found.append(f"{kills.service}: only {kills.counted} of {kills.wanted} kills count")
        if kills.finished_open < kills.wanted_open:
            found.append(
                f"{kills.service}: only {kills.finished_open} of {kills.wanted_open} kills between seal and "
                "commit were finished by the next life"
            )
    return found


def replays_off(service: str, replays: int, reported: int, records: int) -> list[str]:
    """What is wrong with the number of replays, one sentence each.

    Args:
        service: the one that ignores them.
        replays: messages in its input that had been published before.
        reported: how many it has reported.
        records: messages in its input.
    """
    found = []
    if replays < LEAST_REPLAYS * records:
        found.append(
            f"only {replays} of {records} messages were replays, less than {LEAST_REPLAYS:.0%}: that proves nothing"
        )
    if reported > replays:
        found.append(f"{service} reported {reported} replays, but there are {replays}")
    return found


def naive_off(naive: Naive) -> list[str]:
    """What is wrong with the plain consumer: that nothing is."""
    if naive.too_many > 0:
        return []
    return ["a plain consumer would have counted right: that proves nothing"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the demo of totals.

    Attributes:
        truth: the totals that the seed gives.
        stages: the audit of the store.
        records: messages in `robot.fastenings`, all of them read and committed by the totals.
        reported_replays: replays that the totals service has reported; killed lives report only a part.
        naive: what a plain consumer of the same messages counts.
        kills: all kills, service by service.
    """

    truth: Expected
    stages: Sequence[StageAudit]
    records: int
    reported_replays: int
    naive: Naive
    kills: Sequence[Kills]

    @property
    def replays(self) -> int:
        """Messages in excess of one for each report and robot: each of them was published before."""
        return self.records - self.truth.messages

    @property
    def missing(self) -> int:
        """Events missing in the stage with the most missing."""
        return max(stage.missing for stage in self.stages)

    @property
    def doubled(self) -> int:
        """Events doubled in the stage with the most doubled."""
        return max(stage.doubled for stage in self.stages)

    @property
    def failures(self) -> list[str]:
        """Everything that is wrong, one sentence each."""
        found = [
            f"stage {stage.stage}: {len(stage.findings)} findings" for stage in self.stages if stage.findings
        ]
        found += kills_off(self.kills)
        found += replays_off("totals", self.replays, self.reported_replays, self.records)
        found += naive_off(self.naive)
        return found

    @property
    def last_line(self) -> str:
        """The result in one line."""
        word = "not exact" if self.failures else "exact"
        keys = sum(stage.keys for stage in self.stages)
        return (
            f"{word}: {keys} keys, {self.stages[0].events} events, {self.replays} replays ignored, "
            f"{self.missing} missing, {self.doubled} doubled"
        )
