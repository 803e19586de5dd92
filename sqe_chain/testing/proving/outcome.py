"""What a run of a flow has left behind, as its readers see it: states, outputs without replays, tables, dead-letter records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqe_chain.envelope.message import read
from sqe_chain.envelope.replays import ReplayFilter
from sqe_chain.flow.nodes import Node, OutputNode, StageNode
from sqe_chain.flow.stage_kind import Side
from sqe_chain.task.dead_letters import parse_dead_letter
from sqe_chain.testing.invariants import Violation
from sqe_chain.testing.proving.contents import content_of, shown
from sqe_chain.testing.rehearsal import Rehearsal
from sqe_chain.wings import WINGS, load

Part = Mapping[object, object]


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What a run has left behind.

    Attributes:
        parts: name of a part -> what is in it.
        own: parts that replays change.
        rows: parts that are rows of the package's own; from batch to batch they are tidied up.
    """

    parts: Mapping[str, Part] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    rows: frozenset[str] = frozenset()

    def difference(self, other: RunOutcome, *, replays: bool, batches: bool) -> str | None:
        """The first difference, in words; None: they are equal.

        Args:
            other: of the disturbed run.
            replays: whether the logs of the two differ by replays.
            batches: whether their batches have other sizes.
        """
        left_out = (self.own if replays else frozenset()) | (self.rows if batches else frozenset())
        for name, part in self.parts.items():
            now_there = other.parts.get(name, {})
            if part == now_there or name in left_out:
                continue
            for key in [*part, *(key for key in now_there if key not in part)]:
                if part.get(key) != now_there.get(key):
                    was, now = part.get(key, "nothing"), now_there.get(key, "nothing")
                    return f"{name}, {_named(key)}: undisturbed {shown(was)}\n    now {shown(now)}"
        return None


def collect_outcome(rehearsal: Rehearsal) -> RunOutcome:
    """Look at what a run has left behind, in the end.

    Raises:
        Violation: a service that reads the outputs would stop.
    """
    flow = rehearsal.flow
    parts: dict[str, Part] = {}
    own, rows = set(), set()
    for stage in flow.stages:
        name = f"states of stage {stage.name!r}"
        if stage.stage_kind.sink is not None:
            parts[f"rows of table {stage.name!r}"] = _rows_of_table(stage)
        elif stage.codec is not None and stage.traits.windowed:
            windows = rehearsal.windows(stage.name)
            parts[name] = {(window.key, window.span): content_of(window.state) for window in windows}
        elif stage.codec is not None:
            parts[name] = {key: content_of(state) for key, state in rehearsal.states(stage.name).items()}
        else:
            parts[name] = dict(rehearsal._rows(stage))  # noqa: SLF001 - of this package
            own.add(name)
            rows.add(name)
    for output in flow.outputs:
        name = f"output {output.name!r} on topic {output.topic!r}"
        parts[name] = _received(rehearsal, output)
        if _side_before(rehearsal, output) == "dropped":
            own.add(name)
    if flow.dead_letters:
        records = [parse_dead_letter(message) for message in rehearsal.log.records(flow.dead_letter_topic)]
        letters: dict[object, object] = {
            (dead.topic, dead.partition, dead.offset): dead.error for dead in records if dead is not None
        }
        parts["dead letters"] = letters
        own.add("dead letters")
        parts["errors of dead letters"] = dict(Counter(letters.values()))
    return RunOutcome(parts, frozenset(own), frozenset(rows))


def _received(rehearsal: Rehearsal, output: OutputNode) -> Part:
    """What a service that ignores replays reads of an output: for each key and lane all contents in their order.

    Behind `changes()` only the newest of each key: which ones there are in between depends on where batches end.
    """
    log, flow = rehearsal.log, rehearsal.flow
    records = log.records(output.topic)
    if output.process_id is not None:
        return {record.key(): record.value() for record in records}
    accepts = ReplayFilter(log.topic_ids([output.topic]))
    newest = _side_before(rehearsal, output) == "changes"
    received: dict[object, Any] = {}
    for record in records:
        try:
            fresh = accepts.accept(record)
        except Exception as error:
            raise Violation(
                "sum", f"a service that reads {output.topic!r} stops: {type(error).__name__}: {error}"
            ) from error
        envelope = read(record.value(), headers=record.headers())
        if not fresh or envelope.chain.links[-1].output != f"{flow.name}/{output.name}":
            continue
        content = envelope.payloads, envelope.type, envelope.timestamp_ms
        if not newest:
            received.setdefault((envelope.key, envelope.lane), []).append(content)
        elif envelope.key is not None:
            received[envelope.key] = content
    return received


def _side_before(rehearsal: Rehearsal, node: Node) -> Side:
    """Which output of its stage an output publishes."""
    while node.parents and not isinstance(node, StageNode):
        if node.side:
            return node.side
        node = rehearsal.flow.nodes[node.parents[0]]
    return ""


def _rows_of_table(stage: StageNode) -> Part:
    kind: Any = stage.stage_kind
    rows = load(WINGS, "table-rows", "tables")(kind)
    return dict(Counter(shown_row(row) for row in rows))


def shown_row(row: Mapping[str, object]) -> str:
    """A row as the key of a part."""
    return ", ".join(f"{name}={value!r}" for name, value in row.items())


def _named(key: object) -> str:
    if isinstance(key, bytes):
        return f"key {key.decode(errors='replace')!r}"
    return f"key {key!r}"
