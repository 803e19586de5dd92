"""Checks that the store holds exactly the totals that the seed gives: both stages, key by key.

    python -m services.audit --store redis://HOST:PORT --seed 7 --messages 300000

It uses no flows and no folds: it reads the store by its documented layout (`services.stored`) and computes
the totals independently (`services.expected`). With `--kafka` it first waits until nothing is left to count,
and reports how many replays were ignored. Exit status 1 if anything is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from google.protobuf.message import DecodeError
from rich.console import Console
from rich.table import Table

from services._proto.fastening_pb2 import LineTotal, RobotTotal
from services.demo.positions import topic_end
from services.entry import add_truth, parser_of, with_exit_status
from services.expected import Expected, Total, expected
from services.naive import TOPIC
from services.reports import reports
from services.settled import wait_until_settled
from services.stored import UNREADABLE, StoredRow, stored_states
from sqe_chain.adapters.kafka import KafkaLog

FLOW = "fastening-totals"
SHOWN_FINDINGS = 20

Problem = Literal["missing key", "extra key", "missing events", "doubled events", "wrong value", "unreadable"]


@dataclass(frozen=True, slots=True)
class WrongKey:
    """One key that is wrong."""

    stage: str
    key: str
    problem: Problem
    detail: str


@dataclass(slots=True)
class StageAudit:
    """The result of comparing one stage.

    Attributes:
        missing: events that should have been counted and were not, over all keys.
        doubled: events counted in excess of those reported, over all keys.
        findings: everything that is wrong, by key.
    """

    stage: str
    keys: int = 0
    events: int = 0
    missing: int = 0
    doubled: int = 0
    findings: list[WrongKey] = field(default_factory=list)

    def add(self, key: str, problem: Problem, detail: str) -> None:
        """Add a finding."""
        self.findings.append(WrongKey(self.stage, key, problem, detail))


@dataclass(frozen=True, slots=True)
class Held:
    """A state, for comparison: its own key, the total, and a counter that must be 0."""

    name: str
    total: Total
    out_of_order: int = 0


def audit(stores: Mapping[str, str], truth: Expected) -> list[StageAudit]:
    """Compare both stages with the truth; `stores` is stage -> address of its store, "" for every other."""
    robots, lines = (stores.get(stage, stores.get("", "")) for stage in ("per-robot", "per-line"))
    return [
        audit_stage("per-robot", stored_states(robots, FLOW, "per-robot"), truth.robots, read_robot),
        audit_stage("per-line", stored_states(lines, FLOW, "per-line"), truth.lines, read_line),
    ]


def is_exact(stages: Iterable[StageAudit]) -> bool:
    """Whether nothing is wrong."""
    return not any(stage.findings for stage in stages)


def audit_stage(
    stage: str, states: Iterable[StoredRow], truth: Mapping[str, Total], parse: Callable[[bytes], Held]
) -> StageAudit:
    """Compare the states of one stage with what they should be."""
    result = StageAudit(stage)
    seen: dict[str, int] = {}
    for stored in states:
        key = stored.key.decode(errors="backslashreplace")
        result.keys += 1
        try:
            held = parse(stored.state)
        except DecodeError:
            result.add(key, "unreadable", f"{len(stored.state)} bytes that are not a state of this stage")
            continue
        result.events += held.total.events
        if key in seen:
            result.doubled += held.total.events
            result.add(key, "extra key", f"in state partitions {seen[key]} and {stored.part}")
        elif key not in truth:
            result.doubled += held.total.events
            result.add(key, "extra key", f"never reported, holds {held.total.events} events")
        else:
            _compare(result, key, held, truth[key])
        seen[key] = stored.part
    for key in sorted(truth.keys() - seen.keys()):
        result.missing += truth[key].events
        result.add(key, "missing key", f"{truth[key].events} events were reported")
    return result


def _compare(result: StageAudit, key: str, held: Held, truth: Total) -> None:
    beyond = held.total.events - truth.events
    if beyond > 0:
        result.doubled += beyond
        result.add(key, "doubled events", f"{held.total.events} instead of {truth.events}: {beyond:+}")
    elif beyond < 0:
        result.missing -= beyond
        result.add(key, "missing events", f"{held.total.events} instead of {truth.events}: {beyond:+}")
    elif held.total != truth:
        result.add(key, "wrong value", f"{held.total} instead of {truth}")
    if held.name != key:
        result.add(key, "wrong value", f"the state is that of {held.name!r}")
    if held.out_of_order:
        result.add(key, "wrong value", f"{held.out_of_order} events came out of order")


def read_robot(state: bytes) -> Held:
    """What a state of stage per-robot has."""
    total = RobotTotal.FromString(state)
    return Held(total.robot, _total(total), total.out_of_order)


def read_line(state: bytes) -> Held:
    """What a state of stage per-line has."""
    total = LineTotal.FromString(state)
    return Held(total.line, _total(total))


def _total(state: RobotTotal | LineTotal) -> Total:
    """The fields that a state has, the others as by default."""
    known = state.DESCRIPTOR.fields_by_name
    return Total(**{name: getattr(state, name) for name in Total.__slots__ if name in known})


def tables(stages: Iterable[StageAudit], truth: Expected) -> list[Table]:
    """The result for people: one row for each stage, then at most 20 findings."""
    summary = Table(title=f"audit of {truth.reports:,} reports: {truth.events:,} events")
    for column in ("stage", "keys", "of", "events", "missing", "doubled", "off"):
        summary.add_column(column, justify="left" if column == "stage" else "right")
    findings: list[WrongKey] = []
    for stage in stages:
        keys = len(truth.robots if stage.stage == "per-robot" else truth.lines)
        numbers = (stage.keys, keys, stage.events, stage.missing, stage.doubled, len(stage.findings))
        summary.add_row(stage.stage, *(f"{number:,}" for number in numbers))
        findings += stage.findings
    if not findings:
        return [summary]
    details = Table(title=f"{len(findings):,} findings, the first {SHOWN_FINDINGS}")
    for column in ("stage", "key", "problem", "detail"):
        details.add_column(column, overflow="fold")
    for finding in findings[:SHOWN_FINDINGS]:
        details.add_row(finding.stage, finding.key, finding.problem, finding.detail)
    return [summary, details]


def last_line(stages: Sequence[StageAudit], replays: int | None = None) -> str:
    """The result in one line; `replays` are messages in the input that had been published before, None if not known."""
    word = "exact" if is_exact(stages) else "not exact"
    ignored = "" if replays is None else f"{replays} replays ignored, "
    missing = max(stage.missing for stage in stages)
    doubled = max(stage.doubled for stage in stages)
    return (
        f"{word}: {sum(stage.keys for stage in stages)} keys, {stages[0].events} events, {ignored}"
        f"{missing} missing, {doubled} doubled"
    )


def _by_stage(texts: Iterable[str]) -> dict[str, str]:
    """Stage -> address, of ``STAGE=URL`` and ``URL``."""
    stage_and_url = (text.partition("=") for text in texts)
    return {
        (stage if "://" not in stage else ""): (url if "://" not in stage else stage + equals + url)
        for stage, equals, url in stage_and_url
    }


@with_exit_status
def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = parser_of("services.audit", __doc__)
    parser.add_argument(
        "--store",
        required=True,
        action="append",
        metavar="[STAGE=]URL",
        help="redis://HOST:PORT, cassandra://HOST:PORT/KEYSPACE or sqlite:///PATH; STAGE= for one stage",
    )
    add_truth(parser)
    parser.add_argument("--kafka", help="HOST:PORT of a broker: wait until nothing is left to count")
    parser.add_argument("--timeout", type=float, default=900, help="seconds to wait for that")
    options = parser.parse_args(arguments)
    truth = expected(reports(options.seed, options.messages))
    replays = None
    try:
        if options.kafka:
            log = KafkaLog(options.kafka)
            wait_until_settled(log, options.messages, options.timeout)
            replays = topic_end(log, TOPIC) - truth.messages
        stages = audit(_by_stage(options.store), truth)
    except UNREADABLE as error:
        parser.error(str(error))
    console = Console()
    for table in tables(stages, truth):
        console.print(table)
    console.print(last_line(stages, replays), highlight=False, soft_wrap=True)
    return 0 if is_exact(stages) else 1


if __name__ == "__main__":
    sys.exit(main())
