"""Run a flow from Python: in the foreground of a script, or in the background of a notebook or a test."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from sqe_chain.errors import ChainError, ConfigurationError
from sqe_chain.features.events import TableFlushed
from sqe_chain.features.file_inputs import LoadedFiles, new_files, read_files
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans import inputs
from sqe_chain.plans.events import CaughtUp, Committed, Event, Observer, Recovered
from sqe_chain.plans.settings import Settings
from sqe_chain.plans.stored_plans import read_last_plan
from sqe_chain.ports import Log, TopicPartition
from sqe_chain.runtime.connecting import Deployment, EngineChoice, follow_failover, open_inputs, open_stores
from sqe_chain.runtime.durations import duration_ms
from sqe_chain.runtime.launching import launch
from sqe_chain.runtime.observers import FlushListener, OnFlush
from sqe_chain.runtime.states import States
from sqe_chain.wings import WINGS, load

Stores = str | Mapping[str, str] | None
"""Address of the flow's store; or store name -> address, "" being the metadata store; None for flows without stages."""

_LOOK_S = 0.5
"""How often the committed offsets are read although no event has come."""


def run(  # noqa: PLR0913 - each is an option
    flow: Flow | CompiledFlow,
    *,
    kafka: str | None = None,
    store: Stores = None,
    engine: Literal["spark", "inprocess"] = "spark",
    workers: int = 1,
    once: bool = False,
    close_windows: bool = False,
    interval: str = "5s",
    create_topics: int | None = None,
    kafka_config: Path | Mapping[str, str] | None = None,
    spark: Mapping[str, str] | None = None,
    files: Mapping[str, Sequence[str]] | None = None,
    partitions: str | None = None,
    on_flush: OnFlush | None = None,
    log: Literal["text", "json"] | None = "text",
    telemetry: bool = False,
    registry: str | None = None,
    **settings: Any,  # noqa: ANN401 - those of `settings_of`
) -> None:
    """Run a flow as a service, here, until SIGTERM or Ctrl-C: what ``sqe-chain run`` does.

    It then finishes the current batch. Whatever kills the process, the next run continues exactly. Outside the main
    thread it receives no signals; use `running` there.

    Args:
        flow: the flow.
        kafka: brokers, ``host:port``; flows that read files and publish nothing need none.
        store: where its states, claim and plans are kept; flows without stages need none, unless they read files.
        engine: what runs the tasks: Spark, or this process, for notebooks, tests and small services.
        workers: with `inprocess`: over how many processes on this machine the tasks are spread; 1: they run in this one.
        once: process what is there now, then return.
        close_windows: with `once`: at the end of the input close all windows, and publish their final results.
        interval: how often a batch is made: ``500ms``, ``5s``, ``1m``. Flows without stages never wait for it.
        create_topics: create missing topics, outputs as declared, inputs with this number of partitions (0: inputs must exist).
        kafka_config: properties of librdkafka, or a file of them.
        spark: properties of Spark, such as ``spark.master``.
        files: source of files -> paths or patterns instead of those that are declared.
        partitions: input partitions of this one of several readers, such as ``0-3`` or ``8-`` (8 and all above); None: the flow
            runs as one (docs/readers.md).
        on_flush: called with each `sqe_chain.TableFlushed` when the rows of a batch are durable in a table, and once at the start.
            It runs in the service's thread, before the service continues. An error that it raises ends the service.
        log: write a line for each event to standard error, as text or JSON; None: nothing.
        telemetry: export spans by OpenTelemetry, to where the environment variables ``OTEL_…`` point; JSON lines then have their ids.
        registry: address of the schema registry that the flow's codecs ask, ``registry://host:8081`` (docs/schema-registry.md).
        settings: further settings, such as `start`, `max_records` or `takeover`; see `sqe_chain.settings_of`.

    Raises:
        ConfigurationError: something is missing, or wrong.
        ServiceStopped: continuing would not be exact; the text has what to do.
        PoisonError: an input cannot be processed.
        ChainError: any other reason to end.
    """
    choice, compiled = _engine(engine, spark, workers), flow.compile()
    deployment = Deployment(
        *(kafka, kafka_config, _urls(store), choice, create_topics, once, close_windows, _paths(files)),
        partitions=partitions,
        registry=registry,
    )
    main = threading.current_thread() is threading.main_thread()
    launch(
        compiled,
        _settings(interval, settings),
        deployment,
        observers=_observers(deployment.flow_of(compiled), log, on_flush, telemetry=telemetry),
        restore=(lambda: None) if main else None,
    )


