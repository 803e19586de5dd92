"""Sums up the rounds: medians, and ratios to Kafka Streams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.peers.running import Measured, Run
from benchmarks.peers.systems import KAFKA_STREAMS, System
from benchmarks.peers.workloads import Workload

LATER = ", after its first batch"
_COLUMNS = 3
"""Workloads in one table."""


@dataclass(frozen=True, slots=True)
class Row:
    """One system on one workload, medians of all rounds.

    Attributes:
        system: its name; for batches after the first, with `LATER`.
        workload: its name.
        records_per_s: from the first record to the last visible output.
        cpu_us_per_record: of all its processes, and Redis; without the broker.
        ratio_to_kafka_streams: of the rates; None when Kafka Streams was not measured.
    """

    system: str
    workload: str
    records_per_s: float
    cpu_us_per_record: float
    ratio_to_kafka_streams: float | None


@dataclass(slots=True)
class Results:
    """What was measured, and who was not.

    Attributes:
        skipped: system -> why it cannot take part here.
        wrong: what systems did wrong: system and workload -> what.
    """

    skipped: dict[str, str] = field(default_factory=dict)
    wrong: dict[tuple[str, Workload], str] = field(default_factory=dict)
    _measured: dict[tuple[str, Workload], list[Measured]] = field(default_factory=dict)
    _starts: dict[str, list[float]] = field(default_factory=dict)

    def add(self, system: str, workload: Workload, run: Run) -> None:
        """Add a round."""
        self._measured.setdefault((system, workload), []).append(run.whole)
        self._starts.setdefault(system, []).append(run.start_s)
        if run.later:
            self._measured.setdefault((system + LATER, workload), []).append(run.later)

    def row(self, system: str, workload: Workload) -> Row | None:
        """The row of a system; None if it was not measured, or was wrong in any round."""
        found = self._measured.get((system, workload))
        if not found or (system.removesuffix(LATER), workload) in self.wrong:
            return None
        rate = median(one.records_per_s for one in found)
        base = found if system == KAFKA_STREAMS else None
        if (KAFKA_STREAMS, workload) not in self.wrong:
            base = self._measured.get((KAFKA_STREAMS, workload))
        ratio = rate / median(one.records_per_s for one in base) if base else None
        return Row(system, workload, rate, median(one.cpu_us_per_record for one in found), ratio)

    def rows(self, systems: Sequence[System]) -> Iterator[Row]:
        """All rows, those of one workload side by side."""
        for workload in Workload:
            for system in systems:
                for name in (system.name, system.name + LATER):
                    if row := self.row(name, workload):
                        yield row

    def write(self, file: Path, systems: Sequence[System]) -> None:
        """Write the rows as a JSON array of objects."""
        file.write_text(json.dumps([asdict(row) for row in self.rows(systems)], indent=2) + "\n", "utf-8")

    def markdown(self, systems: Sequence[System], workloads: Sequence[Workload]) -> str:
        """Tables for docs/performance.md, one for every three workloads: rate, processor time, ratio, and seconds to start."""
        parts = [workloads[first : first + _COLUMNS] for first in range(0, len(workloads), _COLUMNS)]
        return "\n\n".join("\n".join(self._lines(systems, part)) for part in parts)

    def _lines(self, systems: Sequence[System], workloads: Sequence[Workload]) -> Iterator[str]:
        shorts = [workload.called.partition(":")[0] for workload in workloads]
        columns = [name for short in shorts for name in (f"{short} k/s", "µs", "ratio")]
        yield _line(("system", *columns, "starts in"))
        yield "|---" * (len(columns) + 2) + "|"
        for system in systems:
            cells = [cell for workload in workloads for cell in self._cells(system.name, workload)]
            if any(cells):
                starts = self._starts.get(system.name)
                yield _line(
                    (system.title or system.name, *cells, f"{median(starts):.1f} s" if starts else "")
                )

    def _cells(self, system: str, workload: Workload) -> tuple[str, str, str]:
        row = self.row(system, workload)
        if row is None:
            return ("wrong" if (system, workload) in self.wrong else "", "", "")
        ratio = "" if row.ratio_to_kafka_streams is None else f"{row.ratio_to_kafka_streams:.2f}"
        return f"{row.records_per_s / 1e3:,.0f}", f"{row.cpu_us_per_record:.1f}", ratio


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")
