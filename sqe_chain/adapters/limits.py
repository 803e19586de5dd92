"""Limits that callers of every store must respect.

The size of a write and the alphabet of names are up to the program: breaking them is a ValueError. The sizes of keys,
states and plans are up to the data: a ConfigurationError, unless the caller has compared them with the limits before.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import StateStore

if TYPE_CHECKING:
    from sqe_chain.ports import Header, Home, Locations, Rows, Views

_NAME = re.compile(r"[A-Za-z0-9._-]+")


@lru_cache(maxsize=1024)
def check_name(name: str) -> str:
    """The name itself, if all stores can hold it.

    Raises:
        ValueError: it is empty, or has other characters.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"a flow's or stage's name is made of A-Z a-z 0-9 . _ -, not {name!r}")
    return name


def check_rows(rows: Rows, max_rows: int, max_bytes: int, views: Views | None = None) -> None:
    """Check that one write is small enough.

    Args:
        rows: keys and states to write.
        max_rows: the largest number of rows.
        max_bytes: the largest total of keys, states and views in bytes; a single row may be larger.
        views: the states' views.

    Raises:
        ValueError: too many rows or bytes; the caller must write in chunks.
    """
    if len(rows) > max_rows:
        raise ValueError(f"{len(rows)} rows in one write, at most {max_rows}: write in chunks")
    size = sum(len(key) + len(state or b"") for key, state in rows)
    if views is not None:
        size += sum(views.size(key) for key, _ in rows)
    if size > max_bytes and len(rows) > 1:
        raise ValueError(f"{size} bytes in one write, at most {max_bytes}: write in chunks")


def with_witness(header: Header, said: int | None, found: int) -> Header:
    """A header with what is lost beside it.

    Args:
        header: as it is stored.
        said: how many states there must be; None: an older version has written it, which does not say.
        found: how many there are.
    """
    if said is None or said == found:
        return header
    return replace(header, lost=f"there must be {said:,} of them, and there are {found:,}")


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest sizes that one server accepts, in bytes; see `StateStore.max_key_bytes`.

    Attributes:
        key: of a key.
        state: of a key, its state and its view together.
        plan: of a plan.
        setting: the server's setting that limits states and plans, for error texts; empty: none.
    """

    key: int
    state: int
    plan: int
    setting: str = ""

    def check(self, where: object, rows: Rows, views: Views | None = None) -> None:
        """Check that the server accepts every key and every state.

        Args:
            where: the store, for the text.
            rows: keys and states of one write.
            views: the states' views.

        Raises:
            ConfigurationError: one is too large.
        """
        for key, state in rows:
            if len(key) > self.key:
                raise ConfigurationError(
                    f"{where}: a key has {len(key)} bytes, at most {self.key} are allowed: use a shorter key, for example "
                    "a digest, or another store"
                )
            size = len(key) + len(state or b"") + (views.size(key) if views is not None else 0)
            if size > self.state:
                raise ConfigurationError(
                    f"{where}: key {key[:40]!r}, its state and its view have {size} bytes together, at most {self.state} are "
                    f"allowed{self._by}: keep less in one state, or spread it over several keys"
                )

    def check_plan(self, where: object, plan: bytes | None) -> None:
        """Check that the server accepts a plan.

        Raises:
            ConfigurationError: it is too large.
        """
        if plan is not None and len(plan) > self.plan:
            raise ConfigurationError(
                f"{where}: a plan has {len(plan)} bytes, at most {self.plan} are allowed{self._by}"
            )

    @property
    def _by(self) -> str:
        return f" (by {self.setting} of the server)" if self.setting else ""


class Limited(StateStore):
    """The part of a `StateStore` that tells the largest sizes that its server accepts."""

    @property
    @abstractmethod
    def _limits(self) -> Limits:
        """These sizes; may ask the server."""

    @property
    def max_key_bytes(self) -> int:
        return self._limits.key

    @property
    def max_state_bytes(self) -> int:
        return self._limits.state

    @property
    def max_plan_bytes(self) -> int:
        return self._limits.plan

    def remarks(self) -> list[str]:
        # By default there are none
        return []


def check_home(after: Home, plan: bytes | None) -> None:
    """Check that a plan that is to be stored has a valid number.

    Raises:
        ValueError: the number is below 0.
    """
    if plan is not None and after.number < 0:
        raise ValueError(f"a plan cannot have the number {after.number}")


def check_locations(after: Locations) -> None:
    """Check that locations belong to a plan, and to at least one stage.

    Raises:
        ValueError: they are not.
    """
    if not after.stages:
        raise ValueError("locations of a flow without stages")
    if min(after.age) < 0:
        raise ValueError(f"locations of plan {after.number}, epoch {after.epoch}: there is none before 0")
    for stage, one in after.stages.items():
        check_name(stage)
        check_name(one.flow)
