"""Forgetting a flow: its commits, states, plans and claim, and its topics where that is asked for.

The flow is claimed first: from then on no run of it, however long it was asleep, can write anything. The home record is
deleted last. It names what there is to forget, so after a crash the same command continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sqe_chain.errors import ConfigurationError, StoreInconsistent, Superseded
from sqe_chain.features.dead_letter_commits import replay_group
from sqe_chain.features.readers import Readers, ReadersClaim, read_record, write_record
from sqe_chain.ports import Header, Home, Log, StateStore, Views
from sqe_chain.ports.readers import flow_of, readers_of
from sqe_chain.protocol.layout import Layout
from sqe_chain.protocol.plan import FILES, Plan
from sqe_chain.task.states import chunk_size

MARK = "forgets"
"""In the owner of a claim: this flow is being forgotten, and parts of it may be gone."""
_STEP_MS = 200
_UNKNOWN = Home(0, "", "", -1, "")
_BLOCK = 64
"""Headers looked at together, beyond those that the last plan knows of."""


@dataclass(frozen=True, slots=True)
class KnownFlow:
    """A flow as its home store knows it.

    Attributes:
        name: its name.
        home: its claim and the number of its last plan.
        plan: its last plan; None: it was claimed, and has not run, or something cannot be read.
        unreadable: why its home or plan cannot be read; "" when both can.
    """

    name: str
    home: Home
    plan: Plan | None
    unreadable: str = ""

    @property
    def forgotten_in_part(self) -> bool:
        """Whether somebody has begun to forget it, and has not finished."""
        try:
            owner = json.loads(self.home.owner)
        except ValueError:
            return False
        return isinstance(owner, dict) and MARK in owner


def known_flows(home: StateStore) -> list[KnownFlow]:
    """All flows that a store is home of, by name; of a flow with several readers, each of them."""
    found = (known_flow(home, name) for name in home.flows() if name != readers_of(flow_of(name)))
    return [one for one in found if one is not None]


def known_flow(home: StateStore, name: str) -> KnownFlow | None:
    """What the store knows of one flow; None: nothing."""
    record = _UNKNOWN
    try:
        found, _ = home.home(name)
        if found is None:
            return None
        record = found
        data = home.plan(name, record.number) if record.number >= 0 else None
        return KnownFlow(name, record, Plan.from_bytes(data) if data else None)
    except StoreInconsistent as error:
        return KnownFlow(name, record, None, str(error))


@dataclass(slots=True)
class ForgetFlow:
    """Forgets one flow. May be killed and repeated.

    Args:
        name: the flow's name.
        stores: store name -> store; "" is its home store. All that its stages use must be there.
        log: Kafka; None for a flow that reads files and publishes nothing.
        topics: also delete the topics that the flow writes, and its dead letters.
        run_id: a random name for this claim.
        is_dead: whether the process that an owner text names is known to be dead.
        wait: wait so many milliseconds.
        standby_ms: how long a heartbeat must stand still.
    """

    name: str
    stores: Mapping[str, StateStore]
    log: Log | None
    topics: bool
    run_id: str
    is_dead: Callable[[str], bool]
    wait: Callable[[int], None]
    standby_ms: int = 6_000
    _again: list[KnownFlow] = field(default_factory=list)
    _with_readers: bool = False
    _claimed: Home | None = None

    def run(self) -> list[str]:
        """Do it. A flow with several readers is forgotten with all of them.

        Returns:
            The topics that were deleted.

        Raises:
            ConfigurationError: the store does not know the flow, its plan cannot be read, a run of it is alive, a store of
                its stages is not given, another flow uses one of the topics, or Kafka is not given and the flow has topics.
            Superseded: a run has claimed the flow in between.
        """
        if flow_of(self.name) != self.name:
            raise ConfigurationError(
                f"{self.name!r} is one of several readers; forget the flow with all of them: {flow_of(self.name)}"
            )
        record = read_record(self.stores[""], self.name)
        if record.readers is not None:
            return self._run_with_readers(record, record.readers)
        return self._run_one()

    def _run_one(self) -> list[str]:
        """The same for a flow that runs as one, or for one reader."""
        home = self.stores[""]
        known = known_flow(home, self.name)
        if known is None:
            raise ConfigurationError(
                f"the store knows nothing of flow {self.name!r}; sqe-chain flows list shows what it knows"
            )
        if known.unreadable:
            raise ConfigurationError(
                f"flow {self.name!r}: {known.unreadable}, so what belongs to the flow is not known; nothing was forgotten"
            )
        self._check_not_alive(known.home)
        attempt = re.compile(re.escape(self.name) + r"\.again-[0-9]+")
        others = known_flows(home)
        self._again = [one for one in others if attempt.fullmatch(one.name)]
        layouts = [one.plan.layout for one in (known, *self._again) if one.plan is not None]
        if not known.forgotten_in_part and not self._with_readers:
            for layout in layouts:
                self._check_stores([layout])
        topics = self._topics(
            [known.plan.layout] if known.plan is not None else [],
            [one for one in others if one.name != self.name and one not in self._again],
        )
        self._check_log(layouts)
        claimed = self._claimed = self._claim(known.home)
        if not self._with_readers:
            self._forget_in_kafka(topics)
        for store in self.stores.values():
            self._forget_locations(store)  # first: nobody shall be led to what is half deleted
        for layout in layouts:
            self._forget_states(layout)
        for one in self._again:
            home.forget(one.name, one.home)
        if home.forget(self.name, claimed) is not None:
            raise Superseded(
                f"flow {self.name!r}: a run has claimed it in between; forget it again when that run has ended"
            )
        return topics

    def _run_with_readers(self, record: ReadersClaim, readers: Readers) -> list[str]:
        """The same for a flow that is, or was, run by several readers. The record of them goes last."""
        home = self.stores[""]
        known = dict.fromkeys(
            [*readers.names, self.name]
        )  # one that ran as one before is among the former readers, too
        own = [one for name in known if (one := known_flow(home, name)) is not None]
        for one in own:
            if one.unreadable:
                raise ConfigurationError(f"flow {one.name!r}: {one.unreadable}; nothing was forgotten")
            self._check_not_alive(one.home, one.name)
        layouts = [one.plan.layout for one in own if one.plan is not None]
        names = {one.name for one in own}
        others = [one for one in known_flows(home) if one.name not in names]
        topics = self._topics(layouts, others)
        self._check_log(layouts)
        if not readers.forgotten:
            self._check_stores(layouts)
        written = write_record(home, self.name, record, replace(readers, forgotten=True), self.run_id)
        if written is None or written.home is None:
            raise Superseded(f"flow {self.name!r}: a reader was started in between; nothing was forgotten")
        self._forget_in_kafka(topics)
        for one in own:
            replace(self, name=one.name, _again=[], _with_readers=True)._run_one()  # noqa: SLF001 - of this class
        if home.forget(readers_of(self.name), written.home) is not None:
            raise Superseded(f"flow {self.name!r}: somebody else forgets it as well; forget it again")
        return topics

    def _forget_in_kafka(self, topics: list[str]) -> None:
        if self.log is None:
            return
        for topic in topics:
            self.log.delete_topic(topic)
        for group in (self.name, replay_group(self.name)):
            self.log.delete_group(group)

    def _check_log(self, layouts: list[Layout]) -> None:
        """Check that Kafka is given if the flow has anything there."""
        if self.log is not None:
            return
        used = {name for one in layouts for name, (topic_id, _) in one.sources.items() if topic_id != FILES}
        used |= {topic for one in layouts for topic, _ in one.outputs.values()}
        if used or self.topics or not layouts:
            what = f"reads or writes {', '.join(sorted(used))}" if used else "may have topics"
            raise ConfigurationError(
                f"flow {self.name!r} {what}: give --kafka HOST:PORT; nothing was forgotten"
            )

    def _check_not_alive(self, home: Home, name: str = "") -> None:
        """Check that the run with the claim is known to be dead, or that its heartbeat has stopped."""
        if not home.run_id or self.is_dead(home.owner):
            return
        name = name or self.name
        seen = self.stores[""].home(name)
        for _ in range(0, self.standby_ms, _STEP_MS):
            self.wait(_STEP_MS)
            found = self.stores[""].home(name)
            if found != seen and found[0] is not None and found[0].run_id:
                raise ConfigurationError(
                    f"flow {name!r} is run now ({found[0]}); stop it first, then forget it"
                )
            seen = found

    def _check_stores(self, layouts: list[Layout]) -> None:
        """Check that each stage is in one of the stores, under any of these layouts: readers that never ran have no headers."""
        for stage in dict.fromkeys(name for layout in layouts for name in layout.stages):
            if not any(self._is_stored(layout, stage) for layout in layouts if stage in layout.stages):
                raise ConfigurationError(
                    f"flow {self.name!r}: stage {stage!r} is in none of the stores given; give the one that it uses as "
                    "well: --store NAME=URL"
                )

    def _is_stored(self, layout: Layout, stage: str) -> bool:
        stored = layout.stages[stage]
        cells = range(layout.state_partitions * stored.buckets)
        return any(any(store.headers(stored.flow, stage, cells)) for store in self.stores.values())

    def _topics(self, layouts: list[Layout], others: list[KnownFlow]) -> list[str]:
        """The topics to delete. None that another flow of this store reads or writes."""
        if not self.topics or not layouts or self._with_readers or self.log is None:
            return []
        written = {topic for one in layouts for topic, _ in one.outputs.values()}
        read = {topic for one in layouts for topic in one.sources}
        wanted = sorted({*written, f"{self.name}.dead-letters"} - read)
        for other in others:
            if other.unreadable:
                raise ConfigurationError(
                    f"flow {other.name!r}: {other.unreadable}, so which topics it uses is not known; leave --topics out and "
                    "delete topics with Kafka's tools"
                )
            layout = other.plan.layout if other.plan else Layout(1)
            used = {*layout.sources, *(topic for topic, _ in layout.outputs.values())} & set(wanted)
            if used:
                raise ConfigurationError(
                    f"topic {min(used)!r} is used by flow {other.name!r} as well; forget that first, or leave --topics out and "
                    "delete topics with Kafka's tools"
                )
        return [topic for topic in wanted if topic in self.log.describe(wanted)]

    def _claim(self, before: Home) -> Home:
        """Fence off every run. The mark says that the flow is being forgotten."""
        claimed = replace(
            before, epoch=before.epoch + 1, run_id=self.run_id, owner=json.dumps({MARK: self.name})
        )
        stored = self.stores[""].set_home(self.name, before, claimed)
        if stored != claimed:
            raise Superseded(f"flow {self.name!r}: a run has claimed it in between; nothing was forgotten")
        return claimed

    def _check_claim(self) -> None:
        """Check, after something was read that is about to be deleted, that it is not that of a flow that has begun anew since."""
        if self.stores[""].home(self.name)[0] != self._claimed:
            raise Superseded(
                f"flow {self.name!r}: a run has claimed it in between; forget it again when that run has ended"
            )

    def _forget_locations(self, store: StateStore) -> None:
        stored = store.locations(self.name)
        self._check_claim()
        if stored is not None and store.forget_locations(self.name, stored) is not None:
            raise Superseded(
                f"flow {self.name!r}: a run has claimed it in between; forget it again when that run has ended"
            )

    def _forget_states(self, layout: Layout) -> None:
        """Forget states under every name that the flow has ever used: a rebuild leaves headers under the old name."""
        names = [self.name, *(one.name for one in self._again)]
        for stage, stored in layout.stages.items():
            for flow in dict.fromkeys([stored.flow, *names]):
                for store in self.stores.values():
                    self._forget_stage(store, flow, stage, layout.state_partitions * stored.buckets)

    def _forget_stage(self, store: StateStore, flow: str, stage: str, known: int) -> None:
        for start, headers in _blocks(store, flow, stage, known):
            self._check_claim()
            for part, header in enumerate(headers, start):
                if header is not None:
                    self._forget_part(store, (flow, stage, part), header)

    def _forget_part(self, store: StateStore, cell: tuple[str, str, int], header: Header) -> None:
        views = Views("hash", {}) if "hash" in store.views else None
        # Bounded: the claim has fenced off every run, so no new rows come.
        while rows := [(key, None) for key, _ in store.scan(*cell)]:
            while rows:
                size = chunk_size(store, rows, views)
                if store.write(*cell, header, header, rows[:size], views) != header:
                    raise Superseded(
                        f"{'/'.join(map(str, cell))}: a run writes there; stop it and forget the flow again"
                    )
                rows = rows[size:]
        if store.forget_part(*cell, header) is not None:
            raise Superseded(
                f"{'/'.join(map(str, cell))}: a run writes there; stop it and forget the flow again"
            )


def _blocks(
    store: StateStore, flow: str, stage: str, known: int
) -> Iterator[tuple[int, list[Header | None]]]:
    """Headers in blocks: of the cells that the plan knows, and of those that earlier layouts have left beyond."""
    start = 0
    while True:  # until a block beyond the known cells holds no header
        found = store.headers(flow, stage, range(start, start + _BLOCK))
        if start >= known and not any(found):
            return
        yield start, found
        start += _BLOCK
