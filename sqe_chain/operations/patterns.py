"""Patterns for the keys and errors of records: ``*`` stands for any text, ``?`` for one character, all else for itself."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from sqe_chain.errors import ConfigurationError
from sqe_chain.flow.stored import HEXADECIMAL, readable, readable_key


def matches(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern.

    >>> matches("robot[7]", "robot[?]"), matches("robot7", "robot[7]")
    (True, False)
    """
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def listed_key(key: bytes) -> str:
    """A key as lists show it. As a pattern, this text matches the same key and no other one.

    It is the key's text. An empty key, one that is not printable or has ``*`` or ``?``, and one that begins with ``0x``, is
    hexadecimal.

    >>> listed_key(b"robot-7"), listed_key(bytes([0, 255])), listed_key(b"0x1"), listed_key(b"")
    ('robot-7', '0x00ff', '0x307831', '0x')
    """
    text = readable_key(key)
    return text if text and not set("*?") & set(text) else f"{HEXADECIMAL}{key.hex()}"


def key_matches(key: bytes, pattern: str) -> bool:
    """Whether a key matches a pattern. One that begins with ``0x`` is for the keys that lists show so, others are for the text."""
    if pattern.startswith(HEXADECIMAL):
        return matches(listed_key(key), pattern.lower())
    return matches(readable(key), pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPatterns:
    """Which records that failed are meant; without arguments all of them.

    Attributes:
        error: pattern of the error's class.
        key: pattern of the key; a record without a key matches none.
        no_key: only records without a key.

    Raises:
        ConfigurationError: a pattern is empty, or there is one for the key of records without a key.
    """

    error: str | None = None
    key: str | None = None
    no_key: bool = False

    def __post_init__(self) -> None:
        """Refuse empty patterns: they come from unset variables of a shell, and nobody means all records by them."""
        if self.error == "":
            raise ConfigurationError(
                "pattern of an error: ''. Expected the name of a class, with * and ? for other text. "
                "For all errors give no --error"
            )
        if self.key == "":
            raise ConfigurationError(
                "pattern of a key: ''. Expected text, or 0x and hexadecimal digits. Give 0x alone for the empty key, "
                "--no-key for records without a key, and no --key for all records"
            )
        if self.no_key and self.key is not None:
            raise ConfigurationError(
                f"pattern of a key, and --no-key: {self.key!r}. Expected one of the two. Give --key or --no-key"
            )

    def match(self, error: str, key: bytes | None) -> bool:
        """Whether a record with this error and key is one of them."""
        if self.error is not None and not matches(error, self.error):
            return False
        if self.no_key:
            return key is None
        return self.key is None or (key is not None and key_matches(key, self.key))
