"""The flows of a world, and what their code does: it fails for some inputs in some versions, never in the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from typing import Final

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow, PoisonPolicy

LAST: Final = 3
"""The version whose code never fails."""
KEYS: Final = 3


@cache
def chance(*what: object) -> float:
    """A number between 0 and 1, the same for the same things."""
    return int.from_bytes(blake2b(repr(what).encode(), digest_size=4).digest()) / 2**32


class Drawn:
    """What is drawn for the code of the world that runs now.

    Attributes:
        seed: of the world.
        rate: the share of inputs that code may fail for.
    """

    seed = 0
    rate = 0.5


def fragile(flow: str, text: str) -> bool:
    """Whether any version fails for an input, and what it gives depends on the version."""
    return chance(flow, text, Drawn.seed) <= Drawn.rate


def fails(flow: str, version: int, text: str) -> bool:
    """Whether a version fails for an input."""
    return version < LAST and fragile(flow, text) and chance(flow, text, Drawn.seed, version) < 0.5


def made(flow: str, version: int, text: str) -> list[str]:
    """What a version makes of an input."""
    if not fragile(flow, text):
        return [f"{text}/{flow}{number}" for number in range((0, 1, 1, 2)[int(chance(flow, text) * 4)])]
    count = 1 + int(chance(flow, text, version) * 2)
    return [f"{text}/{flow}{number}v{version}" for number in range(count)]


def key_of(text: str) -> str:
    """The key of an input: that of the record at the origin."""
    return str(int(chance(text.split("/", maxsplit=1)[0]) * KEYS))


def _key(value: StringValue) -> str:
    return key_of(value.value)


def _append(total: StringValue, value: StringValue) -> None:
    total.value += f"{value.value} "


def _code(flow: str, version: int, gives: int) -> Callable[[StringValue], Iterator[StringValue]]:
    def check(value: StringValue) -> Iterator[StringValue]:
        if fails(flow, version, value.value):
            raise ValueError(f"version {version} cannot read {value.value}")
        return iter([StringValue(value=text) for text in made(flow, gives, value.value)])

    return check


@cache
def republisher(
    name: str, version: int, gives: int, policy: PoisonPolicy, way: tuple[str, str, int], kept_in: int
) -> CompiledFlow:
    """A flow without stages.

    Args:
        name: its name.
        version: of its code: it decides for which inputs it fails.
        gives: the version that decides what it makes of the others.
        policy: what it does with inputs for which its code fails.
        way: input topic, output topic, partitions there.
        kept_in: partitions of its dead-letter topic.
    """
    source, target, partitions = way
    flow = Flow(name, poison=policy, dead_letter_partitions=kept_in)
    values = flow.source(source, StringValue, raw=source == "raw").flat_map(_code(name, version, gives))
    values.to(target, key=_key, partitions=partitions)
    return flow.compile()


@cache
def totals(name: str, version: int, policy: PoisonPolicy, source: str) -> CompiledFlow:
    """A flow with a stage, which keeps the texts that it has counted."""

    def check(value: StringValue) -> StringValue:
        if fails(name, version, value.value):
            raise ValueError(f"version {version} cannot read {value.value}")
        return value

    flow = Flow(name, poison=policy, state_partitions=2)
    flow.source(source, StringValue).map(check).aggregate("all", key=_key, state=StringValue, fold=_append)
    return flow.compile()
