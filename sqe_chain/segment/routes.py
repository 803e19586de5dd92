"""The ways of a writer's messages: through which republishers they have come.

A republisher that reads several topics writes messages of several ways. It is silent only if nothing can come by any of
them, so all are remembered, one after the other.
"""

from __future__ import annotations

Hop = tuple[str, str]
"""A republisher on the way: name of its flow, and a topic that it reads."""


def with_route(known: tuple[Hop, ...], route: tuple[Hop, ...]) -> tuple[Hop, ...]:
    """Ways through republishers, one after the other, with one more, if it is not among them.

    Args:
        known: the ways so far.
        route: the republishers of one way, from the root on.

    >>> with_route((("up", "a"),), (("up", "b"),))
    (('up', 'a'), ('up', 'b'))
    >>> with_route((("up", "a"), ("up", "b")), (("up", "b"),))
    (('up', 'a'), ('up', 'b'))
    """
    size = len(route)
    among = any(known[begin : begin + size] == route for begin in range(len(known) - size + 1))
    return known if among else known + route
