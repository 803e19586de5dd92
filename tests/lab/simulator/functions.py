"""The functions of the flows of a simulated world, and the types of its payloads; facts are in `tests.lab.reference.facts`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.struct_pb2 import Value
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.codecs.codec import Codec
from sqe_chain.codecs.registry import register
from sqe_chain.flow.context import Context
from tests.lab.reference.facts import (
    BEAT,
    BEFORE,
    CLOSE,
    FIRST,
    HOMELESS,
    HOP,
    KEYLESS,
    KEYS,
    LARGE,
    LAST,
    MUTE,
    NOT_A_NUMBER,
    OWN_MARK,
    ROWLESS,
    SOUND,
    SURROGATE,
    UNCOUNTED,
    UNSHOWN,
    Form,
    open_doors,
    slot_of,
    state_entry,
    unit_of,
    units_of,
)

MAX_ROW_BYTES = 2_000
_LARGE_TEXT = "z" * 3 * MAX_ROW_BYTES


class Refused(Exception):
    """What user code raises."""


class Mute(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass(slots=True)
class Text:
    """What facts and states are in worlds whose payloads are JSON; else they are a `StringValue`.

    Attributes:
        value: the text.
    """

    value: str = ""


@dataclass(slots=True)
class OwnText:
    """What facts and states are in worlds with a codec of their own.

    Attributes:
        value: the text.
    """

    value: str = ""


@register
class OwnCodec(Codec[OwnText]):
    """The codec of worlds with a codec of their own."""

    name = "simulated"

    @classmethod
    def takes(cls, python_type: type) -> bool:
        return python_type is OwnText

    def encode(self, value: OwnText) -> bytes:
        return OWN_MARK + value.value.encode()

    def decode(self, data: bytes) -> OwnText:
        if not data.startswith(OWN_MARK):
            raise ValueError("no text of these worlds")
        return OwnText(data[len(OWN_MARK) :].decode())


TYPES: Final[Mapping[Form, type[Any]]] = {"protobuf": StringValue, "json": Text, "own": OwnText}
"""Form -> the type of payloads and states."""


def is_no_third(value: StringValue) -> bool:
    """Whether a unit is one of the first two of its fact."""
    return not unit_of(value.value).id.endswith(".2")


def and_a_fourth(value: StringValue) -> list[StringValue]:
    """A unit; after the third of its fact comes another one."""
    unit = unit_of(value.value)
    if not unit.id.endswith(".2"):
        return [value]
    more = f"{unit.id.removesuffix('.2')}.3 {KEYS[-1]} {KEYS[-1]} {SOUND} {unit.same}"
    return [value, type(value)(value=more)]


def split(fact: StringValue) -> list[StringValue]:
    """A fact's units."""
    return [StringValue(value=text) for text in units_of(fact.value)]


def split_json(fact: Text) -> list[Text]:
    """A fact's units, in worlds with JSON."""
    return [Text(text) for text in units_of(fact.value)]


def split_own(fact: OwnText) -> list[OwnText]:
    """A fact's units, in worlds with a codec of their own."""
    return [OwnText(text) for text in units_of(fact.value)]


def decode(data: bytes) -> StringValue:
    """A fact of a raw topic."""
    return StringValue(value=data.decode())


def decode_json(data: bytes) -> Text:
    """A fact of a raw topic, in worlds with JSON."""
    return Text(data.decode())


def decode_own(data: bytes) -> OwnText:
    """A fact of a raw topic, in worlds with a codec of their own."""
    return OwnText(data.decode())


def decode_row(data: bytes) -> StringValue:
    """A fact in a row of a file."""
    return StringValue(value=json.loads(data)["fact"])


def decode_row_json(data: bytes) -> Text:
    """A fact in a row of a file, in worlds with JSON."""
    return Text(json.loads(data)["fact"])


def decode_row_own(data: bytes) -> OwnText:
    """A fact in a row of a file, in worlds with a codec of their own."""
    return OwnText(json.loads(data)["fact"])


def route(value: StringValue) -> str:
    """Record key of a unit."""
    return unit_of(value.value).route


def key(value: StringValue) -> str:
    """Key of the first stage."""
    return unit_of(value.value).key


def group(value: StringValue) -> str:
    """Key of the second stage."""
    return unit_of(value.value).group


def nothing(_: StringValue) -> bool:
    """Whether a unit is in the table of a join: none is."""
    return False


def alone(value: StringValue, joined: object) -> StringValue:
    """What a join makes of a unit, for which the table has nothing."""
    if joined is not None:
        raise AssertionError(f"the table is empty, and gives {joined}")
    return value


def filter_id(value: StringValue) -> str:
    """Id that filters compare."""
    return unit_of(value.value).same


def everything(_: object) -> str:
    """One key for all."""
    return "all"


def compacted_key(value: StringValue) -> str | None:
    """Record key in a compacted topic, which refuses records without one."""
    unit = unit_of(value.value)
    return None if unit.kind == KEYLESS else unit.key


def sequence(value: StringValue) -> int:
    """A sequence number that rises along each partition of an origin."""
    return int(unit_of(value.value).id.partition(".")[0])


def is_heartbeat(_: StringValue, context: Context) -> bool:
    """Whether a message is a heartbeat, by its key."""
    return context.key == BEAT.encode()


