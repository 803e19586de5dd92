"""From what a flow declares to the stage that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from sqe_chain.errors import FlowError
from sqe_chain.flow.filtering import FilterSpec
from sqe_chain.stages.deduplicate import Deduplicate
from sqe_chain.stages.distinct import Distinct
from sqe_chain.stages.identity import by_key, by_key_and
from sqe_chain.stages.record import Record, Verdict
from sqe_chain.stages.replays import SqeReplays
from sqe_chain.stages.root_replays import RootReplays
from sqe_chain.stages.sequences import StaleSequences
from sqe_chain.stages.table import MemoryTable, Table
from sqe_chain.stages.windows import WindowedAggregate

Extract = Callable[[Record], Any]
Fold = Callable[[Any, Any], object]


class Filter(Protocol):
    """What every filter can do; see `sqe_chain.stages.table` for its rule about rows."""

    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]:
        """The rows that `accept` will look at for these records."""

    def accept(self, record: Record) -> Verdict:
        """Whether a record goes on. Changes objects in memory only."""

    def finish(self, now_ms: int) -> None:
        """The end of a batch: purge what is due, write every changed row into the table."""


def filter_of(
    spec: FilterSpec,
    table: Table,
    *,
    extract: Extract | None = None,
    epoch: Extract | None = None,
    fold: Fold | None = None,
    clock_ms: int | None = None,
) -> Filter:
    """The stage of a declared filter.

    Args:
        spec: the declaration.
        table: its rows.
        extract: gives a record's id or sequence number.
        epoch: gives the epoch of its producer.
        fold: of windows: changes a state by a record's value.
        clock_ms: the batch's clock.

    Raises:
        FlowError: settings that the stage does not take.
    """
    settings: dict[str, Any] = dict(spec.settings)
    match spec.kind:
        case "replays":
            return SqeReplays(table, **settings)
        case "roots":
            return RootReplays(table, **settings)
        case "sequences":
            if extract is None:
                raise AssertionError("checked when declared")
            return StaleSequences(table, sequence=extract, epoch=epoch, **settings)
        case "deduplicate":
            identity = by_key if extract is None else extract if spec.spread == "id" else by_key_and(extract)
            return Deduplicate(table, identity=identity, clock_ms=clock_ms, **settings)
        case "distinct":
            return Distinct(table, clock_ms=clock_ms, **settings)
        case "windows":
            if fold is None:
                raise AssertionError("checked when declared")
            return WindowedAggregate(table, fold=fold, clock_ms=clock_ms, **settings)


def check_filter(spec: FilterSpec, where: str) -> None:
    """Make one, to see whether its settings are right.

    Args:
        spec: the declaration.
        where: place in the user's file.

    Raises:
        FlowError: they are not.
    """
    try:
        filter_of(
            spec,
            MemoryTable(),
            extract=_nothing if spec.function else None,
            epoch=_nothing if spec.epoch else None,
            fold=_nothing,
        )
    except (FlowError, TypeError) as error:
        raise FlowError(f"{where}: {error}") from error


def _nothing(*_: object) -> None:
    return None
