"""Corpora and inputs made small: without what adds nothing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from random import Random
from typing import Final

from tests.lab.fuzzing.coverage import Coverage
from tests.lab.fuzzing.engine import Engine, Target, name_of
from tests.lab.fuzzing.records import Record, Script, from_bytes, to_bytes

Features = frozenset[Hashable]
MOST_BYTES: Final = 500_000
"""Size of a target's committed corpus: the shortest inputs, each with an outcome that no shorter one has."""


def features(target: Target, data: bytes) -> Features:
    """What comes of an input: outcomes, and pairs of lines."""
    outcomes, coverage = set[Hashable](), Coverage()
    with coverage.watch():
        target.check(data, outcomes)
    return frozenset(outcomes | coverage.arcs)


def minimised(target: Target, inputs: Sequence[bytes], random: Random) -> dict[str, bytes]:
    """A smaller set of inputs with the same outcomes; names of files -> inputs."""
    Engine(target, random).learn(inputs[0])  # so that caches are filled
    parts = [one for data in inputs for one in _parts(target, data)]
    covered, kept = set[Hashable](), dict[str, bytes]()
    for data in sorted(dict.fromkeys(parts), key=len):
        found = features(target, data)
        if not found <= covered:
            covered |= found
            kept[name_of(data)] = data
        if sum(map(len, kept.values())) > MOST_BYTES:
            break
    return kept


def smaller(target: Target, data: bytes) -> bytes:
    """A failing input with as few of its records as still fail."""
    if target.name != "envelopes":
        return data
    script = from_bytes(data)
    records = script.records
    size = len(records)
    while size:
        at = 0
        while at < len(records):
            fewer = records[:at] + records[at + size :]
            if fewer and _fails(target, to_bytes(Script(script.setting, fewer))):
                records = fewer
            else:
                at += size
        size //= 2
    return to_bytes(Script(script.setting, records))


def _fails(target: Target, data: bytes) -> bool:
    try:
        target.check(data, set())
    except Exception:  # noqa: BLE001 - whatever it is
        return True
    return False


def _parts(target: Target, data: bytes) -> list[bytes]:
    """An input, and shorter ones made of its records."""
    if target.name != "envelopes":
        return [data]
    script = from_bytes(data)
    alone = [
        to_bytes(Script(script.setting, [Record(record.data, record.chains)])) for record in script.records
    ]
    halves = [script.records[begin : begin + 4] for begin in range(0, len(script.records), 4)]
    return [*alone, *(to_bytes(Script(script.setting, some)) for some in halves), data]
