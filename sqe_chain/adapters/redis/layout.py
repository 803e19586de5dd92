"""Layout of homes and headers in Redis: names of keys, fields, numbers. Documented in docs/stores.md.

Numbers are decimal text of 20 characters: scripts compare text, because Lua's numbers are doubles and not exact
above 2^53. An absent cursor is an absent field; an empty one is an empty value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from sqe_chain.adapters import store_rules
from sqe_chain.adapters.store_rules import HEADER_FIELDS, HOME_FIELDS, LOCATION_FIELDS, Cell, check_name
from sqe_chain.errors import StoreInconsistent
from sqe_chain.ports import Header, Home, Locations

WITNESS: Final = "states"
"""Field of a header: the number of states when it was written, and the run that wrote it; older versions do not write it."""
HOMES: Final = "sqe:{*}:home"
"""Pattern of the keys of homes."""
_HOME: Final = re.compile(rb"sqe:\{([A-Za-z0-9._-]+)\}:home")
_DIGITS: Final = 20
_NUMBERS: Final = frozenset({"epoch", "number", "state_partitions", "buckets"})


def flow_key(flow: str, name: str) -> str:
    """A key of a flow: its `home`, `beat` (a counter), `plans` (number -> plan) or `locations`."""
    return f"sqe:{{{check_name(flow)}}}:{name}"


def flow_of(key: bytes) -> str | None:
    """The flow whose home has this key; None: it is not the key of a home.

    >>> flow_of(flow_key("totals", "home").encode()), flow_of(b"sqe:{a/b}:home")
    ('totals', None)
    """
    match = _HOME.fullmatch(key)
    return match.group(1).decode() if match else None


def cell_key(cell: Cell, name: str) -> str:
    """A key of a cell: its `header`, `states` (key -> state) or `json` (key -> JSON); all are in one slot."""
    flow, stage, part = cell
    return f"sqe:{{{flow}/{stage}/{part}}}:{name}"


def hash_key(cell: Cell, key: bytes) -> bytes:
    """The hash field -> text of one state; in the same slot as its header."""
    return cell_key(cell, "hash:").encode() + key


def number_text(number: int) -> bytes:
    """A number as text of fixed width; numbers from 0 sort as texts just as they sort as numbers.

    >>> number_text(42)
    b'00000000000000000042'
    """
    return b"%0*d" % (_DIGITS, number)


def record_arguments(values: Sequence[Any]) -> list[bytes]:
    """A home's or header's values as arguments of a script: `=` and the value, or nothing if it is absent."""
    return [b"" if value is None else b"=" + _encoded(value) for value in values]


def _encoded(value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return number_text(value)
    return value.encode() if isinstance(value, str) else value


def home_of(values: Sequence[bytes | None], key: str) -> Home | None:
    """Decode a home from the values of `HOME_FIELDS`."""
    return store_rules.home_of(_decoded(HOME_FIELDS, values, key), _where(key))


def header_of(values: Sequence[bytes | None], key: str) -> Header | None:
    """Decode a header from the values of `HEADER_FIELDS`."""
    return store_rules.header_of(_decoded(HEADER_FIELDS, values, key), _where(key))


def locations_arguments(locations: Locations) -> list[bytes]:
    """Locations as arguments of a script: epoch and number, then field, text, field, text, ...

    A field is prefixed with the stage's name and a colon, which no name contains.
    """
    arguments = [number_text(number) for number in locations.age]
    for stage, location in locations.stages.items():
        for field, value in zip(LOCATION_FIELDS, store_rules.location_values(location), strict=True):
            arguments += [f"{stage}:{field}".encode(), str(value).encode()]
    return arguments


def locations_of(flat: Sequence[bytes], key: str) -> Locations | None:
    """Decode locations from the hash."""
    if not flat:
        return None
    texts = dict(zip(flat[::2], flat[1::2], strict=True))
    age = ("epoch", "number")
    epoch, number = _decoded(age, [texts.pop(field.encode(), None) for field in age], key)
    store_rules.complete((epoch, number), _where(key))
    stages = {}
    for stage in dict.fromkeys(field.rpartition(b":")[0].decode() for field in texts):
        values = [texts.get(f"{stage}:{field}".encode()) for field in LOCATION_FIELDS]
        stages[stage] = store_rules.location_of(_decoded(LOCATION_FIELDS, values, key), _where(key))
    return Locations(epoch, number, stages)


def expected_states(witness: bytes | None, run_id: bytes | None) -> int | None:
    """The number of states that a header has noted; None: it has not, or another version has written since.

    >>> expected_states(b"00000000000000000007 run-a", b"run-a"), expected_states(b"00000000000000000007 run-a", b"run-b")
    (7, None)
    """
    count, _, run = (witness or b"").partition(b" ")
    return int(count) if witness and run == run_id else None


def _where(key: str) -> str:
    return f"redis: the hash {key}"


def _decoded(fields: Sequence[str], values: Sequence[bytes | None], key: str) -> list[Any]:
    return [_value(field, value, key) for field, value in zip(fields, values, strict=True)]


def _value(field: str, value: bytes | None, key: str) -> bytes | str | int | None:
    if value is None or field == "cursor":
        return value
    if field not in _NUMBERS:
        return value.decode()
    try:
        return int(value)
    except ValueError:
        raise StoreInconsistent(
            f"{_where(key)} holds {value[:40]!r} where a number was expected; "
            "another program writes to it: stop that, then restore the store"
        ) from None