def refuse_in_hop(value: StringValue) -> StringValue:
    """The operator of the last hop."""
    refuse(HOP, value)
    return value


_KEPT: Final[list[StringValue]] = []
"""The value that a function has kept."""
_SPOILED: Final = "spoiled"


def keep(value: StringValue) -> None:
    """Change the value that was kept before, and keep this one: a function may, and nobody else sees it."""
    while _KEPT:
        _KEPT.pop().value = _SPOILED
    _KEPT.append(value)


def refuse_before(value: StringValue) -> StringValue:
    """The operator before all stages."""
    keep(value)
    kind = unit_of(value.value).kind
    if kind == SURROGATE:
        raise Refused("no such file: " + b"caf\xe9".decode("utf-8", "surrogateescape"))
    if kind == MUTE:
        raise Mute
    refuse(BEFORE, value)
    return value


def refuse_batch(batch: Any) -> Any:
    """The same over columns."""
    for text in batch.column("value").to_pylist():
        refuse_before(StringValue(value=text))
    return batch


def row_key(value: StringValue) -> str | None:
    """Partition key of a unit's row in a table."""
    unit = unit_of(value.value)
    return None if unit.kind == HOMELESS else unit.key


def row_slot(value: StringValue) -> str | None:
    """Row key of a unit's row, where later rows replace earlier ones."""
    unit = unit_of(value.value)
    return None if unit.kind == ROWLESS else slot_of(unit)


def row_of_its_own(value: StringValue) -> str | None:
    """Row key of a unit's row, where each has its own."""
    unit = unit_of(value.value)
    return None if unit.kind == ROWLESS else unit.id


def row_id(value: StringValue) -> str:
    """Id of a unit's row."""
    return unit_of(value.value).id


def row_rest(value: StringValue) -> str:
    """What else is in a unit's row."""
    unit = unit_of(value.value)
    return _LARGE_TEXT if unit.kind == LARGE else unit.same


def numbered(value: StringValue) -> dict[str, Any]:
    """What declared aggregates take of a unit."""
    unit = unit_of(value.value)
    number = int(unit.id.partition(".")[0])
    return {"key": unit.key, "id": unit.id, "number": str(number) if unit.kind == UNCOUNTED else number}


def numbered_key(value: dict[str, Any]) -> str:
    """Key of the stage with declared aggregates."""
    key: str = value["key"]
    return key


def refuse_after(value: StringValue) -> StringValue:
    """The operator after the last stage."""
    refuse(LAST, value)
    return value


def refuse(kind: str, value: StringValue) -> None:
    """Raise for units of a kind."""
    if unit_of(value.value).kind == kind:
        raise Refused(f"{kind} in {value.value}")


def fold_text(
    stage: str, *, doors: bool = False, changed: bool = False
) -> Callable[[StringValue, StringValue], list[StringValue]]:
    """A fold into a list of ids, as text.

    Args:
        stage: kind of facts that it refuses.
        doors: whether it refuses to close a door that is not open.
        changed: the fold after its code was changed.
    """

    def fold(state: StringValue, value: StringValue) -> list[StringValue]:
        keep(value)
        unit = unit_of(value.value)
        if doors and unit.kind == CLOSE and open_doors(state.value) < 1:
            raise Refused(f"{unit.id} closes what is not open")
        state.value += state_entry(unit, changed=changed) + " "
        refuse(stage, value)
        return [value]

    return fold


def fold_window(state: StringValue, value: StringValue) -> None:
    """The same fold, of windows: they give nothing until they close."""
    fold_text(FIRST)(state, value)


def fold_values(state: Value, value: StringValue) -> list[StringValue]:
    """The same fold into a list of JSON values; a fact without JSON becomes NaN."""
    unit = unit_of(value.value)
    if unit.kind == UNSHOWN:
        state.list_value.values.add(number_value=float("nan"))
    state.list_value.values.add(string_value=state_entry(unit).removesuffix(NOT_A_NUMBER))
    refuse(FIRST, value)
    return [value]


def refuse_open_doors(state: StringValue) -> StringValue:
    """The operator after `changes()`: refuses a state that closes more doors than it opens."""
    if open_doors(state.value) < 0:
        raise Refused(f"more was closed than opened: {state.value}")
    return state


def append_heard(state: StringValue, value: StringValue) -> None:
    """The fold of the service that receives the emissions of the stages."""
    state.value += unit_of(value.value).id + " "


def keep_newest(state: StringValue, value: Any) -> None:
    """The fold of the service that receives `changes()`: keeps the newest state."""
    state.value = " ".join(ids_of(value))


def ids_of(state: Any) -> list[str]:
    """The ids that a state lists, in order."""
    if isinstance(state, StringValue | Text | OwnText):
        return state.value.split()
    return [
        value.string_value for value in state.list_value.values if value.WhichOneof("kind") == "string_value"
    ]


def parsed(state: bytes, form: Form = "protobuf") -> StringValue | Text | OwnText:
    """What `serialized` gave."""
    if form == "own":
        return OwnText(state.removeprefix(OWN_MARK).decode())
    return Text(**json.loads(state)) if form == "json" else StringValue.FromString(state)
