"""Runs a flow in one process, batch by batch, with the real code of tasks and of the protocol."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.codecs import codec_for
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.envelope.message import wrap_unchecked
from sqe_chain.envelope.partitioner import key_bytes, partition_of
from sqe_chain.errors import ConfigurationError, Superseded, Unavailable
from sqe_chain.features.closing import check_closes
from sqe_chain.features.events import AnnouncementResult
from sqe_chain.features.file_inputs import check_no_files
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.announcement import Announcement
from sqe_chain.operations.comparing import ComparedStage
from sqe_chain.operations.moving import export_states, import_states
from sqe_chain.operations.rebuild import Rebuild
from sqe_chain.operations.shadow import ComparedOutputs, Shadow, compare, compare_outputs, end_shadow
from sqe_chain.operations.switching import Switch
from sqe_chain.plans.environment import Environment, Ports
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Headers, Log, StateStore, TopicPartition
from sqe_chain.ports.readers import Partitions
from sqe_chain.protocol.batch import FlowRun
from sqe_chain.protocol.services import service_of
from sqe_chain.protocol.without_plans import Republisher
from sqe_chain.task.watched import watching
from sqe_chain.testing.clock import SteppingClock
from sqe_chain.testing.fault_injection import Arming
from sqe_chain.testing.faults import Crash, FaultScript
from sqe_chain.testing.faulty_ports import faulty_log, faulty_sink, faulty_store
from sqe_chain.testing.results import Results
from sqe_chain.testing.values import ValueWatch
from sqe_chain.wings import WINGS, load

_names = itertools.count()


@dataclass(frozen=True, slots=True)
class Zombie:
    """A run that is paused while others continue. From `Rehearsal.zombie`.

    Attributes:
        service: the run.
    """

    service: FlowRun

    def wake(self) -> bool:
        """Run its next batch, as if nothing had happened.

        Returns:
            False when there was no new input.

        Raises:
            Superseded: another run owns the flow; this one has changed nothing.
        """
        return self.service.batch().worked


class Rehearsal(Arming, Results):
    """One flow with its topics and its store in memory, to crash and restart.

    Args:
        flow: the flow; several rehearsals may share one.
        partitions: input topic -> partitions, 1 where absent.
        log: a broker shared with other rehearsals (a chain of services); by default a new one.
        store: the store, or one for each name that the stages use ("" is the default and metadata store).
        settings: how the service runs.
        block_records: records that a reader gets at a time; by default the broker's 1,000.
        max_rows_per_write: rows that one write to the store takes; larger writes are split.
        now_ms: initial time of the clock, in milliseconds since 1970; by default in the year 2100.
        reader: input partitions of this one of several readers of the flow, such as ``0-3``; they share `log` and `store`.
        registry: address of the schema registry that codecs ask; by default one in memory, which takes every schema. Rehearsals of a
            chain share ``memory://`` and a name.

    Attributes:
        log: the broker.
        stores: store name -> store, without injected faults.
        clock: the service's clock.
        script: the faults to come, and what the service has written and reported.
        service: the present run; None when there is none.
        crashes: runs that crashed so far.
        ended: runs that ended because of a newer run, or because broker or store was unavailable for too long.
    """

    def __init__(  # noqa: PLR0913 - each is optional
        self,
        flow: Flow | CompiledFlow,
        *,
        partitions: Mapping[str, int] | None = None,
        log: MemoryLog | None = None,
        store: StateStore | Mapping[str, StateStore] | None = None,
        settings: Settings | None = None,
        block_records: int | None = None,
        max_rows_per_write: int = 5_000,
        now_ms: int | None = None,
        reader: str | None = None,
        registry: str | None = None,
    ) -> None:
        unique = next(_names)
        whole = flow.compile()
        if whole.registry is None and whole.asking_codecs:
            whole = whole.asking(
                load(WINGS, "registry", "registry")(registry or f"memory://rehearsal-{unique}")
            )
        self._flow = whole if reader is None else whole.reader(Partitions.parse(reader))
        self.log = log or MemoryLog(f"rehearsal-{unique}")
        if block_records is not None:
            self.log.set_block(block_records)
        given = store if store is not None else MemoryStore(f"rehearsal-{unique}", max_rows_per_write)
        self.stores: dict[str, StateStore] = dict(given) if isinstance(given, Mapping) else {"": given}
        self.settings = replace(settings or Settings(), allow_weak_durability=True)
        self.script = FaultScript()
        self.clock = SteppingClock() if now_ms is None else SteppingClock(now_ms=now_ms)
        self.service: FlowRun | None = None
        if not self.log.has_clock:
            self.log.set_clock(lambda: self.clock.now)
        self.crashes = 0
        self.ended = 0
        self._runs = itertools.count()
        self._values = ValueWatch(self.flow)
        for topic in self.flow.input_topics:
            self.log.create_topic(topic, (partitions or {}).get(topic, 1))
        for output in self.flow.outputs:
            self.log.create_topic(output.topic, output.partitions)
        if self.flow.dead_letters:
            self.log.create_topic(self.flow.dead_letter_topic, self.flow.dead_letter_partitions)
        if self.flow.marker_topic:
            self.log.create_topic(self.flow.marker_topic, 1, compacted=True)

    @property
    def flow(self) -> CompiledFlow:
        """The flow. Set another one, and `service` to None, to go on with changed code."""
        return self._flow

    @flow.setter
    def flow(self, flow: Flow | CompiledFlow) -> None:
        self._flow = flow.compile()

    def feed(
        self,
        topic: str,
        payload: object,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        leader_epoch: int | None = None,
        timestamp_ms: int = 0,
        headers: Headers | None = None,
    ) -> int:
        """Append one record to an input.

        Args:
            topic: input topic.
            payload: is wrapped as at the origin, or for a raw source encoded as the source declares. Bytes and None are
                appended unchanged.
            key: record key.
            partition: by default murmur2 of the key; 0 without a key.
            offset: at or after the log's end; by default the end.
            leader_epoch: by default the log's present one.
            timestamp_ms: event time, in milliseconds since 1970; `wrap`'s limits do not apply.
            headers: Kafka headers.

        Returns:
            The record's offset.
        """
        record_key = None if key is None else key_bytes(key)
        if partition is None:
            count = self.log.describe([topic])[topic].partitions
            partition = 0 if record_key is None else partition_of(record_key, count)
        if payload is None or isinstance(payload, bytes):
            value = payload
        else:
            source = next((node for node in self.flow.sources if topic in node.topics), None)
            codec = self.flow.compile().codec_of[topic]
            if source is not None and source.raw:
                value = (codec or codec_for(type(payload))).encode(payload)
            else:
                value = wrap_unchecked(payload, key=record_key, timestamp_ms=timestamp_ms, codec=codec)
        return self.log.append(
            topic,
            partition,
            value,
            record_key,
            headers,
            timestamp_ms,
            leader_epoch=leader_epoch,
            offset=offset,
        )

    def zombie(self) -> Zombie:
        """Pause the present run (or a new one) from now on; the next batch starts another run."""
        service = self.service or self.start()
        self.service = None
        return Zombie(service)

    def rewind(self, to: Mapping[TopicPartition, int] | int) -> None:
        """Move a republisher's offsets back, so that it publishes the same output again.

        Args:
            to: offsets for some partitions, or a time in milliseconds since 1970.

        Raises:
            ConfigurationError: the flow has stages (`rebuild` folds them again), or an offset has not been read yet.
        """
        check_no_files(self.flow)
        service = self.service or self.start()
        if not isinstance(service, Republisher):
            raise ConfigurationError(
                f"flow {self.flow.name!r} has stages. Expected a flow without. Use `rebuild`"
            )
        service.rewind(to)

    def start(self, settings: Settings | None = None) -> FlowRun:
        """Start a run: claim and recover. A run that is still alive stays alive, as a zombie.

        Returns:
            The run; its `batch()` runs one batch.
        """
        env = self._environment(settings)
        self.service = None
        service = service_of(env)
        service.start()
        self.service = service
        return service

    def batch(self, *, at_end: bool = False) -> bool:
        """Run one batch of the present run, or of a new one; False when there was nothing to do.

        It warns of values that their codec changes, with `ValueChanged`.

        Args:
            at_end: no more input is expected: what waits for event time need not wait for silent partitions.

        Raises:
            NotDeterministic: a filter, a key or another function that only looks at a value has changed it.
        """
        service = self.service or self.start()
        with watching(self._values):
            worked = service.batch(at_end=at_end).worked
        self._values.tell()
        return worked

    def run_until_caught_up(self, most_batches: int = 1_000) -> None:
        """Run batches until there is no new input, and nothing waits for event time, as under a supervisor.

        A new run starts after a crash. It also starts after another one superseded the run, or after broker or store was
        unavailable for too long.

        Raises:
            ConfigurationError: not caught up after `most_batches`.
            ChainError: the service stopped for an error that a restart does not fix.
        """
        for _ in range(most_batches):
            with self._supervised():
                if not self.batch() and not self.batch(at_end=True):
                    return
        raise ConfigurationError(f"flow {self.flow.name!r} has not caught up after {most_batches} batches")

    def close_windows(self) -> None:
        """Run until caught up, then close all windows: what `sqe-chain run --once --close-windows` does, under a supervisor.

        Raises:
            ConfigurationError: the flow has no windows.
            ChainError: the service stopped for an error that a restart does not fix.
        """
        check_closes(self.flow)
        self._end_with(methodcaller("batch", at_end=True, final=True))

    def complete_overwrite(self) -> None:
        """Run until caught up, then let the tables change: what `sqe-chain load --overwrite` does, under a supervisor.

        Its settings are ``settings_of(overwrite="table")`` or ``"partitions"``.

        Raises:
            ChainError: the service stopped for an error that a restart does not fix.
        """
        self._end_with(methodcaller("complete"))

    def _end_with(self, last: Callable[[FlowRun], object]) -> None:
        """Run until caught up, then do what comes at the end of finite inputs, under a supervisor."""
        while True:  # bounded by the faults that were injected
            self.run_until_caught_up()
            with self._supervised():
                last(self.service or self.start())
                return

    @contextmanager
    def _supervised(self) -> Iterator[None]:
        """Do without the run that ends in this context where a supervisor starts another one."""
        try:
            yield
        except Crash:
            self.crashes += 1
            self.service = None
        except (Superseded, Unavailable):
            self.ended += 1
            self.service = None
            self.clock.waits = 0

    def run_until_crash(self, most_batches: int = 1_000) -> None:
        """Run batches until the next crash, or until there is no new input; a crashed run is not restarted."""
        for _ in range(most_batches):
            try:
                if not self.batch() and not self.batch(at_end=True):
                    return
            except Crash:
                self.crashes += 1
                self.service = None
                return

    def restart(self) -> None:
        """Kill the present run without cleanup, and start another."""
        self.service = None
        self.start()

    def rebuild(
        self,
        to: Mapping[TopicPartition, int] | None = None,
        *,
        republish: bool = False,
        resume: bool = False,
    ) -> None:
        """Rebuild all states from the inputs next to the present ones, and switch over. Ends the present run.

        Args:
            to: offsets to end at; by default those that the flow has reached.
            republish: publish the output of inputs after `to` again.
            resume: continue an attempt that crashed.
        """
        self.service = None
        env = self._environment(None)
        Rebuild(env, partial(self._engine, env.ports), to, republish, resume).run()

    def shadow(self, flow: Flow | CompiledFlow, export: Sequence[str] | None = None) -> Shadow:
        """A run of new code beside the flow: call its `start`, then its `batch` until that is False. It leaves the present run alone.

        Args:
            flow: the new code, under the flow's name.
            export: what `exported` gave, to begin there; by default it begins where the flow once began.
        """
        env = self._with_code(flow)
        return Shadow(env, partial(self._engine, env.ports), export=export)

    def compared(self, flow: Flow | CompiledFlow) -> list[ComparedStage]:
        """Compare the flow's states with those of its shadow, as the new code declares them."""
        return compare(self._with_code(flow))

    def compared_outputs(self, flow: Flow | CompiledFlow) -> ComparedOutputs:
        """What the flow's shadow has found out about outputs, as the new code declares them."""
        return compare_outputs(self._with_code(flow))

    def switch(self, flow: Flow | CompiledFlow, *, accept_differences: bool = False) -> None:
        """Put the shadow's states in the place of the flow's, and go on with the new code. Ends the present run.

        Args:
            flow: the new code.
            accept_differences: switch also where states differ.
        """
        self.service = None
        env = self._with_code(flow)
        Rebuild(
            env, partial(self._engine, env.ports), switch=Switch(accept_differences=accept_differences)
        ).run()
        self.flow = flow.compile()

    def switch_back(self, flow: Flow | CompiledFlow) -> None:
        """Put the states of before the last switch in the place of the flow's, and go on with that code. Ends the present run.

        Args:
            flow: the code of before.
        """
        self.service = None
        env = self._with_code(flow)
        Rebuild(env, partial(self._engine, env.ports), switch=Switch(back=True)).run()
        self.flow = flow.compile()

    def end_shadow(self, flow: Flow | CompiledFlow) -> None:
        """End the flow's shadow, and delete its states."""
        end_shadow(self._with_code(flow))

    def announce(self, *stages: str) -> AnnouncementResult:
        """Publish the newest state of each key of these stages, by default of all, again. Ends the present run."""
        self.service = None
        return Announcement(self._environment(None), stages).run()

    def exported(self) -> list[str]:
        """Export all states, as lines of `sqe-chain export`. Ends the present run."""
        self.service = None
        return list(export_states(self._environment(None)))

    def imported(self, lines: Sequence[str]) -> None:
        """Import the lines of an export into the stores, which must not hold the flow yet."""
        import_states(self._environment(None), lines)

    def _with_code(self, flow: Flow | CompiledFlow) -> Environment:
        """The environment of a new run of other code."""
        env = self._environment(None)
        return replace(env, flow=flow.compile(), engine=self._engine(env.ports, flow.compile()))

    def _environment(self, settings: Settings | None) -> Environment:
        """The environment of a new run, with injected faults."""
        run, script = next(self._runs), self.script
        stores = {name: faulty_store(store, script) for name, store in self.stores.items()}
        ports = Ports(faulty_log(self._log(), script), stores, partial(faulty_sink, scheduler=script))
        return Environment(
            self.flow,
            ports,
            self._engine(ports, self.flow),
            script,
            self.clock,
            lambda: f"run-{run}-{next(self._runs)}",
            settings or self.settings.asking(takeover=True),
        )

    def _log(self) -> Log:
        """The broker; with the files, if the flow reads any. They are looked at again in each run, as by a new process."""
        sources = self.flow.file_sources
        if not sources:
            return self.log
        files: Log = load(WINGS, "files", "files")(
            {source.name: source for source in sources}, self.log, skip_bad=self.flow.poison != "stop"
        )
        return files

    @staticmethod
    def _engine(ports: Ports, flow: CompiledFlow) -> InProcessEngine:
        return InProcessEngine(flow, ports.log, ports.store, sinks=ports.sink)
