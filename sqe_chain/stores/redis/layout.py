"""How Redis holds homes and headers: names of keys, fields, numbers. Documented in docs/stores.md.

Numbers are decimal text of 20 characters: a script compares text, for Lua's numbers are doubles and
wrong above 2^53. An absent cursor is an absent field; an empty one is an empty value.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sqe_chain.errors import StoreInconsistent
from sqe_chain.ports import Header, Home
from sqe_chain.stores.limits import check_name

if TYPE_CHECKING:
    from collections.abc import Sequence

HOME_FIELDS: Final = ("epoch", "run_id", "owner", "number", "plan_id")
"""Fields of the hash that holds a home, in the order the scripts use."""

HEADER_FIELDS: Final = ("epoch", "run_id", "number", "plan_id", "begun_id", "cursor")
"""Fields of the hash that holds a header, in the order the scripts use."""

_DIGITS: Final = 20


def home_key(flow: str) -> str:
    """The hash of a flow's home."""
    return f"sqe:{{{check_name(flow)}}}:home"


HOMES: Final = "sqe:{*}:home"
"""Pattern of the keys of homes."""

_HOME: Final = re.compile(rb"sqe:\{([A-Za-z0-9._-]+)\}:home")


def flow_of(key: bytes) -> str | None:
    """The flow whose home a key is; None: it is none.

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


def number_text(number: int) -> bytes:
    """A number as text of fixed width; for numbers from 0, the order of texts is the order of numbers.

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
    """The home that these values of `HOME_FIELDS` mean.

    Raises:
        StoreInconsistent: somebody else wrote into the hash.
    """
    if all(value is None for value in values):
        return None
    epoch, run_id, owner, number, plan_id = _complete(values, key)
    return Home(_number(epoch, key), run_id.decode(), owner.decode(), _number(number, key), plan_id.decode())


def header_of(values: Sequence[bytes | None], key: str) -> Header | None:
    """The header that these values of `HEADER_FIELDS` mean.

    Raises:
        StoreInconsistent: somebody else wrote into the hash.
    """
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


def _complete(values: Sequence[bytes | None], key: str) -> list[bytes]:
    found = [value for value in values if value is not None]
    if len(found) != len(values):
        raise StoreInconsistent(
            f"redis: the hash {key} lacks fields; something else than sqe-chain writes there"
        )
    return found


def _number(text: bytes, key: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise StoreInconsistent(
            f"redis: the hash {key} holds {text[:40]!r} where a number was expected; "
            "something else than sqe-chain writes there"
        ) from None
