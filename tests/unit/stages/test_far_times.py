"""A stage by itself refuses, by name, a time that no event can have, and has changed nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.errors import OutOfBounds
from sqe_chain.stages import (
    Calendar,
    Deduplicate,
    Distinct,
    Hopping,
    JumpGuard,
    MemoryTable,
    Record,
    RowTable,
    Sessions,
    StreamJoin,
    TableJoin,
    TimedAggregate,
    Tumbling,
    WindowedAggregate,
)

LONG = 10**15
FAR = [2**48, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**64)]


def nothing(*_: Any) -> None:
    return None


def joined(first: Any, second: Any) -> StringValue:
    return StringValue(value=f"{first} {second}")


STAGES: dict[str, Callable[[RowTable], Any]] = {
    "deduplicate": lambda table: Deduplicate(table, interval_ms=LONG, guard=None),
    "deduplicate, guarded": lambda table: Deduplicate(table, interval_ms=LONG, guard=JumpGuard(LONG, 1)),
    "sessions": lambda table: Distinct(table, windows=Sessions(gap_ms=LONG), grace_ms=LONG, guard=None),
    "tumbling": lambda table: Distinct(table, windows=Tumbling(10), grace_ms=0, guard=None),
    "calendar": lambda table: Distinct(table, windows=Calendar("day"), grace_ms=0, guard=None),
    "windows": lambda table: WindowedAggregate(
        table, windows=Hopping(10, 5), state=StringValue, fold=nothing, retention_ms=LONG
    ),
    "timers": lambda table: TimedAggregate(
        table, state=StringValue, fold=lambda state, *_: setattr(state, "value", "x"), expire_after_ms=LONG
    ),
    "stream join": lambda table: StreamJoin(
        table, combine=joined, is_second=lambda record: False, before_ms=LONG, after_ms=LONG
    ),
    "table join": lambda table: TableJoin(
        table, combine=joined, is_second=lambda record: True, history_ms=LONG
    ),
}


@pytest.mark.parametrize("far_ms", FAR)
@pytest.mark.parametrize("name", STAGES)
def test_a_time_too_far_away_is_refused_by_name_and_changes_nothing(name: str, far_ms: int) -> None:
    rows = []
    for times in ([0, 5], [0, far_ms, 5], [far_ms, 0, 5]):
        table = MemoryTable()
        stage = STAGES[name](table)
        for at_ms in times:
            record = Record(value=StringValue(value="x"), key=b"k", timestamp_ms=at_ms)
            if at_ms == far_ms:
                with pytest.raises(OutOfBounds, match="event time"):
                    stage.accept(record)
            else:
                stage.accept(record)
        stage.finish(0)
        rows.append(table.rows())
    assert rows == [rows[0]] * 3
