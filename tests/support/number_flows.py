"""Folds of numbers, and a flow that passes them on, for tests that are about something else."""

from __future__ import annotations

from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Flow
from sqe_chain.testing import Rehearsal


def add(total: Int64Value, number: Int64Value) -> None:
    total.value += number.value


def count(total: Int64Value, _: object) -> None:
    total.value += 1


def passing_on() -> Rehearsal:
    flow = Flow("pass-on")
    flow.source("in", Int64Value).to("out", partitions=1)
    return Rehearsal(flow)


def values_published(rehearsal: Rehearsal) -> list[int]:
    return [envelope.payload_as(Int64Value).value for envelope in rehearsal.published("out")]