class RunningService:
    """A flow that runs in a thread of this process; made by `running`."""

    def __init__(
        self, flow: CompiledFlow, settings: Settings, deployment: Deployment, observers: Sequence[Observer]
    ) -> None:
        self.flow = flow = deployment.flow_of(flow)
        self._deployment = deployment
        self._clock = clock = deployment.clock()
        self._moved = threading.Condition()
        self._bell = _Bell(self._moved)
        self._error: BaseException | None = None
        self._opened = ExitStack()
        self._stores = self._opened.enter_context(open_stores(flow, deployment.stores))
        self._log: Log = follow_failover(open_inputs(flow, deployment), self._stores, flow)

        def work() -> None:
            try:
                launch(flow, settings, deployment, observers=[*observers, self._bell], clock=clock)
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                self._error = error
            with self._moved:
                self._moved.notify_all()

        self._thread = threading.Thread(
            target=copy_context().run, args=(work,), name=f"sqe-chain {flow.name}", daemon=True
        )
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def wait_until_caught_up(self, timeout_s: float = 60.0) -> None:
        """Wait until all messages that are in the inputs now are processed, persisted and committed.

        Where stages go by event time, also until no record waits for it: `idle` after the inputs have fallen silent.

        Args:
            timeout_s: how long at most, in seconds.

        Raises:
            TimeoutError: it took longer; the text has the committed offsets.
            ChainError: the service has ended with this error.
        """
        deadline, ends, left = monotonic() + timeout_s, None, dict[str, tuple[int, int]]()
        while True:  # until the deadline
            self._raise_if_failed()
            self._check_alive()
            if self._bell.recovered:  # before that it may still create topics, or find that one is missing
                ends = self._ends() if ends is None else ends
                left = self._left(ends)
            if ends is not None and not left and not self._bell.held and not self._files_left():
                return
            held = f"; {self._bell.held} records wait for event time" if self._bell.held else ""
            self._wait(
                deadline,
                f"flow {self.flow.name!r} has not {'caught up' if self._bell.recovered else 'started'} in {timeout_s:g} s; "
                f"(committed, end) by input: {left}{held}",
            )

    def flushed(self, table: str) -> dict[str, int]:
        """Up to where all rows are durable in a table: "topic/partition" -> offset; empty before the service has recovered.

        Args:
            table: name of the stage that `ingest` declared.
        """
        with self._moved:
            return dict(self._bell.flushed.get(table, {}))

    def wait_until_flushed(self, table: str, offsets: Mapping[str, int], timeout_s: float = 60.0) -> None:
        """Wait until a table has all rows up to these offsets.

        Args:
            table: see `flushed`.
            offsets: "topic/partition" -> offset, up to which all rows are expected.
            timeout_s: how long at most, in seconds.

        Raises:
            TimeoutError: it took longer; the text has what is there.
            ChainError: the service has ended with this error.
        """
        deadline = monotonic() + timeout_s
        while True:  # until the deadline
            self._raise_if_failed()
            flushed = self.flushed(table)
            if all(flushed.get(name, 0) >= offset for name, offset in offsets.items()):
                return
            self._check_alive()
            self._wait(
                deadline,
                f"flow {self.flow.name!r}: after {timeout_s:g} s table {table!r} has rows up to {flushed}",
            )

    def state(self, stage: str) -> States:
        """The stored states of a stage by key; readable as long as the service runs.

        Args:
            stage: its name.

        Raises:
            ConfigurationError: there is no such stage, or it is a filter.
        """
        return States(self.flow, stage, self._stores)

    def stop(self) -> None:
        """Finish the current batch, and end.

        Raises:
            ChainError: the service has ended with this error.
        """
        self._clock.stop.request("stop")
        self._thread.join()
        self._opened.close()
        self._raise_if_failed()

    def _check_alive(self) -> None:
        if not self.alive:
            raise ConfigurationError(
                f"flow {self.flow.name!r} has stopped. Expected a running service to wait for"
            )

    def _wait(self, deadline: float, text: str) -> None:
        """Wait until something has moved, or a moment; after the deadline raise what was found as `TimeoutError`."""
        rest_s = deadline - monotonic()
        if rest_s <= 0:
            raise TimeoutError(text)
        with self._moved:
            self._moved.wait(min(rest_s, _LOOK_S))

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error

    def _ends(self) -> dict[TopicPartition, int]:
        if not self.flow.input_topics:
            return {}
        infos = inputs.describe(self.flow, self._log)
        tps = inputs.input_partitions(self.flow, infos)
        return {
            tp: bounds.stable_end
            for tp, bounds in self._log.bounds(tps).items()
            if bounds.stable_end > bounds.begin
        }

    def _left(self, ends: Mapping[TopicPartition, int]) -> dict[str, tuple[int, int]]:
        """Committed offset and end of each input that is not committed to its end."""
        commits = self._log.committed(self.flow.declared_name, ends)
        committed = {tp: commits[tp].offset if tp in commits else 0 for tp in ends}
        return {
            f"{topic}[{partition}]": (committed[topic, partition], end)
            for (topic, partition), end in ends.items()
            if committed[topic, partition] < end
        }

    def _files_left(self) -> bool:
        """Whether a row of a file is not counted, or not known to be. Plans know of files, commits do not."""
        if not self.flow.file_sources:
            return False
        plan = read_last_plan(self._stores[""], self.flow.name)
        if plan is None or self._bell.plan < plan.number:
            return True
        infos = self._log.describe([source.name for source in self.flow.file_sources])
        return bool(
            LoadedFiles.of(plan).entered.keys() - read_files(plan) or new_files(self.flow, plan, infos)
        )


