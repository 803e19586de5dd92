"""The ways of a writer's messages: through which republishers they have come.

A republisher that reads several topics writes messages of several ways. It is silent only if nothing can come by any of
them, so all are remembered, one after the other.
"""

from __future__ import annotations

Hop = tuple[str, str]
"""A republisher on the way: name of its flow, and a topic that it reads."""


def with_route(known: tuple[Hop, ...], more: tuple[Hop, ...]) -> tuple[Hop, ...]:
    """Ways through republishers, one after the other, with more of them, unless they are among them.

    Republishers are asked in this order, so a path is among others if its republishers occur there in their order. What comes
    of merging what several partitions know is the same for all of them, and does not grow any more.

    Args:
        known: the ways so far.
        more: one way, from the root on; or several, one after the other.

    >>> with_route((("up", "a"),), (("up", "b"),))
    (('up', 'a'), ('up', 'b'))
    >>> with_route((("up", "a"), ("up", "b")), (("up", "b"),))
    (('up', 'a'), ('up', 'b'))
    >>> with_route((("up", "b"),), (("up", "a"), ("up", "b")))
    (('up', 'a'), ('up', 'b'))
    """
    if _is_among(more, known):
        return known
    return more if _is_among(known, more) else known + more


def _is_among(some: tuple[Hop, ...], others: tuple[Hop, ...]) -> bool:
    """Whether these occur among others in their order."""
    left = iter(others)
    return all(hop in left for hop in some)
