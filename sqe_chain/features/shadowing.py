"""What a shadow has found out about the outputs of its flow: `operations/shadow.py`. Its own plans keep it, and the flow's never do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Self

from sqe_chain.plans.layout import by_name, by_partition
from sqe_chain.plans.plan import Section
from sqe_chain.ports import TopicPartition


@dataclass(frozen=True, slots=True)
class Compared(Section):
    """Counts of the outputs that were compared, each record by its lane and position.

    A shadow gives it to each of its plans (`Refold.notes`), and it is not carried over. So the flow loses it with its first plan after
    the cut-over, and a switch that was killed before finds it again.

    Attributes:
        code: module -> digest of its source, of the code with which the shadow began.
        since: number of the flow's plan after which the comparison began; -1: it has not begun.
        until: the flow's last plan whose outputs are all judged.
        offsets: of the outputs' partitions: where the outputs of later plans begin.
        equal: records that both publish, with the same content.
        different: records that both publish, with another content or in another partition.
        missing: records that the flow has published, and the new code does not.
        added: records that the new code would publish, and the flow has not.
        examples: the first places where something differs.
        gaps: how often the comparison began again later, and missed the outputs in between.
        copied: id of the plan of the export whose states the shadow began with; empty: it began where the flow once began.
        filling: these states are being copied, or that was interrupted. Such a shadow is not open, and no run goes on with it.
    """

    name: ClassVar[str] = "compared"
    code: Mapping[str, str] = field(default_factory=dict)
    since: int = -1
    until: int = -1
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    equal: int = 0
    different: int = 0
    missing: int = 0
    added: int = 0
    examples: tuple[str, ...] = ()
    gaps: int = 0
    copied: str = ""
    filling: bool = False

    @property
    def same(self) -> bool:
        """Whether nothing that was compared differs."""
        return not (self.different or self.missing or self.added)

    def plans_left(self, last: int) -> int:
        """How many plans of the flow, up to its last one, have outputs that are still to be compared."""
        return max(0, last - self.until) if self.since >= 0 else 0

    def text(self) -> str:
        """What was found, for people."""
        if self.since < 0:
            return "outputs were not compared"
        examples = f"; the first: {', '.join(self.examples)}" if self.examples else ""
        gaps = f"; {self.gaps} times it began again, and missed those in between" if self.gaps else ""
        return (
            f"outputs: {self.equal} equal, {self.different} different, {self.missing} missing in the new code, {self.added} only in it"
            f"{examples}{gaps}"
        )

    def to_json(self) -> dict[str, Any]:
        members = {name: getattr(self, name) for name in _MEMBERS} | {"offsets": by_name(self.offsets)}
        return {name: value for name, value in members.items() if value != _DEFAULTS[name]}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        return cls(
            **{
                **raw,
                "offsets": by_partition(raw.get("offsets", {})),
                "examples": tuple(raw.get("examples", ())),
            }
        )


_MEMBERS: Final = tuple(known.name for known in fields(Compared))
_DEFAULTS: Final = {name: getattr(Compared(), name) for name in _MEMBERS}
