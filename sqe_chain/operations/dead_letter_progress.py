"""How far the dead-letter records of one partition were sent back, as the group of their replay commits it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import Commit
from sqe_chain.protocol.inputs import METADATA_LENGTH, parse_metadata
from sqe_chain.task.dead_letters import DeadLetter

Spans = tuple[tuple[int, int], ...]
"""Offsets as pairs of first and next, in order, apart from each other."""


@dataclass(frozen=True, slots=True)
class Sent:
    """How many inputs of one partition were sent back.

    Attributes:
        ever: highest offset of a record that lies before the next one of the replay; -1 none.
        now: highest offset sent in this round; -1 none.
        apart: highest offset of a record that lies after the next one, sent by a selection; -1 none.
    """

    ever: int = -1
    now: int = -1
    apart: int = -1


@dataclass(frozen=True, slots=True)
class Progress:
    """What is done of the dead-letter records of one partition: sent back, or passed over.

    Attributes:
        offset: the next record; all before it are done.
        epoch: leader epoch plus one of the record before; 0 unknown.
        round: offset of the record with which the present round began.
        passage: number of the present passage: each selection is one, and so is what follows it.
        to: the topic given with `to`; "": the topic of each record.
        selection: text of the selection of the last replay; "": it had none.
        sending: more may have been sent than is committed.
        apart: offsets after the next one that are done.
        inputs: input partition -> what was sent back of it.
    """

    offset: int
    epoch: int = 0
    round: int = 0
    passage: int = 0
    to: str = ""
    selection: str = ""
    sending: bool = False
    apart: Spans = ()
    inputs: Mapping[str, Sent] = field(default_factory=dict)

    @classmethod
    def of(cls, commit: Commit | None, topic_id: bytes, begin: int) -> Progress:
        """The committed progress; the beginning if nothing was sent yet, or the topic was created again."""
        meta = parse_metadata(commit)
        if commit is None or meta.get("topic_id") != topic_id.hex():
            return cls(begin)
        gaps, spans, at = list(meta.get("apart", ())), list[tuple[int, int]](), commit.offset  # type: ignore[call-overload]
        for gap, length in zip(gaps[::2], gaps[1::2], strict=True):
            spans.append((at + gap, at + gap + length))
            at += gap + length
        return cls(
            commit.offset,
            int(str(meta["epoch"])),
            int(str(meta["round"])),
            int(str(meta.get("passage", 0))),
            str(meta["to"]),
            str(meta.get("selection", "")),
            bool(meta["sending"]),
            tuple(spans),
            {name: Sent(*own) for name, own in meta["highest"].items()},  # type: ignore[attr-defined]
        )

    def commit(self, topic_id: bytes) -> Commit:
        """The same for the group.

        Raises:
            ConfigurationError: a commit has no room for it.
        """
        meta: dict[str, object] = {
            "topic_id": topic_id.hex(),
            "epoch": self.epoch,
            "round": self.round,
            "to": self.to,
            "sending": self.sending,
            "highest": {
                name: [own.ever, own.now] if own.apart < 0 else [own.ever, own.now, own.apart]
                for name, own in self.inputs.items()
            },
        }
        if self.passage:
            meta |= {"passage": self.passage, "selection": self.selection}
        if self.apart:
            ends = (self.offset, *(end for _, end in self.apart))
            pairs = [(begin - at, end - begin) for (begin, end), at in zip(self.apart, ends, strict=False)]
            meta["apart"] = [number for pair in pairs for number in pair]
        text = json.dumps(meta, separators=(",", ":"))
        if len(text) <= METADATA_LENGTH:
            return Commit(self.offset, text)
        if len(self.apart) > len(self.inputs):
            raise ConfigurationError(
                f"the selected dead-letter records lie in {len(self.apart)} places apart from each other. Expected fewer: a commit "
                "cannot hold all of them. Select fewer, or first send back or discard the oldest ones together"
            )
        raise ConfigurationError(
            f"the dead-letter records of one partition come from {len(self.inputs)} input partitions. Expected fewer: a commit "
            "cannot hold the progress of each. Give the flow more dead_letter_partitions"
        )

    def has(self, offset: int) -> bool:
        """Whether the record at an offset is done."""
        return offset < self.offset or any(begin <= offset < end for begin, end in self.apart)

    def of_input(self, dead: DeadLetter) -> Sent:
        """What was sent back of the input partition of a record."""
        return self.inputs.get(_input_of(dead), Sent())

    def after(self, dead: DeadLetter) -> Progress:
        """With this record sent."""
        own = self.of_input(dead)
        if self.selection:
            sent = replace(own, now=dead.offset, apart=max(own.apart, dead.offset))
        else:
            sent = replace(own, now=dead.offset, ever=max(own.ever, dead.offset))
        return replace(self, inputs={**self.inputs, _input_of(dead): sent})

    def done_apart(self, offset: int) -> Progress:
        """With the record at an offset done, before others that are not."""
        begin, end, others = offset, offset + 1, list[tuple[int, int]]()
        for span in self.apart:
            if span[1] < begin or span[0] > end:
                others.append(span)
            else:
                begin, end = min(begin, span[0]), max(end, span[1])
        return replace(self, apart=tuple(sorted([*others, (begin, end)])))

    def done_up_to(self, offset: int, epoch: int = 0) -> Progress:
        """With all records before an offset done, and those that follow without a gap; `epoch` is that of the record before it, plus one."""
        apart, passed = list(self.apart), False
        while apart and apart[0][0] <= offset:
            offset, passed = max(offset, apart.pop(0)[1]), True
        if not passed:
            return replace(self, offset=offset, epoch=epoch)
        # What was sent apart may lie before the next record now.
        inputs = {name: replace(own, ever=max(own.ever, own.apart)) for name, own in self.inputs.items()}
        return replace(self, offset=offset, epoch=0, apart=tuple(apart), inputs=inputs)

    def lost(self, begin: int) -> int:
        """How many offsets that are not done lie before the first one that is kept."""
        known = sum(min(end, begin) - first for first, end in self.apart if first < begin)
        return max(0, begin - self.offset - known)

    def next_round(self, offset: int) -> Progress:
        """With a new round, which begins with the record at an offset: it has lanes of its own."""
        return replace(self, round=offset, inputs=_with_new_lanes(self.inputs))

    def next_passage(self) -> Progress:
        """With a new passage, which has lanes of its own."""
        return replace(self, passage=self.passage + 1, round=0, inputs=_with_new_lanes(self.inputs))

    @property
    def lanes(self) -> str:
        """What names the lanes of the present round."""
        return f"{self.round}.{self.passage}" if self.passage else str(self.round)


def _with_new_lanes(inputs: Mapping[str, Sent]) -> dict[str, Sent]:
    return {name: replace(own, now=-1) for name, own in inputs.items()}


def _input_of(dead: DeadLetter) -> str:
    return f"{dead.topic_id.hex()[:8]}/{dead.partition}"
