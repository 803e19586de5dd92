"""Worlds: the services of a simulation, their declarations and layouts, as plain data."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.lab.reference.facts import Form

DAY_MS = 86_400_000
WINDOW_MS = 60_000
COMPACTED = "latest"
"""The compacted topic."""
TABLES = "memory://simulation"
TABLE = "rows"
"""Where the table lives, and its name."""
FOLDER = Path(tempfile.gettempdir(), f"sqe-chain-simulation-{os.getpid()}")
"""Of the files that are an origin. Each process has its own."""

Poison = Literal["stop", "skip", "dead_letter"]
Doors = Literal["", "fold", "changes"]
TableAt = Literal["", "beside", "after"]
StageName = Literal["", "deduplicate", "distinct", "roots", "sequences", "windows", "join"]


@dataclass(frozen=True, slots=True)
class World:
    """Services and topics of a simulation.

    Producers write to the origins `origin` (and `other`); up to two republishers carry facts to `far`, which
    `totals` reads; `reader` reads what `totals` publishes. Without a hop `far` is an origin itself.

    Attributes:
        hops: republishers between the origin and `totals`, 0 to 2.
        twin: another republisher, of `other`, also writes to `far`.
        raw: origins have no envelopes.
        partitions: of every topic that `totals` may read.
        state_partitions: of `totals`; the same number lets the first stage run without a shuffle.
        stages: of `totals`, 1 or 2; the second comes after a shuffle.
        kind: of the stage before the others: a filter, a join with a table in which nothing is, or windows, and then there is no other;
            empty: there is none.
        buckets: of each stage.
        poison: policy of every flow.
        recreated: policy of `totals` for old roots through a topic that was created again.
        view: the states of the first stage are also stored as JSON.
        mispartitioned: some keys are not in the partition that murmur2 gives them.
        doors: what refuses to close a door that is not open: the first fold, or the operator after its `changes()`.
        limits: topics refuse times far from the clock; the first stage also writes to a compacted topic.
        beside: another stage, without output, after the same shuffle as the first stage.
        reader: what reads the outputs of `totals`: an aggregation, a republisher, nothing.
        block: records that a reader gets at a time.
        rows: rows that one write of a store takes.
        records: records of one batch of any service.
        keep_plans: sealed plans that are kept.
        carrier: where republishers and `totals` put the chain.
        table: where rows go into a table: beside the first stage, or after it; empty: there is none.
        replaced: of few row keys, so that later rows replace earlier ones; else each row has its own.
        files: the origin is a folder of files.
        json: payloads and states are JSON, not protobuf.
        batches: the first operator of `totals` works on columns.
        declared: another stage has declared aggregates.
        own: payloads and states are of a codec of the world's own, neither protobuf nor JSON.
        told: what the stage before the others lets pass and what it drops is published, or the early results of windows. With a
            join or windows there is another filter, which lets the first unit of each fact pass.
        transactional: `totals` publishes in transactions, for readers that know nothing of positions.
    """

    hops: int = 2
    twin: bool = False
    raw: bool = False
    partitions: int = 2
    state_partitions: int = 2
    stages: int = 2
    kind: StageName = ""
    buckets: int = 1
    poison: Poison = "stop"
    recreated: Literal["stop", "skip"] = "stop"
    view: bool = False
    mispartitioned: bool = False
    doors: Doors = ""
    limits: bool = False
    beside: bool = False
    reader: Literal["", "aggregation", "republisher"] = ""
    block: int = 1_000
    rows: int = 5_000
    records: int = 400_000
    keep_plans: int = 20
    carrier: Literal["value", "headers"] = "value"
    table: TableAt = ""
    replaced: bool = False
    files: bool = False
    json: bool = False
    batches: bool = False
    declared: bool = False
    own: bool = False
    told: bool = False
    transactional: bool = False

    @property
    def form(self) -> Form:
        """How payloads and states are encoded."""
        return "json" if self.json else "own" if self.own else "protobuf"

    @property
    def totals_read_raw(self) -> bool:
        """Whether the totals read what was never in an envelope."""
        return self.raw and not self.hops

    @property
    def picks(self) -> bool:
        """Whether a filter decides by an id, in the order of times, which inputs are folded."""
        return self.kind in {"deduplicate", "distinct"}

    def origins(self) -> list[str]:
        """Topics that producers write."""
        return ["origin" if self.hops else "far", *(["other"] if self.twin else [])]

    def services(self) -> list[str]:
        """Names of the services, in the order in which facts reach them."""
        hops = [f"hop{number + 1}" for number in range(self.hops)]
        return [*hops, *(["twin"] if self.twin else []), "totals", *(["reader"] if self.reader else [])]
