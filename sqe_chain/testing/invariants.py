"""What must hold after every write, each rule once: the simulator, the explorer and `prove` check these.

Who checks remembers what was there before, and knows what must be there; the rules here remember nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqe_chain.features.event_times import EventTime
from sqe_chain.plans.plan import Plan
from sqe_chain.ports import Bounds, Header, Home, TopicPartition
from sqe_chain.task.event_times import furthest

INVARIANTS = {
    "sum": "at rest every state is the fold of all facts, each once",
    "prefix": "at every moment every state is the fold of a prefix of each lane",
    "monotone": "epochs, plans, headers, cursors and the watermark of a flow never go back",
    "order": "outputs come before states, downstream states before upstream ones",
    "commit": "a group's offset is not beyond the last plan that all headers have reached",
    "one writer": "after a claim no older run changes anything",
    "redo": "a lane and position names one content, wherever it is published, and is written once a batch",
    "whole": "collections are applied as a whole or not at all",
    "once": "every input is counted, or skipped by a plan, once; with one dead-letter record",
    "plans": "plans are sealed once, name what they hold, and follow each other",
    "rest": "when faults stop, lag goes to zero and nothing is left to finish",
    "sound": "a service stops only for what it is documented to stop for",
}
"""Name -> its statement."""


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {INVARIANTS[name]}. Found: {text}")
        self.name = name
        self.text = text

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        """Make it picklable: worker processes send it."""
        return Violation, (self.name, self.text)


class Invariants:
    """The rules. Each method raises `Violation` if one does not hold.

    Attributes:
        checked: invariant -> how often it was checked.
    """

    def __init__(self) -> None:
        self.checked: Counter[str] = Counter()

    def require(self, name: str, holds: bool, text: str) -> None:  # noqa: FBT001
        """Check one thing.

        Raises:
            Violation: it does not hold.
        """
        self.checked[name] += 1
        if not holds:
            raise Violation(name, text)

    # ------------------------------------------------------------------ claims and plans

    def check_home(self, flow: str, before: Home | None, after: Home) -> None:
        """A claim follows an older one, and only the run that has claimed seals plans."""
        if before is None:
            return
        text = f"{flow}: {after}, before {before}"
        self.require("monotone", after.epoch >= before.epoch, text)
        self.require("monotone", after.number >= before.number or after.number < 0, text)
        if (after.number, after.plan_id) != (before.number, before.plan_id) and after.epoch == before.epoch:
            self.require("one writer", after.run_id == before.run_id, text)

    def check_plan(self, flow: str, plan: Plan, before: Plan | None) -> None:
        """A plan has the id of its content, begins where the one before ends, and takes inputs at least as far by event time.

        Args:
            flow: whose plan it is.
            plan: the plan.
            before: the plan before it; None: not known.
        """
        where = f"{flow}, plan {plan.number}"
        self.require("plans", plan == plan.with_id(), f"{where} has the id of another one")
        if before is None:
            return
        self.require("plans", plan.previous_id == before.plan_id, f"{where} does not follow {before.number}")
        taken, known = EventTime.of(plan).frontier, EventTime.of(before).frontier
        text = f"{where} takes inputs up to {taken}, the plan before took them up to {known}"
        self.require("monotone", furthest(taken, known) == taken, text)
        removed = set(plan.layout.gone) - set(before.layout.gone)
        starts = {planned.tp: planned.start for planned in plan.ranges}
        for planned in before.ranges:
            if planned.topic not in removed:
                begins = starts.get(planned.tp)
                text = f"{where}: {planned.tp} begins at {begins}, the plan before ends at {planned.stop}"
                self.require("plans", begins == planned.stop, text)

    # ------------------------------------------------------------------ states

    def check_header(self, where: str, before: Header | None, after: Header) -> None:
        """A header never goes back, and no older run writes it."""
        if before is None:
            return
        text = f"{where}: {after}, before {before}"
        self.require("one writer", after.epoch >= before.epoch, text)
        self.require("monotone", after.number >= before.number, text)
        if after.number == before.number and before.cursor is not None:
            ahead = after.cursor is not None and after.cursor >= before.cursor
            self.require("monotone", ahead, text)

    def check_sealed(self, where: str, header: Header, sealed: Collection[str]) -> None:
        """States are those of sealed plans."""
        self.require("order", header.plan_id in sealed, f"{where}: nobody sealed the plan of {header}")
        begun = not header.begun_id or header.begun_id in sealed
        self.require("order", begun, f"{where}: nobody sealed the plan that {header} has begun")

    def check_rows(self, where: str, stored: Mapping[bytes, Any], wanted: Mapping[bytes, Any]) -> None:
        """A cell holds what it must."""
        if stored != wanted:
            keys = sorted({*stored, *wanted})
            wrong = [
                (key, stored.get(key), wanted.get(key)) for key in keys if stored.get(key) != wanted.get(key)
            ]
            self.require("prefix", False, f"{where}: (key, stored, must be) {wrong}"[:2_000])  # noqa: FBT003
        self.checked["prefix"] += 1
        self.checked["whole"] += 1

    def check_downstream(self, where: str, upstream: Header, downstream: Iterable[Header | None]) -> None:
        """States of a later stage are written before those of an earlier one."""
        number = upstream.number + bool(upstream.begun_id)
        for header in downstream:
            behind = header is not None and header.number < number
            self.require("order", not behind, f"{where}: {upstream}, and the next stage has {header}")

    # ------------------------------------------------------------------ outputs

    def check_published(self, where: str, wanted: Iterable[str], published: Collection[str]) -> None:
        """The outputs of what a state holds were published before."""
        missing = [name for name in wanted if name not in published]
        self.require("order", not missing, f"{where}: {missing} was not published")

    def check_content(self, where: str, known: object, content: object) -> None:
        """What is published at a place again has the content that was published there before."""
        self.require("redo", known == content, f"{where}: {content}, before {known}"[:2_000])

    def check_once(self, where: str, written: set[object], place: object) -> None:
        """A writer publishes each place once; `written` remembers them."""
        self.require("redo", place not in written, f"{where} twice in a batch")
        written.add(place)

    # ------------------------------------------------------------------ at rest

    def check_read(self, ends: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]) -> None:
        """All inputs are read."""
        for tp, bound in bounds.items():
            self.require("rest", ends[tp] == bound.stable_end, f"{tp}: read to {ends[tp]} of {bound}")

    def check_done(self, where: str, header: Header | None, last: Plan) -> None:
        """A cell is at the last plan."""
        at = header and (header.number, header.plan_id, header.begun_id)
        done = at == (last.number, last.plan_id, "")
        self.require("rest", done, f"{where}: {header}, the last plan is {last.number}")


def rows_at(header: Header, done: Mapping[bytes, Any], begun: Mapping[bytes, Any]) -> Mapping[bytes, Any]:
    """What a cell must hold whose next plan is written in part, up to the header's cursor.

    Args:
        header: of the cell.
        done: its rows after the header's plan.
        begun: its rows after the plan that was begun.
    """
    if not header.begun_id:
        return done
    cursor = header.cursor or b""
    mixed = {key: (begun if key <= cursor else done).get(key) for key in {*done, *begun}}
    return {key: row for key, row in mixed.items() if row is not None}
