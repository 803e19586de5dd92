"""Facts and their units, as plain data: what a simulated world is about, and how its states list it.

A fact is one line of text, ``id key route kind same units``. It becomes one or more units, each with an id of its
own. States are lists of these ids, so a loss, a duplicate or a wrong order shows, and nothing cancels out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from google.protobuf.wrappers_pb2 import StringValue

KEYS = ("a", "b", "c", "d", "e")
BEAT = "beat"

SOUND, BEFORE, FIRST, SECOND, LAST, HOP = "-", "p", "f", "s", "l", "h"
"""Kinds of facts: sound; user code fails before the stages, in the first, in the second, after it, in the last hop."""
SURROGATE, MUTE, UNSHOWN = "w", "v", "n"
"""An error text that is not Unicode; an error without a text; a state without JSON."""
OPEN, CLOSE, BEATS, BAD_CLOSE = "o", "c", "H", "C"
"""Opening and closing a door; a heartbeat; a closing whose second unit fails."""
EARLIEST, LATEST = "m", "M"
"""Event times at the ends of 64 bits."""
AHEAD, KEYLESS = "A", "k"
"""An event time ahead of the clock, which must not fail; no key for a compacted topic."""
ROWLESS, HOMELESS, LARGE, UNCOUNTED = "R", "q", "Z", "D"
"""Rows of a table without row key, without partition key, too large; text where a declared sum wants a number."""

CHANGED = "!"
"""Marks an entry of a fold that was changed."""
NOT_A_NUMBER = "?"
"""Marks an entry that follows a value without JSON."""

GOOD = frozenset({SOUND, AHEAD})
AHEAD_MS = 86_400_000
ODD_TIMES = {EARLIEST: -(2**63), LATEST: 2**63 - 1}


OWN_MARK = b"own\n"
"""How what the codec of these worlds writes begins."""


Form = Literal["protobuf", "json", "own"]
"""How payloads and states are encoded."""


class Unit(NamedTuple):
    """One unit of a fact.

    Attributes:
        id: its own.
        key: key of the first stage.
        route: record key, which decides its partition.
        kind: see above.
        same: id that filters compare.
    """

    id: str
    key: str
    route: str
    kind: str
    same: str

    @property
    def group(self) -> str:
        """Key of the second stage."""
        return "x" if self.key in "ab" else "y"


@lru_cache(100_000)
def unit_of(text: str) -> Unit:
    """Parse a payload."""
    return Unit(*text.split(" "))


@lru_cache(100_000)
def units_of(fact: str) -> tuple[str, ...]:
    """The payloads of a fact's units."""
    number, key, route, kind, same, count = fact.split(" ")
    kinds = [SOUND] * int(count)
    kinds[-1] = kind  # the units before it are folded already when it fails
    if kind == BAD_CLOSE:
        kinds = [CLOSE, FIRST]
    found = [f"{number}.0 {key} {route} {kinds[0]} {same}"]
    for index in range(1, len(kinds)):
        other = KEYS[(KEYS.index(key) + 2 * (index // 2 + (kind == BAD_CLOSE))) % len(KEYS)]
        found.append(f"{number}.{index} {other} {other if route == key else route} {kinds[index]} {same}")
    return tuple(found)


def slot_of(unit: Unit) -> str:
    """One of two."""
    return str(int(unit.id.partition(".")[0]) % 2)


def aggregated(ids: Iterable[str]) -> dict[str, Any]:
    """What declared aggregates must be after the units with these ids."""
    known = [*ids]
    numbers = [int(one.partition(".")[0]) for one in known]
    return {"units": len(known), "total": sum(numbers), "most": max(numbers), "newest": known[-1]}


def state_entry(unit: Unit, *, changed: bool = False) -> str:
    """A unit's entry in a state; another one after the fold was changed."""
    return unit.id + CHANGED * changed + {OPEN: "+", CLOSE: "-", UNSHOWN: NOT_A_NUMBER}.get(unit.kind, "")


def open_doors(notes: str) -> int:
    """Number of open doors in a state."""
    return notes.count("+") - notes.count("-")


def serialized(notes: Iterable[str], form: Form = "protobuf") -> bytes:
    """A text state with these entries, serialized."""
    text = "".join(f"{note} " for note in notes)
    if form == "json":
        return json.dumps({"value": text}, separators=(",", ":")).encode()
    if form == "own":
        return OWN_MARK + text.encode()
    return StringValue(value=text).SerializeToString()


def text_of(payload: bytes, form: Form = "protobuf") -> str:
    """The text of a payload or a state."""
    if form == "json":
        return str(json.loads(payload)["value"])
    return payload.removeprefix(OWN_MARK).decode() if form == "own" else StringValue.FromString(payload).value
