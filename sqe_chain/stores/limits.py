"""What callers of every store must keep to. Breaking it is a programmer's error: ValueError."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqe_chain.ports import Home, Rows, Views

_NAME = re.compile(r"[A-Za-z0-9._-]+")


@lru_cache(maxsize=1024)
def check_name(name: str) -> str:
    """The name itself, if it is of the alphabet that all stores can hold.

    Raises:
        ValueError: empty, or another character.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"a flow's or stage's name is made of A-Z a-z 0-9 . _ -, not {name!r}")
    return name


def check_rows(rows: Rows, max_rows: int, max_bytes: int, views: Views | None = None) -> None:
    """Check that one atomic step is small enough.

    Args:
        rows: keys and states of the step.
        max_rows: at most so many of them.
        max_bytes: at most so many bytes of keys, states and views, unless it is a single row.
        views: how the states are shown.

    Raises:
        ValueError: too many rows or bytes; the caller must write in chunks.
    """
    if len(rows) > max_rows:
        raise ValueError(f"{len(rows)} rows in one step, at most {max_rows}: write in chunks")
    size = sum(len(key) + len(state or b"") for key, state in rows)
    if views is not None:
        size += sum(views.size(key) for key, _ in rows)
    if size > max_bytes and len(rows) > 1:
        raise ValueError(f"{size} bytes in one step, at most {max_bytes}: write in chunks")


def check_home(after: Home, plan: bytes | None) -> None:
    """Check that a plan that shall be stored has a number.

    Raises:
        ValueError: a plan, but a number below 0.
    """
    if plan is not None and after.number < 0:
        raise ValueError(f"a plan cannot have the number {after.number}")