@contextmanager
def running(  # noqa: PLR0913 - each is an option
    flow: Flow | CompiledFlow,
    *,
    kafka: str | None = None,
    store: Stores = None,
    engine: Literal["spark", "inprocess"] = "spark",
    workers: int = 1,
    interval: str = "500ms",
    create_topics: int | None = None,
    kafka_config: Path | Mapping[str, str] | None = None,
    spark: Mapping[str, str] | None = None,
    files: Mapping[str, Sequence[str]] | None = None,
    partitions: str | None = None,
    on_flush: OnFlush | None = None,
    log: Literal["text", "json"] | None = None,
    telemetry: bool = False,
    registry: str | None = None,
    **settings: Any,  # noqa: ANN401 - those of `settings_of`
) -> Iterator[RunningService]:
    """Run a flow in the background, as long as the context lasts; for arguments see `run`.

    At its end the current batch is finished. If the service has stopped with an error, the context raises it, unless
    another error is being raised.

    Raises:
        ChainError: as `run` raises them.
    """
    choice, compiled = _engine(engine, spark, workers), flow.compile()
    deployment = Deployment(
        *(kafka, kafka_config, _urls(store), choice, create_topics),
        files=_paths(files),
        partitions=partitions,
        registry=registry,
    )
    observers = _observers(deployment.flow_of(compiled), log, on_flush, telemetry=telemetry)
    service = RunningService(compiled, _settings(interval, settings), deployment, observers)
    try:
        yield service
    except BaseException:
        with suppress(ChainError):  # another error is being raised
            service.stop()
        raise
    service.stop()


class _Bell(Observer):
    """Wakes threads that wait for a service to make progress."""

    def __init__(self, moved: threading.Condition) -> None:
        self._moved = moved
        self.recovered = False
        self.held = 0
        self.plan = -1
        self.flushed: dict[str, Mapping[str, int]] = {}

    def event(self, event: Event) -> None:
        with self._moved:
            if isinstance(event, TableFlushed):
                self.flushed[event.table] = event.offsets
            elif not isinstance(event, Recovered | Committed | CaughtUp):
                return
            elif event.plan is not None:
                self.plan = event.plan
            self.recovered |= isinstance(event, Recovered)
            if isinstance(event, Committed):
                self.held = event.held or 0
            self._moved.notify_all()


def _observers(
    flow: CompiledFlow,
    log: Literal["text", "json"] | None,
    on_flush: OnFlush | None,
    *,
    telemetry: bool,
) -> list[Observer]:
    traced = [load(WINGS, "telemetry", "telemetry")(flow)] if telemetry else []
    observers: list[Observer] = []
    if log is not None:
        from sqe_chain.runtime.lines import Lines  # noqa: PLC0415 - it needs structlog

        fields_of = traced[0].log_fields if traced else None
        observers.append(Lines(flow.name, as_json=log == "json", stream=sys.stderr, fields_of=fields_of))
    if on_flush is not None:
        observers.append(FlushListener(on_flush))
    return [*observers, *traced]  # a line has the span that its event may end


def _paths(files: Mapping[str, Sequence[str]] | None) -> dict[str, Sequence[str]]:
    return {name: (paths,) if isinstance(paths, str) else paths for name, paths in (files or {}).items()}


def _urls(store: Stores) -> dict[str, str]:
    return {} if store is None else {"": store} if isinstance(store, str) else dict(store)


def _engine(
    name: Literal["spark", "inprocess"], spark: Mapping[str, str] | None, workers: int
) -> EngineChoice:
    if name not in ("spark", "inprocess"):
        raise ConfigurationError(f"engine={name!r}. Expected spark or inprocess")
    conf = dict(spark or {})
    return EngineChoice(name, conf.pop("spark.master", None), conf, workers)


def _settings(interval: str, further: Mapping[str, Any]) -> Settings:
    try:
        return settings_of(interval_ms=duration_ms(interval, "interval"), **further)
    except TypeError as error:
        raise ConfigurationError(
            f"no such setting: {error}. Expected a field of sqe_chain.Settings"
        ) from error
