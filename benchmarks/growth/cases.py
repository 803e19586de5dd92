"""The tables: in each, one base case and one thing that varies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal


class Growth(StrEnum):
    """What can vary."""

    KEYS = "keys"
    KEYS_SQLITE = "keys-sqlite"
    CHANGED = "changed"
    PAYLOAD = "payload"
    PARTITIONS = "partitions"
    STATE_PARTITIONS = "state-partitions"
    LANES = "lanes"
    CHAIN = "chain"
    STAGES = "stages"
    BATCH = "batch"
    BACKLOG = "backlog"
    CORES = "cores"


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a table.

    Attributes:
        label: in the table.
        stages: what is computed: sums by key, in this number of stages, one after the other; 0: two envelopes for one.
        keys: that have a state, and among which records are spread.
        changed: keys that the records of one batch name.
        batch: records of one batch.
        batches: of one round; the first only warms up.
        payload: bytes of a payload.
        partitions: of the input topic.
        lanes: of each input partition.
        links: of the chain of each record.
        state_partitions: of the flow.
        in_place: the first stage may run where the input is read.
        store: where states are.
        cores: of Spark; 0: one process without Spark.
    """

    label: str
    stages: int = 1
    keys: int = 1_000
    changed: int = 1_000
    batch: int = 50_000
    batches: int = 5
    payload: int = 120
    partitions: int = 4
    lanes: int = 3
    links: int = 1
    state_partitions: int = 4
    in_place: bool = True
    store: Literal["redis", "sqlite"] = "redis"
    cores: int = 0

    @property
    def records(self) -> int:
        """Of one round."""
        return self.batch * self.batches


@dataclass(frozen=True, slots=True)
class Comparison:
    """One table.

    Attributes:
        growth: what varies.
        title: of the table.
        cases: its rows; the first is what the others are compared with.
    """

    growth: Growth
    title: str
    cases: Sequence[Case]


BASE = Case("")
_THOUSAND = 1_000


def comparisons(*, quick: bool = False) -> list[Comparison]:
    """All tables.

    Args:
        quick: fewer records and smaller extremes, to see that everything works.
    """
    base = replace(BASE, batch=5_000, batches=3) if quick else BASE
    small, many = replace(base, batch=base.batch // 10), 512 if not quick else 128
    most_keys = 10_000_000 if not quick else 100_000
    some_keys = most_keys // 10
    shuffled = replace(base, in_place=False)
    per_key = [replace(base, label=f"{keys:,}", keys=keys) for keys in (_THOUSAND, some_keys, most_keys)]
    by_cores = replace(base, batch=base.batch * 5, batches=3)
    backlogs = (2, 8, 32) if not quick else (2, 4)
    return [
        Comparison(
            Growth.KEYS,
            f"keys with a state in Redis; a batch changes {_THOUSAND:,} of them",
            per_key,
        ),
        Comparison(
            Growth.KEYS_SQLITE,
            f"keys with a state in SQLite; a batch changes {_THOUSAND:,} of them",
            [replace(case, store="sqlite") for case in per_key],
        ),
        Comparison(
            Growth.CHANGED,
            f"keys that a batch changes, of {some_keys:,}",
            [
                replace(base, label=f"{changed:,}", keys=some_keys, changed=changed)
                for changed in (base.batch // 50, base.batch // 5, base.batch)
            ],
        ),
        Comparison(
            Growth.PAYLOAD,
            "bytes of a payload",
            [replace(small, label=f"{size:,}", payload=size) for size in (120, 1_000, 10_000, 50_000)],
        ),
        Comparison(
            Growth.PARTITIONS,
            "input partitions, shuffled to 4 state partitions",
            [replace(shuffled, label=f"{number}", partitions=number) for number in (4, many // 8, many)],
        ),
        Comparison(
            Growth.STATE_PARTITIONS,
            "state partitions, shuffled from 4 input partitions",
            [
                replace(shuffled, label=f"{number}", state_partitions=number)
                for number in (4, many // 8, many)
            ],
        ),
        Comparison(
            Growth.LANES,
            "lanes of each of 4 input partitions",
            [replace(base, label=f"{lanes:,}", lanes=lanes) for lanes in (1, 30, 1_000)],
        ),
        Comparison(
            Growth.CHAIN,
            "links of the chain that a republisher reads, 2 envelopes for 1",
            [
                replace(base, label=f"{links}", stages=0, links=links, batch=base.batch // 2)
                for links in (1, 2, 4, 8)
            ],
        ),
        Comparison(
            Growth.STAGES,
            "stages, a shuffle before each but the first",
            [replace(base, label=f"{stages}", stages=stages) for stages in (1, 2, 3, 4)],
        ),
        Comparison(
            Growth.BATCH,
            "records of a batch",
            [
                replace(base, label=f"{size:,}", batch=size, batches=base.records // size)
                for size in (base.batch // 50, base.batch // 10, base.batch)
            ],
        ),
        Comparison(
            Growth.BACKLOG,
            f"records of a backlog, worked off in batches of {base.batch:,}",
            [replace(base, label=f"{base.batch * batches:,}", batches=batches) for batches in backlogs],
        ),
        Comparison(
            Growth.CORES,
            f"Spark's cores, batches of {by_cores.batch:,}",
            [replace(by_cores, label=f"local[{cores}]", cores=cores) for cores in (1, 2)],
        ),
    ]
