"""Text of messages, users and servers, as it may be shown: it forges no line, drives no terminal, and has no password."""

from __future__ import annotations

import json
import re
from typing import Final
from unicodedata import category

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of Unicode that a terminal or a viewer of logs may obey, or not show: controls, directions, line ends, halves of pairs."""
_LOGIN: Final = re.compile(r"(:/{1,2}[^\s/@:]*):[^\s]*@")
_SECRET: Final = re.compile(
    r"([?&;][^\s=&;]*(?:password|secret|token|key)(?!_(?:file|env))[^\s=&;]*=)[^\s&;]*", re.IGNORECASE
)


def one_line(text: str) -> str:
    r"""A text on one line; what cannot be seen is written as Python writes it.

    >>> print(one_line("line 7\n\x1b[2Jok"))
    line 7\n\x1b[2Jok

    Args:
        text: any.
    """
    if text.isprintable():
        return text
    escaped = (char.encode("unicode_escape").decode() if category(char) in _UNSEEN else char for char in text)
    return "".join(escaped)


def json_line(value: object) -> str:
    r"""A value as JSON on one line, all of it visible; a parser reads the same value from it.

    >>> print(json_line({"text": "Schraube №7\x9b2J\u202e"}))
    {"text": "Schraube №7\u009b2J\u202e"}

    Args:
        value: what JSON can express; of all else its text.
    """
    text = json.dumps(value, ensure_ascii=False, default=str)
    if text.isprintable():
        return text
    return "".join(_in_json(char) if category(char) in _UNSEEN else char for char in text)


def without_secrets(text: str) -> str:
    """A text in which addresses have no password, however it is written.

    >>> without_secrets("cassandra://ann:pa/ss?w@one,two/ks?datacenter=dc1&sas_token=x")
    'cassandra://ann:***@one,two/ks?datacenter=dc1&sas_token=***'

    Args:
        text: an address, or a sentence with some.
    """
    return _SECRET.sub(r"\1***", _LOGIN.sub(r"\1:***@", text))


def shown(value: object) -> str:
    """The text of a value as a log or a terminal may have it: `one_line` and `without_secrets`."""
    return one_line(without_secrets(str(value)))


def _in_json(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
