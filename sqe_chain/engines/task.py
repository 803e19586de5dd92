"""What tasks do in every process that runs them, on Spark or not: republish, write states, report failures."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from opcode import opmap

from sqe_chain.engines.ahead import ahead
from sqe_chain.errors import ChainError, ErrorRecord, Unavailable, from_record, text_of
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import Header, Log, Message, Output, Range, Sink, StateStore
from sqe_chain.task.flushing import flush
from sqe_chain.task.poison import own_frame
from sqe_chain.task.reading import Reading, check_read_id
from sqe_chain.task.results import Block, ChangedStates, Job, Outputs, Portion, Report, Stores
from sqe_chain.task.states import persist, view_of

_TRACE_LINES = 12
_WRITERS = 8
_HELD = 10_000  # outputs of a republisher that wait until ids of topics are looked at
_GC_THRESHOLDS = 50_000, 20, 50  # a task makes many small objects, which mostly hold no others


@dataclass(frozen=True, slots=True)
class Applied:
    """The plan to apply, for writing changed states.

    Attributes:
        before: (stage index, cell) -> header before the plan.
    """

    plan_id: str
    before: Mapping[tuple[int, int], Header]


def own_sink(stage: StageNode) -> Sink | None:
    """Where a stage writes its rows, if not into the store."""
    return stage.stage_kind.sink


def apply(
    flow: CompiledFlow,
    job: Job,
    store: StateStore,
    states: ChangedStates,
    applied: Applied,
    sinks: Callable[[StageNode], Sink | None] = own_sink,
) -> int:
    """Write the changed states of one (stage, state partition); returns the rows written."""
    before = applied.before[states.stage, states.part]
    stage = flow.stage_at(states.stage)
    sink = sinks(stage)
    if sink is not None:
        return flush(sink, store, job, applied.plan_id, stage.name, states.part, states.rows, before)
    return persist(
        store, job.transition, applied.plan_id, stage.name, states.part, states.rows, before, view_of(stage)
    )


def apply_all(
    flow: CompiledFlow,
    job: Job,
    stores: Stores,
    states: Sequence[ChangedStates],
    applied: Applied,
    sinks: Callable[[StageNode], Sink | None] = own_sink,
    *,
    threads: bool = True,
) -> int:
    """Write changed states of one level; returns the rows written.

    With `threads` several cells are written at the same time, since each waits until a disk has them. Rows of a sink are written one
    after the other.
    """

    def write(changed: ChangedStates) -> int:
        return apply(flow, job, stores(flow.stage_at(changed.stage)), changed, applied, sinks)

    together, apart = list[ChangedStates](), list[ChangedStates]()
    for changed in states:
        (together if threads and sinks(flow.stage_at(changed.stage)) is None else apart).append(changed)
    if len(together) <= 1:
        return sum(map(write, together + apart))
    with ThreadPoolExecutor(min(_WRITERS, len(together)), "sqe-chain persist") as pool:
        return sum(pool.map(write, together)) + sum(map(write, apart))


def publish(log: Log, outputs: Iterable[Sequence[Output]]) -> None:
    """Write records, in order; returns when everything is acknowledged."""
    writer = log.writer()
    try:
        for records in outputs:
            writer.write(records)
        writer.flush()
    finally:
        writer.close()


def blocks_of(
    flow: CompiledFlow,
    job: Job,
    portions: Iterable[Portion],
    read: Callable[[Range], Iterable[Sequence[Message]]],
    stores: Stores,
) -> Iterator[Block]:
    """Run a task of level 0, and of level 1 if it needs no shuffle; arguments as `task.reading.run_serially`."""
    reading = Reading(flow, job, stores)
    for portion in portions:
        yield from reading.read(portion, read(portion.read))
    yield from reading.finish()


def republish(flow: CompiledFlow, job: Job, portions: Sequence[Portion], log: Log, stores: Stores) -> Report:
    """Read, transform and publish at once; returns when everything is acknowledged."""
    return publish_blocks(log, portions, blocks_of(flow, job, portions, ahead(log, portions), stores))


def publish_blocks(log: Log, portions: Sequence[Portion], blocks: Iterable[Block]) -> Report:
    """Write the records of blocks; returns when everything is acknowledged.

    Fetches carry no topic ids. So outputs are held until a second request for the ids has proved that what was read in
    between is of the same topics.

    Args:
        log: where to read and publish.
        portions: what is read for the blocks.
        blocks: what tasks have made, without changed states.

    Returns:
        What the tasks report.

    Raises:
        RecreatedTopic: an input was created again, or is gone.
    """
    report, held, writer = Report(), list[Output](), log.writer()

    def write_held() -> None:
        now = log.topic_ids({portion.read.topic for portion in portions})
        for portion in portions:
            check_read_id(portion.read.topic, portion.read.topic_id, now.get(portion.read.topic))
        writer.write(held)
        held.clear()

    try:
        for block in blocks:
            if isinstance(block, Outputs):
                held.extend(block.records)
                if block.first or len(held) >= _HELD:
                    write_held()
                if (
                    block.first
                ):  # dead-letter records: a reader of an output must not be able to miss the skipped input
                    writer.flush()
            elif isinstance(block, Report):
                report.add(block)
        write_held()
        writer.flush()
    finally:
        writer.close()
    return report


def records_in(portions: Iterable[Portion]) -> int:
    """Offsets in these portions, which is how many records they have at most."""
    return sum(portion.read.stop - portion.read.start for portion in portions)


def collect_rarely() -> None:
    """Keep garbage collection away from the objects that stay (modules, the flow), and collect less often from now on.

    With all loaded modules a full collection takes tens of milliseconds, half the time of a small task.
    """
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.collect()
    gc.freeze()


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Collect garbage less often for a while, in a process that is not only ours."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextmanager
def not_ending() -> Iterator[None]:
    """In this context a function of the user that wants to end the process, as `sys.exit` does, ends the task with an error.

    It would end the service with any status, 0 too, and inputs unread. Ctrl+C is not a function's, and ends what
    it ends elsewhere. Not to be used around a `yield`: generators are closed with GeneratorExit.

    Raises:
        ChainError: a function did.
    """
    try:
        yield
    except BaseException as error:
        if not _is_of_function(error):
            raise
        raise _ended_by(error) from error


def _is_of_function(error: BaseException) -> bool:
    """Whether an exception that is no `Exception` is one that functions raise."""
    if isinstance(error, KeyboardInterrupt):  # what raised that of Ctrl+C is no code
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]
    return isinstance(error, SystemExit | GeneratorExit) or type(error).__name__ == "CancelledError"


def _ended_by(error: BaseException) -> ChainError:
    file, line, function = own_frame(error) or ("", 0, "a function")
    return ChainError(
        f"{file}:{line}: {function}() has raised {type(error).__name__}({text_of(error)}), which ends a process. "
        "Expected a value, or an Exception where an input cannot be processed. No function may call sys.exit() or exit(); "
        "argparse and click do, too"
    )


def failure_of(error: BaseException) -> ErrorRecord:
    """An error as a record for the driver; an unexpected one with the end of its traceback."""
    if isinstance(error, ChainError):
        return error.to_record()
    if not isinstance(error, Exception):
        return _ended_by(error).to_record()
    trace = traceback.format_exception(error)
    text = "".join(trace).strip().splitlines()[-_TRACE_LINES:]
    said = f"a task failed unexpectedly: {type(error).__name__}: {error}\n" + "\n".join(text)
    return ChainError(said).to_record()


def raise_first(failures: Iterable[ErrorRecord]) -> None:
    """Raise what tasks failed with, if any did.

    Raises:
        ChainError: the first failure that is permanent, or else the first: `Unavailable` would only be retried.
    """
    errors = [from_record(*failure) for failure in failures]
    for error in errors:
        if not isinstance(error, Unavailable):
            raise error
    if errors:
        raise errors[0]
