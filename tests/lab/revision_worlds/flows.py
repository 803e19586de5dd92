"""The flows of a world, and what each version of their code makes of an input.

A text names its way. ``0.3/R1v2/D0v1`` comes from the fourth record of the first root partition. Version 2 of R made its second output
of that, and version 1 of D the first output of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from typing import Any, Final, Literal

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.flow import Context, Flow, Timer
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.stages import Tumbling, WindowResult

KEYS: Final = 3
WINDOW_MS: Final = 4_000
HELD_MS: Final = 2_000
_LONG_MS: Final = 1_000_000_000
Kind = Literal["aggregate", "window", "filter", "timer", "join"]
KINDS: Final[tuple[Kind, ...]] = ("aggregate", "window", "filter", "timer", "join")


@cache
def chance(*what: object) -> float:
    """A number between 0 and 1, the same for the same things."""
    return int.from_bytes(blake2b(repr(what).encode(), digest_size=4).digest()) / 2**32


class Drawn:
    """What is drawn for the code of the world that runs now.

    Attributes:
        seed: of the world.
        failing: share of the inputs that a version of R or D fails for.
    """

    seed = 0
    failing = 0.0


def made(flow: str, version: int, text: str) -> list[str]:
    """What a version makes of an input that it does not fail for: nothing, one text or two."""
    count = (0, 1, 1, 2)[int(chance(Drawn.seed, flow, version, text) * 4)]
    return [f"{text}/{flow}{number}v{version}" for number in range(count)]


def fails(flow: str, version: int, text: str) -> bool:
    """Whether a version fails for an input."""
    return chance(Drawn.seed, "fails", flow, version, text) < Drawn.failing


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


def _hold(total: StringValue, value: StringValue, context: Context) -> None:
    total.value += f"{value.value} "
    context.set_timer(context.timestamp_ms + HELD_MS)


def _give(total: StringValue, _: Timer) -> list[StringValue]:
    given, total.value = [StringValue(value=text) for text in total.value.split()], ""
    return given


def _code(flow: str, version: int, *, fixed: bool) -> Callable[[StringValue], Iterator[StringValue]]:
    def make(value: StringValue) -> Iterator[StringValue]:
        if not fixed and fails(flow, version, value.value):
            raise ValueError(f"version {version} cannot read {value.value}")
        return iter([StringValue(value=text) for text in made(flow, version, value.value)])

    return make


def republisher(
    name: str, version: int, source: str, target: str, partitions: int, *, fixed: bool = False
) -> CompiledFlow:
    """A flow without stages, whose revision is the version of its code; fixed, it fails for nothing, and is right for releases."""
    flow = Flow(name, poison="dead_letter")
    values = flow.source(source, StringValue, raw=source == "raw").flat_map(_code(name, version, fixed=fixed))
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
        return flow.compile()
    texts: Any = values
    if kind == "filter":
        texts = values.deduplicate("once", _text, _LONG_MS)
    elif kind == "timer":
        texts = values.aggregate("held", key=_key, state=StringValue, fold=_hold, on_timer=_give)
    elif kind == "join":
        side = flow.source("side", StringValue, raw=True).key_by(_text)
        texts = values.key_by(_key).join_table("joined", side, _first, how="left", history_ms=_LONG_MS)
    counted = texts.aggregate("all", key=_key, state=StringValue, fold=_append)
    if target:
        counted.to(target, key=_key, partitions=partitions, revision=revision)
    return flow.compile()


def _first(value: StringValue, _: StringValue | None) -> StringValue:
    return value


def _of_window(result: WindowResult) -> bytes:
    return result.key


def _note_window(total: StringValue, result: WindowResult) -> None:
    total.value += StringValue.FromString(result.state).value


def _text(value: StringValue) -> str:
    return value.value
