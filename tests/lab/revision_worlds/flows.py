"""The flows of a world, and what each version of their code makes of an input.

A text names its way. ``0.3/R1v2/D0v1`` comes from the fourth record of the first root partition. Version 2 of R made its second output
of that, and version 1 of D the first output of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from typing import Final, Literal

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.stages import Tumbling, WindowResult

KEYS: Final = 3
WINDOW_MS: Final = 4_000
Kind = Literal["aggregate", "window", "filter"]
KINDS: Final[tuple[Kind, ...]] = ("aggregate", "window", "filter")


@cache
def chance(*what: object) -> float:
    """A number between 0 and 1, the same for the same things."""
    return int.from_bytes(blake2b(repr(what).encode(), digest_size=4).digest()) / 2**32


class Drawn:
    """What is drawn for the code of the world that runs now.

    Attributes:
        seed: of the world.
        failing: share of the inputs that a version of R may fail for.
    """

    seed = 0
    failing = 0.0


def made(flow: str, version: int, text: str) -> list[str]:
    """What a version makes of an input: nothing, one text or two."""
    count = (0, 1, 1, 2)[int(chance(Drawn.seed, flow, version, text) * 4)]
    return [f"{text}/{flow}{number}v{version}" for number in range(count)]


def fails(flow: str, version: int, text: str, last: int) -> bool:
    """Whether a version of R fails for an input."""
    return flow == "R" and version < last and chance(Drawn.seed, "fails", version, text) < Drawn.failing


def key_of(text: str) -> str:
    """The key of a text: other code moves it to other partitions."""
    return str(int(chance(Drawn.seed, "key", text) * KEYS))


def _key(value: StringValue) -> str:
    return key_of(value.value)


def _append(total: StringValue, value: StringValue) -> Iterator[StringValue]:
    total.value += f"{value.value} "
    yield value


def _note(total: StringValue, value: StringValue) -> None:
    total.value += f"{value.value} "


def _code(flow: str, version: int, last: int) -> Callable[[StringValue], Iterator[StringValue]]:
    def make(value: StringValue) -> Iterator[StringValue]:
        if fails(flow, version, value.value, last):
            raise ValueError(f"version {version} cannot read {value.value}")
        return iter([StringValue(value=text) for text in made(flow, version, value.value)])

    return make


def republisher(
    name: str, version: int, source: str, target: str, partitions: int, last: int = 99
) -> CompiledFlow:
    """A flow without stages, whose revision is the version of its code."""
    flow = Flow(name, poison="dead_letter")
    values = flow.source(source, StringValue, raw=source == "raw").flat_map(_code(name, version, last))
    values.to(target, key=_key, partitions=partitions, revision=version)
    return flow.compile()


def counting(name: str, revision: int, source: str, target: str, partitions: int, kind: Kind) -> CompiledFlow:
    """A flow with a stage, which keeps the texts that it has counted, and publishes each of them."""
    flow = Flow(name, poison="dead_letter", state_partitions=2)
    values = flow.source(source, StringValue)
    if kind == "window":
        closed = values.windowed(
            "hours", Tumbling(WINDOW_MS), key=_key, state=StringValue, fold=_note, lateness_ms=1_000_000
        )
        closed.aggregate("all", key=_of_window, state=StringValue, fold=_note_window)
    else:
        texts = values.deduplicate("once", _text, 1_000_000_000) if kind == "filter" else values
        counted = texts.aggregate("all", key=_key, state=StringValue, fold=_append)
        if target:
            counted.to(target, key=_key, partitions=partitions, revision=revision)
    return flow.compile()


def _of_window(result: WindowResult) -> bytes:
    return result.key


def _note_window(total: StringValue, result: WindowResult) -> None:
    total.value += StringValue.FromString(result.state).value


def _text(value: StringValue) -> str:
    return value.value
