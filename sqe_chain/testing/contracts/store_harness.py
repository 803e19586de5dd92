"""What the rules of stores need to know of a store: its address, and what it can notice and show."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import ClassVar, Final

import pytest

from sqe_chain.adapters import open_store
from sqe_chain.ports import Header, Home, StateStore

BIG: Final = 2**53 + 1
"""The first whole number that a double cannot hold."""

CLAIM: Final = Home(1, "run-a", '{"host": "ä"}', -1, "")
BORN: Final = Header(1, "run-a", 0, "plan-0")
NEXT: Final = Header(1, "run-a", 1, "plan-1")

ODD_KEYS: Final = [
    b"",
    b"\0",
    b"\xff\xfe not utf-8",
    b"=",
    b"a\r\nb",
    b"{slot}",
    b"k" * 1024,
    bytes(range(256)),
]


LONGEST_ROW: Final = 32 * 1024 + 64
"""Bytes of the longest key that every store takes."""


def zeros(most: int) -> bytes:
    """One byte more than a limit; skips the test where that is more than 1 GiB."""
    if most > 1 << 30:
        pytest.skip(f"a limit of {most} bytes is too large to be tried")
    return bytes(most + 1)


def refused_as_mistake() -> pytest.RaisesExc[ValueError]:
    """Checks that something is refused as a mistake of the program; the text is the store's own."""
    return pytest.raises(ValueError)  # noqa: PT011 - any text


class StoreHarness:
    """What differs from store to store: a subclass gives `url`, and declares what its store can do besides what each must.

    Attributes:
        notices_lost_states: which states that another program deletes beside their header are noticed. It is "never"; "all", if
            no state of a state partition is left; or "any".
        notices_after_writes: what was lost is still noticed after a later run has written other states.
        between_processes: several processes can open an address; False: it is in the memory of one.
    """

    notices_lost_states: ClassVar[str] = "never"
    notices_after_writes: ClassVar[bool] = True
    between_processes: ClassVar[bool] = True

    @pytest.fixture
    def url(self) -> str:
        """The address of a store, for `open_store`. It is empty, or tests share it: each uses flows of its own."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture 'url' that returns an address")

    @pytest.fixture
    def store(self, url: str) -> Iterator[StateStore]:
        """A store whose clients are closed after the test."""
        opened = open_store(url)
        yield opened
        opened.close()

    @pytest.fixture
    def flow(self) -> str:
        """A flow that no other test uses."""
        return f"flow-{uuid.uuid4().hex}"

    def lose_states(self, url: str, flow: str, keys: list[bytes] | None) -> None:
        """Delete states of partition 0 of stage "s" beside their header, as another program would: by the layout that you document.

        Args:
            url: the address.
            flow: the flow.
            keys: which ones; None: all.
        """
        raise NotImplementedError(
            f"{type(self).__name__} declares notices_lost_states: {url}, {flow}, {keys}"
        )

    def shown(self, url: str, flow: str, part: int) -> dict[bytes, object]:
        """The JSON views of a state partition of stage "s", read as another program would: by the layout that you document."""
        raise NotImplementedError(f"{type(self).__name__} declares JSON views: {url}, {flow}, {part}")

    def shown_keys(self, url: str, flow: str, view: str) -> set[bytes]:
        """The keys that are shown in partitions 0 and 1 of stage "s". To be overridden for views of other kinds than JSON."""
        if view != "json":
            raise NotImplementedError(f"{type(self).__name__} declares views of kind {view!r}")
        return {key for part in (0, 1) for key in self.shown(url, flow, part)}

    @pytest.fixture
    def shows_json(self, store: StateStore) -> None:
        """Skips a rule of views where a store has none."""
        if "json" not in store.views:
            pytest.skip("the store has no JSON views")
