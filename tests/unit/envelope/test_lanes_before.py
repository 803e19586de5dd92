"""Goal: lanes that are gone are computed from those that are kept, and no others. Method: chains of two hops, with all that may differ."""

from __future__ import annotations

import itertools

import pytest

from sqe_chain.chain import Chain, Link
from sqe_chain.envelope import lanes_before
from sqe_chain.envelope.lanes_before import lanes_up_to

RAW, GOOD = b"r" * 16, b"g" * 16
PARTITIONS = {("raw", RAW): 3, ("good", GOOD): 2}


def chain(
    raw: int, clean: str, good: int, keyed: str, shard: int | None = None, root: bytes = RAW
) -> tuple[Link, ...]:
    return (
        Link("raw", root, raw, 7, output=f"clean/good{clean}"),
        Link("good", GOOD, good, 7, output=f"keyed/fine{keyed}", shard=shard),
    )


def lanes(*chains: tuple[Link, ...]) -> set[int]:
    return {Chain(links).lane() for links in chains}


def test_older_revisions_on_any_partition_are_found() -> None:
    kept = [chain(0, "@2", 1, "@3")]
    found = lanes_up_to(kept, {"keyed/fine": 3}, PARTITIONS)
    assert found == lanes(
        *(chain(*own) for own in itertools.product(range(3), ("", "@2"), range(2), ("", "@2", "@3")))
    )


def test_state_partitions_are_found_up_to_those_that_are_kept() -> None:
    found = lanes_up_to([chain(0, "", 0, "@2", shard=1)], {"keyed/fine": 2}, {})
    assert found == lanes(*(chain(0, "", 0, name, shard=at) for name in ("", "@2") for at in (0, 1)))


@pytest.mark.parametrize(
    "other",
    [
        chain(0, "", 0, "/released.9f"),
        chain(0, "", 0, "", root=b"o" * 16),
        chain(0, "@3", 0, ""),
        chain(0, "", 0, "@4"),
        chain(3, "", 0, ""),
        chain(0, "", 0, "", shard=0),
        (Link("raw", RAW, 0, 7, output="other/fine"),),
    ],
)
def test_what_may_be_anything_else_is_not(other: tuple[Link, ...]) -> None:
    kept = [chain(0, "@2", 1, "@3")]
    assert not lanes(other) & lanes_up_to(kept, {"keyed/fine": 3}, PARTITIONS)
    assert not lanes_up_to(kept, {"other/fine": 3}, PARTITIONS)


def test_too_many_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [chain(0, "@2", 1, "@3")]
    monkeypatch.setattr(lanes_before, "MOST", 41)
    assert lanes_up_to(kept, {"keyed/fine": 3}, PARTITIONS) == set()
    monkeypatch.setattr(lanes_before, "MOST", 42)
    assert len(lanes_up_to(kept, {"keyed/fine": 3}, PARTITIONS)) == 36
