"""What is explored: flows, their input, and who may be started, killed and left without an answer, and how often."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Final

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.features.settings import settings_of
from tests.lab.explorer.durable import Machine
from tests.lab.explorer.programs import Exporting, Importing, Rebuilding, Releasing, Service
from tests.lab.explorer.runs import Kind
from tests.lab.explorer.words import OUTPUT, feed, words_flow

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is explored.

    Attributes:
        name: for the command line.
        text: what it is about.
        stages: of the flow.
        state_partitions: of the flow.
        partitions: of its input.
        words: its input; ``=a1`` is ``a1`` again.
        records: of one batch.
        rows: of one write to a store.
        alive: runs that may be alive at the same time.
        crashes: runs that may be killed.
        silences: calls to which there may be no answer, whether they have taken effect or not.
        takeovers: runs that may be started while another one is alive.
        commands: rebuilds, exports and imports that may be started.
        kinds: names of what may be started: `service`, or a command.
        before: what was run to its end before.
        whole_reads: see `Asking`.
        moved: the states move to another store.
        broken: the word on which code fails that parks it: that of the old service, or of all if there is none; "": no flow parks.
    """

    name: str
    text: str
    stages: int = 2
    state_partitions: int = 1
    partitions: int = 2
    words: str = "a1 b2 a3 b4 =a1 a5"
    records: int = 2
    rows: int = 1
    alive: int = 2
    crashes: int = 1
    silences: int = 1
    takeovers: int = 1
    commands: int = 0
    kinds: tuple[str, ...] = ("service",)
    before: tuple[str, ...] = ()
    whole_reads: bool = False
    moved: bool = False
    broken: str = ""

    def machine(self) -> Machine:
        """Broker and stores, with the input."""
        name = f"explorer-{next(_numbers)}"
        log = MemoryLog("explorer")  # topic ids follow from the name: the same in each process
        log.clear()
        feed(log, self.words.split(), self.partitions)
        log.create_topic(OUTPUT, 1)
        places = ["", "new"] if self.moved else [""]
        return Machine(log, {place: MemoryStore(f"{name}-{place}", max_rows=self.rows) for place in places})

    def processes(self) -> tuple[Kind, ...]:
        """The kinds of processes, `service` first."""
        parks = bool(self.broken)
        old = words_flow(self.stages, self.state_partitions, parks=parks, broken=self.broken)
        fixed = words_flow(self.stages, self.state_partitions, parks=parks)
        flow = fixed if "old" in self.kinds else old
        settings = settings_of(takeover=True, max_records=self.records, allow_weak_durability=True)
        service = Kind("service", flow, Service(), settings=settings)
        new = {"": "new"}
        refused = frozenset({"ConfigurationError"})
        known = {
            "service": service,
            "rebuild": replace(service, name="rebuild", program=Rebuilding(), stops=refused),
            "resume": replace(service, name="resume", program=Rebuilding(resume=True), stops=refused),
            "export": replace(
                service, name="export", program=Exporting(), stops=refused | {"ServiceStopped"}
            ),
            "import": replace(
                service, name="import", program=Importing(), stores=new, stops=refused | {"StoreInconsistent"}
            ),
            "release": replace(service, name="release", program=Releasing()),
            "old": replace(service, name="old", flow=old, stops=frozenset({"PlanMismatch"})),
            "moved service": replace(service, name="moved service", stores=new),
        }
        return tuple(known[name] for name in self.kinds)


_AGGREGATION: Final = Configuration(
    "aggregation",
    "two stages, two input partitions, three batches, two runs, two crashes, two calls without an answer",
    crashes=2,
    silences=2,
)
_REBUILD: Final = Configuration(
    "rebuild",
    "a rebuild while the service or another rebuild runs, which goes on as a zombie, or is started meanwhile; one crash",
    words="a1 b2 a3",
    records=4,
    kinds=("service", "rebuild", "resume"),
    commands=2,
    silences=0,
)

CONFIGURATIONS: Final = {
    one.name: one
    for one in (
        Configuration(
            "small",
            "one stage; a run takes over from another one; one crash, one call without an answer",
            stages=1,
            words="a1 b2 =a1",
            records=4,
        ),
        _AGGREGATION,
        replace(
            _AGGREGATION,
            name="batches",
            text="the same with five batches",
            words="a1 b2 a3 b4 =a1 a5 b6 =b4 a7 b8",
        ),
        Configuration(
            "parts",
            "two state partitions, in two batches, with one crash and one call without an answer",
            state_partitions=2,
            words="a1 b2 a3 b4",
        ),
        _REBUILD,
        replace(
            _REBUILD,
            name="rebuild-unanswered",
            text="the same with a call without an answer in place of the crash",
            crashes=0,
            silences=1,
        ),
        Configuration(
            "move",
            "two imports at once, of which one goes on as a zombie when the other one, or the service, has begun; one crash",
            words="a1 b2",
            kinds=("service", "export", "import", "moved service"),
            commands=3,
            before=("service",),
            moved=True,
            silences=0,
        ),
        Configuration(
            "parking",
            "a word fails and is parked; a run takes over from another one; one crash, one call without an answer",
            stages=1,
            words="a1 b2 =a1 a3",
            records=2,
            broken="a1",
        ),
        Configuration(
            "release",
            "parked words are released while the service, another release or the old code runs; one crash",
            stages=1,
            words="a1 b2 a3",
            records=4,
            kinds=("service", "release", "old"),
            commands=2,
            before=("old",),
            silences=0,
            broken="a1",
        ),
        Configuration(
            "service-alone",
            "one run at a time; two crashes and two calls without an answer, wherever they may be",
            alive=1,
            takeovers=0,
            crashes=2,
            silences=2,
        ),
        Configuration(
            "rebuild-alone",
            "the same while states are folded again: after each fault the service, a rebuild, or --resume",
            words="a1 b2",
            alive=1,
            takeovers=0,
            kinds=("service", "rebuild", "resume"),
            commands=2,
            before=("service",),
        ),
        Configuration(
            "move-alone",
            "the same while states are exported and imported into another store",
            words="a1 b2",
            alive=1,
            takeovers=0,
            kinds=("service", "export", "import", "moved service"),
            commands=3,
            before=("service",),
            moved=True,
        ),
    )
}
"""Name -> configuration."""
