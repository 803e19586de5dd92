"""What must hold in every durable state: the invariants of the simulator, as functions of a state or of a change."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from sqe_chain.plans.inputs import parse_metadata
from sqe_chain.plans.plan import Plan
from sqe_chain.testing.invariants import Invariants, Violation, rows_at
from tests.lab.explorer.words import OUTPUT, published_in
from tests.lab.reference.plans import StoredPlan
from tests.lab.reference.words import LETTERS, Books, Expected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqe_chain.flow.compiled import CompiledFlow
    from sqe_chain.flow.nodes import StageNode
    from sqe_chain.ports import Commit, Header, Home
    from tests.lab.explorer.durable import Durable, Variable


class Checks(Invariants):
    """Checks all that is new; see `durable.Watch`.

    Args:
        durable: the durable states.
        flow: whose states they are.
        books: what they must be.
        broken: the word that is parked; "": none.
    """

    def __init__(self, durable: Durable, flow: CompiledFlow, books: Books, broken: str = "") -> None:
        super().__init__()
        self._durable = durable
        self._flow = flow
        self._books = books
        self._broken = broken
        self._plans: dict[str, Plan] = {}
        self._expected: dict[str, Expected] = {}
        self._published_words: dict[int, frozenset[str]] = {}
        self._fine: set[tuple[int, int]] = set()

    # ------------------------------------------------------------------ what changes

    def content(self, variable: Variable, before: Any, after: Any) -> None:
        """Check a change of one variable."""
        kind = variable[0]
        if kind == "home":
            self._home(variable[2], before, after)
        elif kind == "cell":
            self._cell("/".join(map(str, variable[2:])), before, after)
        elif kind == "locations" and before is not None:
            self.require("monotone", before[:2] < after[:2], f"locations {after[:2]} after {before[:2]}")
        elif kind == "topic":
            self._published(after)

    def _home(self, flow: str, before: Any, after: Any) -> None:
        home: Home = after[0]
        plans = dict(after[2])
        if before is not None:
            self.check_home(flow, before[0], home)
            for number, data in dict(before[2]).items():
                self.require("plans", plans.get(number, data) == data, f"{flow}: plan {number} has changed")
        if home.number < 0:
            return
        self.require("plans", home.number in plans, f"{flow}: {home}, and its plan is not there")
        for _, data in sorted(plans.items()):
            plan = Plan.from_bytes(data)
            if plan.plan_id in self._plans:
                continue
            self.check_plan(flow, plan, self._plans.get(plan.previous_id))
            self._plans[plan.plan_id] = plan
            self._expected[plan.plan_id] = self._books.after(
                StoredPlan.read(data), self._expected.get(plan.previous_id)
            )

    def _cell(self, name: str, before: Any, after: Any) -> None:
        self.check_header(name, before and before[0], after[0])

    def _published(self, outputs: Any) -> None:
        try:
            published_in(outputs)
        except ValueError as error:
            raise Violation("redo", str(error)) from None
        self.checked["redo"] += 1

    # ------------------------------------------------------------------ a state

    def state(self, state: int) -> None:
        """Check a durable state that is new."""
        homes = self._homes(state)
        reached = [self._check_cells(state, variable[1], home) for variable, home in homes]
        commits = dict(self._durable.content(state, ("commits", self._flow.name)) or ())
        ends = [self._expected[plan_id].ends for plan_id in reached if plan_id]
        if commits and homes:
            kept = {tp: commit for tp, commit in commits.items() if not self._left_behind(commit, homes)}
            fits = any(all(commit.offset <= end.get(tp, 0) for tp, commit in kept.items()) for end in ends)
            at = {tp: commit.offset for tp, commit in commits.items()}
            self.require("commit", fits, f"commits {at}, all headers have reached {ends}")

    def _left_behind(self, commit: Commit, homes: Sequence[tuple[Variable, Home]]) -> bool:
        """Whether a run that a rebuild has overtaken committed it, of a plan that is not in the history of the flow any more.

        The next commit of the flow corrects it: that of the rebuild, or of the next start.
        """
        metadata = parse_metadata(commit)
        for _, home in homes:
            plan = self._plans.get(home.plan_id)
            while plan is not None and plan.plan_id != metadata["id"]:
                plan = self._plans.get(plan.previous_id)
            if plan is not None or int(str(metadata["plan"])) >= home.number:
                return False
        return True

    def _homes(self, state: int) -> list[tuple[Variable, Home]]:
        return [
            (variable, home)
            for variable in self._durable.variables
            if variable[0] == "home" and variable[2] == self._flow.name
            if (home := self._home_in(state, variable)) is not None and home.number >= 0
        ]

    def _home_in(self, state: int, variable: Variable) -> Home | None:
        content = self._durable.content(state, variable)
        return content[0] if content else None

    def _check_cells(self, state: int, port: str, home: Home) -> str:
        """Check the cells of one store; returns the id of the last plan that all headers have reached."""
        plan = self._plans[home.plan_id]
        stored_in = plan.layout.stored_in()
        lowest: Header | None = None
        upstream = downstream = None
        for stage in self._flow.stages:
            levels = []
            for cell in self._flow.cells[stage.index]:
                where = self._store_of(stage, port)
                variable = "cell", where, stored_in.get(stage.name, ""), stage.name, cell
                number = self._durable.content_id(state, variable)
                if not number:
                    return ""
                header = self._checked_cell(number, stage, cell, variable)
                if lowest is None or header.number < lowest.number:
                    lowest = header
                levels.append(header)
                self._check_published(state, header)
            if stage.name == LETTERS:
                upstream = max(levels, key=lambda one: one.number + bool(one.begun_id))
            else:
                downstream = min(levels, key=lambda one: one.number)
        if upstream is not None and downstream is not None:
            self.check_downstream(port, upstream, [downstream])
        return lowest.plan_id if lowest else ""

    def _store_of(self, stage: StageNode, port: str) -> str:
        return f"store {stage.store}" if stage.store else port

    def _checked_cell(self, number: int, stage: StageNode, cell: int, variable: Variable) -> Header:
        _, (header, rows) = self._durable.contents[number]
        if (number, -1) in self._fine:
            return header  # type: ignore[no-any-return]
        where = f"{stage.name}/{cell} of {variable[2]} at {header}"
        self.check_sealed(where, header, self._expected)
        done = self._books.cell(self._expected[header.plan_id], stage.name, cell)
        begun = self._books.cell(self._expected[header.begun_id], stage.name, cell) if header.begun_id else {}
        self.check_rows(where, dict(rows), rows_at(header, done, begun))
        self._fine.add((number, -1))
        return header  # type: ignore[no-any-return]

    def _check_published(self, state: int, header: Header) -> None:
        """Check that the outputs of what a cell holds were published."""
        number = self._durable.content_id(state, ("topic", OUTPUT))
        plan_id = header.begun_id or header.plan_id
        words = self._expected[plan_id].words
        if not words:
            return
        if number not in self._published_words:
            contents = published_in(self._durable.contents[number][1]).values()
            self._published_words[number] = frozenset(word for one in contents for word in one[1])  # type: ignore[index]
        self.check_published(f"a state is at {header}", words, self._published_words[number])

    # ------------------------------------------------------------------ at rest

    def rest(self, state: int, *, slept: bool) -> None:
        """Check that everything is done, and right.

        Args:
            state: the durable state.
            slept: a run has gone on after another one had taken over. Its commit may have been the last: then Kafka's offsets are
                behind, until the next batch or start.
        """
        flow, durable, homes = self._flow, self._durable, self._homes(state)
        self.require("rest", bool(homes), "the flow has no plan")
        (_, port, _), home = max(homes, key=lambda one: (one[1].number, one[1].epoch))
        plan = self._plans[home.plan_id]
        ends = {tp: end for tp, end in self._expected[plan.plan_id].ends.items() if end}
        self.require("rest", ends == self._books.ends, f"read up to {ends}, there is {self._books.ends}")
        commits = dict(durable.content(state, ("commits", flow.name)) or ())
        at = {tp: commit.offset for tp, commit in commits.items() if commit.offset}
        behind = slept and all(offset <= ends.get(tp, 0) for tp, offset in at.items())
        self.require("rest", behind or at == self._books.ends, f"committed {at}, there is {self._books.ends}")
        self.require("rest", self._check_cells(state, port, home) == plan.plan_id, "a header is behind")
        expected = self._expected[plan.plan_id]
        counted, parked = Counter(expected.words), Counter(expected.parked)
        self.require("sum", counted + parked == self._books.whole(), f"counted {counted}, parked {parked}")
        if self._broken:
            self.require("sum", parked in ({}, self._books.waiting(self._broken)), f"parked {parked}")
        published = published_in(durable.content(state, ("topic", OUTPUT))).values()
        heard = Counter(word for content in published for word in content[1])  # type: ignore[index]
        self.require("sum", heard == counted, f"receivers count {heard}")
