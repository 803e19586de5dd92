"""A flow that lists, for each key, what came through write-ahead logs, each record once."""

from __future__ import annotations

import msgspec

from sqe_chain import Flow
from sqe_chain.ext.wal import epoch_of, log_of, sequence_of


class Listed(msgspec.Struct):
    numbers: list[int] = msgspec.field(default_factory=list)


def append(state: Listed, value: bytes) -> None:
    state.numbers.append(int(value))


def listing(topic: str, *, key_of_number: int) -> Flow:
    """The flow.

    Args:
        topic: its input.
        key_of_number: how many keys there are; a number belongs to the key that is its remainder.
    """
    flow = Flow(f"{topic}.listing", state_partitions=2)
    source = flow.source(topic, bytes, raw=True)
    once = source.drop_stale("once", sequence=sequence_of, epoch=epoch_of, producer=log_of)
    once.aggregate("numbers", key=lambda value: str(int(value) % key_of_number), state=Listed, fold=append)
    return flow
