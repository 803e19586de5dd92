"""The kinds of stages, one file each, pure: they know no store and no log.

Streams declare them (`sqe_chain.flow`); docs/duplicates.md helps to choose. This package exports what a flow needs
in addition: windows, the guard of stream time, SQE's record key, the messages of filters and windows. It also exports the stages themselves, for programs without flows: plain objects over a table of rows that take
one record at a time. Kinds of your own are subclasses of `RecordKind`, or of its base `StageKind` (docs/extending.md).

    >>> table = MemoryTable()
    >>> once = Deduplicate(table, interval_ms=60_000)
    >>> [once.accept(Record(key=b"order 7", timestamp_ms=at_ms)).forward for at_ms in (0, 60_000, 60_001)]
    [True, False, True]
    >>> once.finish(now_ms=0)  # the end of a batch: writes the changes to the table
    >>> again = Deduplicate(MemoryTable(table.rows()), interval_ms=60_000)
    >>> again.accept(Record(key=b"order 7", timestamp_ms=60_002)).reason
    <Reason.DUPLICATE: 'duplicate'>
"""

from sqe_chain._proto.dropped_pb2 import Dropped
from sqe_chain._proto.window_result_pb2 import WindowResult
from sqe_chain.codecs.window import Window
from sqe_chain.envelope.sqe_key import SqeKey
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.stage_kind import LiveState, StageKind, StageTable, StageTask, StageTraits, StageWork
from sqe_chain.flow.stored import Span, StoredState
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.clock import JumpGuard
from sqe_chain.stages.contents import (
    FirstSeen,
    ProducerMark,
    Remembered,
    RootSeen,
    SequenceSeen,
    Sighting,
    remembered,
)
from sqe_chain.stages.deduplicate import Deduplicate
from sqe_chain.stages.distinct import Distinct
from sqe_chain.stages.identity import by_key, by_key_and
from sqe_chain.stages.joining import StreamJoin
from sqe_chain.stages.received import from_header, from_key, from_value, number_in_text, records_of
from sqe_chain.stages.record import NOWHERE, Reason, Record, Spot, Verdict
from sqe_chain.stages.record_work import Given, RecordFunctions, RecordKind, RecordStage
from sqe_chain.stages.replays import SqeReplays
from sqe_chain.stages.root_replays import RootReplays
from sqe_chain.stages.sequences import StaleSequences
from sqe_chain.stages.table import MemoryTable
from sqe_chain.stages.table_join import TableJoin
from sqe_chain.stages.timers import TimedAggregate
from sqe_chain.stages.window_rows import Result, results_in
from sqe_chain.stages.windowing import Calendar, Hopping, Sessions, Tumbling
from sqe_chain.stages.windows import WindowedAggregate

__all__ = [
    "NOWHERE",
    "Calendar",
    "DeclaredFunction",
    "Deduplicate",
    "Distinct",
    "Dropped",
    "FirstSeen",
    "Given",
    "Hopping",
    "JumpGuard",
    "LiveState",
    "MemoryTable",
    "ProducerMark",
    "Reason",
    "Record",
    "RecordFunctions",
    "RecordKind",
    "RecordStage",
    "Remembered",
    "Result",
    "RootReplays",
    "RootSeen",
    "RowTable",
    "SequenceSeen",
    "Sessions",
    "Sighting",
    "Span",
    "Spot",
    "SqeKey",
    "SqeReplays",
    "StageKind",
    "StageTable",
    "StageTask",
    "StageTraits",
    "StageWork",
    "StaleSequences",
    "StoredState",
    "StreamJoin",
    "TableJoin",
    "TimedAggregate",
    "Tumbling",
    "Verdict",
    "Window",
    "WindowResult",
    "WindowedAggregate",
    "by_key",
    "by_key_and",
    "from_header",
    "from_key",
    "from_value",
    "number_in_text",
    "records_of",
    "remembered",
    "results_in",
]
