"""Several readers of one flow into a table, as rehearsals that share broker and store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.flow import Flow
from sqe_chain.operations.changing_readers import ChangedReaders, ChangeReaders
from sqe_chain.operations.forget import ForgetFlow
from sqe_chain.ports.readers import Partitions
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import FaultScript
from sqe_chain.testing.faulty_ports import faulty_log, faulty_store
from tests.support.environments import environment_of
from tests.support.table_flows import Reading, TablePipeline, table_flow

PARTITIONS = 4
"""Of the input: more than state partitions, so that readers write into the same ones."""


def sets(tps: Iterable[tuple[str, int]]) -> set[int]:
    """The partition numbers."""
    return {tp[1] for tp in tps}


class ReaderPipeline(TablePipeline):
    """Readers of one flow, and what was fed to them.

    Args:
        at: where tables live.
        texts: the sets of the readers; none: the flow is run as one.
        republished: messages come from a republisher.
    """

    def __init__(self, at: Path, *texts: str, republished: bool = False, **settings: Any) -> None:
        self._settings = {"state_partitions": 2} | settings
        super().__init__(at, partitions=PARTITIONS, flow=self._flow_at, **self._settings)
        self.service.service = None
        self.log: MemoryLog = self.service.log
        self.store = self.service.stores[""]
        self.republisher = self._republisher() if republished else None
        self.readers: list[Rehearsal] = [self.reader(text) for text in texts] or [self.as_one()]

    def _flow_at(self, at: Path, **settings: Any) -> Flow:
        return table_flow(at, **settings)

    def _republisher(self) -> Rehearsal:
        flow = Flow("passing-on")
        source = flow.source("readings.first", Reading, codec="json", raw=True)
        source.to("readings.raw", key=lambda one: one.robot or "", partitions=PARTITIONS)
        return Rehearsal(flow, partitions={"readings.first": 2}, log=self.log)

    def flow(self) -> Flow:
        """The flow, as declared."""
        if self.republisher is None:
            return table_flow(self.at, **self._settings)
        flow = Flow("readings-to-table", state_partitions=2)
        source = flow.source("readings.raw", Reading, codec="json")
        source.ingest("readings", at=str(self.at), partition_key="robot", row_key="at_ms")
        return flow

    def reader(self, text: str) -> Rehearsal:
        """One of several readers."""
        return Rehearsal(self.flow(), log=self.log, store=self.store, reader=text)

    def as_one(self) -> Rehearsal:
        """The flow, run as one."""
        return Rehearsal(self.flow(), log=self.log, store=self.store)

    def changer(self) -> Rehearsal:
        """What runs the command that changes sets."""
        return self.as_one()

    def change(self, changing: Rehearsal, to: Sequence[str]) -> ChangedReaders:
        """Change the sets."""
        env = environment_of(changing)
        return ChangeReaders(env, [Partitions.parse(text) for text in to]).run()

    def become(self, texts: Sequence[str]) -> None:
        """The readers that there are from now on."""
        self.readers = [self.reader(text) for text in texts]

    def run_until_caught_up(self) -> None:
        """All readers, one after the other."""
        if self.republisher is not None:
            self.republisher.run_until_caught_up()
        for reader in self.readers:
            reader.run_until_caught_up()

    def check_once(self) -> None:
        """No row was added twice. Readers number their rows alike, so of one number there may be rows with other keys."""
        rows = [
            (Path(file).parent.name, *row.values())
            for file in self.table.files()
            for row in pq.read_table(file, columns=["_sqe_sequence", "robot", "at_ms"]).to_pylist()
        ]
        assert len(rows) == len(set(rows))

    def crash_in_the_middle(self) -> None:
        """The first reader dies when its plan is sealed, and nothing of it is written."""
        first = self.readers[0]
        first.crash(step=4, when="after")
        first.run_until_crash()
        assert first.crashes

    def forget(self, name: str, script: FaultScript | None = None) -> None:
        """Forget the flow."""
        script = script or FaultScript()
        stores = {"": faulty_store(self.store, script)}
        log = faulty_log(self.log, script)
        ForgetFlow(name, stores, log, False, "forgets", lambda _: True, lambda _: None).run()  # noqa: FBT003

    def republish_again(self) -> None:
        """The republisher upstream publishes everything again."""
        assert self.republisher is not None
        self.republisher.rewind({("readings.first", number): 0 for number in range(2)})

    def feed(self, count: int = 12, robots: int = 5, times: int = 6) -> None:
        if getattr(self, "republisher", None) is None:
            super().feed(count, robots, times)
            return
        for _ in range(count):
            robot = f"r{self._random.randrange(robots)}"
            one = Reading(robot, self._random.randrange(times), float(self.fed))
            assert self.republisher is not None
            self.republisher.feed("readings.first", one, key=robot)
            self.expected[robot, one.at_ms] = one.bar
            self.fed += 1


def begun_readers(at: Path, *texts: str, **settings: Any) -> ReaderPipeline:
    """Readers that have read once, and have new input."""
    pipeline = ReaderPipeline(at, *texts, **settings)
    pipeline.feed()
    pipeline.run_until_caught_up()
    pipeline.feed()
    return pipeline
