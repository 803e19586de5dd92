"""What came of one storm over one system, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.storm.faults import Strike, lacking
from benchmarks.storm.oracle import Judgement, Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """One system after one storm.

    Attributes:
        judgement: of its totals.
        strikes: the faults that struck it, in their order.
        seen: totals that a program outside saw.
        too_high: of these, how many contain a fact more than once: they were never true.
        went_back: of these, how many lack a fact which an earlier total of the same robot had.
        seconds: from the first report until everything was counted.
        calm_s: from the last report until then.
        restarts: how often the supervisor had to restart a process that ended by itself.
    """

    judgement: Judgement
    strikes: tuple[Strike, ...]
    seen: int
    too_high: int
    went_back: int
    seconds: float
    calm_s: float
    restarts: int

    @property
    def lacks(self) -> list[str]:
        """What the storm did not contain, though each storm has to."""
        return list(lacking(self.strikes, self.judgement.again))

    @property
    def verdict(self) -> Verdict:
        """What the system did; none if the storm was not a whole one."""
        return Verdict.NONE if self.lacks else self.judgement.verdict
