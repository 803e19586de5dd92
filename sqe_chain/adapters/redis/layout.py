"""Layout of homes and headers in Redis: names of keys, fields, numbers. Documented in docs/stores.md.

What is decoded is not what another program has written: that is `StoreInconsistent`.

Numbers are decimal text of 20 characters: scripts compare text, because Lua's numbers are doubles and not exact
above 2^53. An absent cursor is an absent field; an empty one is an empty value.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast

from sqe_chain.adapters.limits import check_name
from sqe_chain.errors import StoreInconsistent
from sqe_chain.ports import Header, Home, Location, Locations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqe_chain.ports import ViewKind

HOME_FIELDS: Final = ("epoch", "run_id", "owner", "number", "plan_id")
"""Fields of the hash that holds a home, in the order the scripts use."""

HEADER_FIELDS: Final = ("epoch", "run_id", "number", "plan_id", "begun_id", "cursor")
"""Fields of the hash that holds a header, in the order the scripts use."""

WITNESS: Final = "states"
"""Field of a header: how many states there were when it was written, and the run that wrote it, as an older version leaves it alone."""

_DIGITS: Final = 20


def home_key(flow: str) -> str:
    """The hash of a flow's home."""
    return f"sqe:{{{check_name(flow)}}}:home"


HOMES: Final = "sqe:{*}:home"
"""Pattern of the keys of homes."""

_HOME: Final = re.compile(rb"sqe:\{([A-Za-z0-9._-]+)\}:home")


def flow_of(key: bytes) -> str | None:
    """The flow whose home has this key; None: it is not the key of a home.

    >>> flow_of(home_key("totals").encode()), flow_of(b"sqe:{a/b}:home")
    ('totals', None)
    """
    found = _HOME.fullmatch(key)
    return found.group(1).decode() if found else None


def beat_key(flow: str) -> str:
    """The heartbeat counter of a flow."""
    return f"sqe:{{{check_name(flow)}}}:beat"


def plans_key(flow: str) -> str:
    """The hash number -> plan of a flow."""
    return f"sqe:{{{check_name(flow)}}}:plans"


def header_key(flow: str, stage: str, part: int) -> str:
    """The hash of a state partition's header."""
    return f"sqe:{{{check_name(flow)}/{check_name(stage)}/{part}}}:header"


def states_key(flow: str, stage: str, part: int) -> str:
    """The hash key -> state of a state partition; in the same slot as its header."""
    return f"sqe:{{{check_name(flow)}/{check_name(stage)}/{part}}}:states"


def json_key(flow: str, stage: str, part: int) -> str:
    """The hash key -> JSON of a state partition; in the same slot as its header."""
    return f"sqe:{{{check_name(flow)}/{check_name(stage)}/{part}}}:json"


def hash_key(flow: str, stage: str, part: int, key: bytes) -> bytes:
    """The hash field -> text of one state; in the same slot as its header."""
    return f"sqe:{{{check_name(flow)}/{check_name(stage)}/{part}}}:hash:".encode() + key


def locations_key(flow: str) -> str:
    """The hash with the locations of a flow's stages; its name never changes."""
    return f"sqe:{{{check_name(flow)}}}:locations"


LOCATION_FIELDS: Final = (
    "stored_flow", "state_partitions", "buckets", "kind", "type_name", "shown_as", "store",
)  # fmt: skip
"""For each stage, prefixed with its name and a colon, which no name contains; the hash also has `epoch` and `number`."""


def locations_arguments(locations: Locations) -> list[bytes]:
    """Locations as arguments of a script: epoch and number, then field, text, field, text, ..."""
    found = [number_text(locations.epoch), number_text(locations.number)]
    for stage, one in locations.stages.items():
        texts = (
            one.flow, one.state_partitions, one.buckets, one.kind, one.type_name, one.view or "", one.store,
        )  # fmt: skip
        for field, text in zip(LOCATION_FIELDS, texts, strict=True):
            found += [f"{stage}:{field}".encode(), str(text).encode()]
    return found


