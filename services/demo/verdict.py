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


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the demo.

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
        for kills in self.kills:
            if kills.counted < kills.wanted:
                found.append(f"{kills.service}: only {kills.counted} of {kills.wanted} kills count")
            if kills.finished_open < kills.wanted_open:
                found.append(
                    f"{kills.service}: only {kills.finished_open} of {kills.wanted_open} kills between seal and "
                    "commit were finished by the next life"
                )
        if self.replays < LEAST_REPLAYS * self.records:
            found.append(
                f"only {self.replays} of {self.records} messages were replays, less than {LEAST_REPLAYS:.0%}: "
                "that proves nothing"
            )
        if self.reported_replays > self.replays:
            found.append(f"totals reported {self.reported_replays} replays, but there are {self.replays}")
        if self.naive.too_many <= 0:
            found.append("a plain consumer would have counted right: that proves nothing")
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
