"""Numbers, booleans and times in text: one grammar, whatever field reads them."""

from __future__ import annotations

import re
import struct
from typing import Final

_INT: Final = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.0+)?").fullmatch
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?").fullmatch
_FINER: Final = re.compile(r"\.[0-9]{6}[0-9]*[1-9]").search
_SINGLE: Final = 32
_BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}


def parse_int(text: str) -> int:
    """The int that a text is: digits of ASCII as JSON writes them; ``20.0`` is one, too. Raises ValueError: it is none."""
    match = _INT(text)
    if not match:
        raise _error(text, "an int", "digits, as in 20 or -3")
    return int(match[1])


def parse_float(text: str, bits: int = 64) -> float:
    """The float of 64 or 32 bits that is nearest to a number in text, as JSON writes it.

    Raises:
        ValueError: it is no number; it is too large, or too near to 0; or it is a whole number that no float is.
    """
    match = _NUMBER(text)
    if not match:
        raise _error(text, "a number", "one as JSON writes it, as in 20, -1.5 or 1e-3")
    number = float(text) if bits != _SINGLE else _narrow(float(text))
    if match.lastindex is None:
        if number != int(text):
            raise _error(text, f"a float of {bits} bits without being rounded", "fewer digits")
    elif number - number or (not number and re.search("[1-9]", re.split("[eE]", text)[0])):
        raise _error(text, f"a float of {bits} bits", "a number within its limits")
    return number


def exact_float(number: float, bits: int = 64) -> float:
    """A number as a float of 64 or 32 bits. Raises ValueError: there is no such float."""
    try:
        exact = float(number) if bits != _SINGLE else _narrow(float(number))
    except OverflowError:
        exact = float("inf")
    if exact != number:
        raise _error(str(number), f"a float of {bits} bits without being rounded", "fewer digits")
    return exact


def _narrow(number: float) -> float:
    """The nearest float of 32 bits."""
    try:
        narrowed: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return float("inf")
    return narrowed


def parse_bool(text: str) -> bool:
    """True or False in text, in any case; or 1 and 0. Raises ValueError: it is neither."""
    value = _BOOLS.get(text.lower())
    if value is None:
        raise _error(text, "true or false", "true, false, 1 or 0")
    return value


def check_decimal(text: str) -> str:
    """A decimal number in text. ValueError: it is none; Python would read underscores, blanks and digits of any script in it."""
    if not _NUMBER(text):
        raise _error(text, "a decimal number", "one as JSON writes it, as in 20, -1.5 or 1e-3")
    return text


def check_time(text: str) -> str:
    """A time or a duration in text. ValueError: it is finer than microseconds, and would be rounded."""
    if _FINER(text):
        raise _error(text, "a time in whole microseconds", "six digits after the point at most")
    return text


def _error(text: str, what: str, expected: str) -> ValueError:
    return ValueError(
        f"{text[:80]!r} is not {what}. Expected {expected}. Write it so, or read the field as text."
    )