def locations_of(flat: Sequence[bytes], key: str) -> Locations | None:
    """Decode locations from the hash."""
    if not flat:
        return None
    texts = dict(zip(flat[::2], flat[1::2], strict=True))
    epoch, number = _complete([texts.pop(b"epoch", None), texts.pop(b"number", None)], key)
    stages = {}
    for stage in dict.fromkeys(field.rpartition(b":")[0].decode() for field in texts):
        found = _complete([texts.get(f"{stage}:{field}".encode()) for field in LOCATION_FIELDS], key)
        flow, partitions, buckets, kind, type_name, view, store = (text.decode() for text in found)
        shown = cast("ViewKind | None", view or None)
        stages[stage] = Location(
            flow, _number(partitions.encode(), key), _number(buckets.encode(), key), kind, type_name, shown, store
        )  # fmt: skip
    return Locations(_number(epoch, key), _number(number, key), stages)


def number_text(number: int) -> bytes:
    """A number as text of fixed width; numbers from 0 sort as texts just as they sort as numbers.

    >>> number_text(42)
    b'00000000000000000042'
    """
    return b"%0*d" % (_DIGITS, number)


def home_arguments(home: Home | None) -> list[bytes]:
    """A home as arguments of a script, one for each field: `=` and the value, or nothing if absent."""
    if home is None:
        return [b""] * len(HOME_FIELDS)
    return [
        b"=" + number_text(home.epoch),
        b"=" + home.run_id.encode(),
        b"=" + home.owner.encode(),
        b"=" + number_text(home.number),
        b"=" + home.plan_id.encode(),
    ]


def header_arguments(header: Header | None) -> list[bytes]:
    """A header as arguments of a script, one for each field: `=` and the value, or nothing if absent."""
    if header is None:
        return [b""] * len(HEADER_FIELDS)
    return [
        b"=" + number_text(header.epoch),
        b"=" + header.run_id.encode(),
        b"=" + number_text(header.number),
        b"=" + header.plan_id.encode(),
        b"=" + header.begun_id.encode(),
        b"" if header.cursor is None else b"=" + header.cursor,
    ]


def home_of(values: Sequence[bytes | None], key: str) -> Home | None:
    """Decode a home from the values of `HOME_FIELDS`."""
    if all(value is None for value in values):
        return None
    epoch, run_id, owner, number, plan_id = _complete(values, key)
    return Home(_number(epoch, key), run_id.decode(), owner.decode(), _number(number, key), plan_id.decode())


def header_of(values: Sequence[bytes | None], key: str) -> Header | None:
    """Decode a header from the values of `HEADER_FIELDS`."""
    if all(value is None for value in values):
        return None
    epoch, run_id, number, plan_id, begun_id = _complete(values[:-1], key)
    return Header(
        _number(epoch, key),
        run_id.decode(),
        _number(number, key),
        plan_id.decode(),
        begun_id.decode(),
        values[-1],
    )


def states_said(witness: bytes | None, run_id: bytes | None) -> int | None:
    """How many states a header says that there are; None: it does not say, or another version has written since.

    >>> states_said(b"00000000000000000007 run-a", b"run-a"), states_said(b"00000000000000000007 run-a", b"run-b")
    (7, None)
    """
    count, _, run = (witness or b"").partition(b" ")
    return int(count) if witness and run == run_id else None


def _complete(values: Sequence[bytes | None], key: str) -> list[bytes]:
    found = [value for value in values if value is not None]
    if len(found) != len(values):
        raise StoreInconsistent(
            f"redis: the hash {key} lacks fields; another program writes to it: stop that, then restore the store"
        )
    return found


def _number(text: bytes, key: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise StoreInconsistent(
            f"redis: the hash {key} holds {text[:40]!r} where a number was expected; "
            "another program writes to it: stop that, then restore the store"
        ) from None
