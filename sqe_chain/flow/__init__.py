"""Declares what a service does, as data: sources, operators, stages, outputs. Nothing runs here.

    >>> from google.protobuf.wrappers_pb2 import Int64Value, StringValue
    >>> flow = Flow("word-count")
    >>> lengths = flow.source("words", StringValue).map(lambda word: Int64Value(value=len(word.value)))
    >>> def add(total: Int64Value, length: Int64Value) -> None:
    ...     total.value += length.value
    >>> stage = lengths.aggregate("per-length", key=lambda n: str(n.value), state=Int64Value, fold=add)
    >>> stage.changes().to("totals", partitions=1)
    >>> [node.kind for node in flow.nodes]
    ['source', 'map', 'aggregate', 'changes', 'output']

Every function may take the context of its input as its last argument. Functions must be pure: the same
value gives the same result, and no value is changed except the state that a fold is given.
"""

from sqe_chain.codecs.change import Change
from sqe_chain.flow.context import Context
from sqe_chain.flow.declared_aggregates import Aggregation, count, first, last, max_, mean, min_, sum_
from sqe_chain.flow.flow import Changes, CustomStage, Filter, Flow, Stage, Stream, WindowStage
from sqe_chain.flow.timers import Timer
from sqe_chain.ports.files import Csv

__all__ = [
    "Aggregation",
    "Change",
    "Changes",
    "Context",
    "Csv",
    "CustomStage",
    "Filter",
    "Flow",
    "Stage",
    "Stream",
    "Timer",
    "WindowStage",
    "count",
    "first",
    "last",
    "max_",
    "mean",
    "min_",
    "sum_",
]
