"""Strategies of Hypothesis: chains, envelopes, inputs and schedules. Needs `hypothesis`; see the extra `prove`.

>>> from hypothesis import given, settings
>>> from sqe_chain import read
>>> @settings(max_examples=10, database=None)
... @given(envelopes(st.binary()))
... def test_every_envelope_can_be_read(value: bytes) -> None:
...     assert len(read(value, strict=True).chain) <= 4
>>> test_every_envelope_can_be_read()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from sqe_chain.chain import (
    MAX_EPOCH,
    MAX_OFFSET,
    MAX_PARTITION,
    MAX_SHARD,
    TOPIC_ID_LENGTH,
    Chain,
    Coordinates,
    Link,
)
from sqe_chain.envelope import read, republish, wrap
from sqe_chain.plans.events import When
from sqe_chain.testing.proving import Fault, Feed, Schedule
from sqe_chain.testing.proving.drawing import WHATS
from sqe_chain.testing.proving.schedule import What
from sqe_chain.wings import needing

with needing("sqe_chain.testing.strategies", "prove"):
    from hypothesis import strategies as st

Value = TypeVar("Value")

_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
_LONGEST: Final = 30
_MOST_OF: Final = 1_000
_LATEST_MS: Final = 4_102_444_800_000


def topics() -> st.SearchStrategy[str]:
    """Names of topics."""
    return st.text(_ALPHABET, min_size=1, max_size=_LONGEST).filter(lambda name: name not in {".", ".."})


@st.composite
def links(draw: st.DrawFn) -> Link:
    """Links of chains, with numbers up to the limits of the format."""
    of = draw(st.integers(1, _MOST_OF))
    return Link(
        topic=draw(topics()),
        topic_id=draw(st.binary(min_size=TOPIC_ID_LENGTH, max_size=TOPIC_ID_LENGTH)),
        partition=draw(st.integers(0, MAX_PARTITION)),
        offset=draw(st.integers(0, MAX_OFFSET)),
        leader_epoch=draw(st.integers(0, MAX_EPOCH)),
        output=f"{draw(topics())}/{draw(topics())}",
        shard=draw(st.none() | st.integers(0, MAX_SHARD)),
        ordinal=draw(st.integers(0, of - 1)),
        of=of,
    )


def chains(*, max_links: int = 4) -> st.SearchStrategy[Chain]:
    """Source topic chains.

    Args:
        max_links: links at most; the format allows 32.
    """
    return st.lists(links(), max_size=max_links).map(lambda drawn: Chain(tuple(drawn)))


@st.composite
def envelopes(  # noqa: D417 - Hypothesis gives `draw`
    draw: st.DrawFn,
    payloads: st.SearchStrategy[Any],
    *,
    keys: st.SearchStrategy[bytes | str | None] | None = None,
    max_links: int = 4,
) -> bytes:
    """Envelopes, as services before wrote them: wrapped at the origin, and republished along a chain.

    Args:
        payloads: what is in them.
        keys: their keys; by default bytes, texts and none.
        max_links: links of their chains at most.
    """
    found_keys = st.none() | st.binary(max_size=8) | st.text(max_size=8) if keys is None else keys
    time_ms = draw(st.integers(1, _LATEST_MS))
    event_id = draw(st.binary(min_size=16, max_size=16))
    value = wrap(draw(payloads), key=draw(found_keys), timestamp_ms=time_ms, event_id=event_id)
    for link in draw(chains(max_links=max_links)):
        at = Coordinates(
            topic=link.topic,
            topic_id=link.topic_id,
            partition=link.partition,
            offset=link.offset,
            leader_epoch=link.leader_epoch,
        )
        value = republish(
            read(value),
            at,
            draw(payloads),
            output=link.output,
            key=draw(found_keys),
            shard=link.shard,
            ordinal=link.ordinal,
            of=link.of,
        )
    return value


def feeds(
    payloads: Mapping[str, st.SearchStrategy[Any]],
    *,
    keys: st.SearchStrategy[bytes | str | None] | None = None,
    max_records: int = 20,
) -> st.SearchStrategy[list[Feed]]:
    """Inputs for `prove` and `prove_schedule`: records of some topics, one after the other.

    Args:
        payloads: topic -> what is fed to it.
        keys: of the records; by default none.
        max_records: records at most.
    """
    records = [
        st.builds(Feed, st.just(topic), values, key=st.none() if keys is None else keys)
        for topic, values in payloads.items()
    ]
    return st.lists(st.one_of(records), min_size=1, max_size=max_records)


@st.composite
def schedules(  # noqa: D417 - Hypothesis gives `draw`
    draw: st.DrawFn, records: int, *, max_faults: int = 3, max_calls: int = 200, upstream: bool = False
) -> Schedule:
    """Schedules for `prove_schedule`.

    Args:
        records: how many inputs there are; all of them are fed.
        max_faults: faults at most.
        max_calls: calls of the service before which they may happen. Those that are never made are no faults.
        upstream: whether there may be a service upstream, which publishes again.
    """
    whats: st.SearchStrategy[What] = st.sampled_from(WHATS)
    whens: st.SearchStrategy[When] = st.sampled_from(["before", "after"])
    faults = draw(st.lists(st.builds(Fault, whats, st.integers(0, max_calls), whens), max_size=max_faults))
    again = upstream and draw(st.booleans())
    rewinds = draw(st.lists(st.sampled_from([0, 1]), unique=True)) if again else []
    return Schedule(
        tuple(range(records)),
        tuple(faults),
        tuple(sorted(rewinds)),
        upstream=again,
        batch=0 if again else draw(st.sampled_from([0, 1, 3])),
        block=draw(st.integers(1, 4)),
        rows=draw(st.integers(1, 4)),
    )
