"""The routes of what moments have caused: by which republishers its inputs have come, in a header of its records.

A reader finds in chains which republishers have to pass on what it waits for. The chain of what a moment has caused names no
topic, since its lane must not depend on inputs. So without this header an outage of a republisher would count as silence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from sqe_chain.envelope.carrier import ROUTES_HEADER
from sqe_chain.ports import Headers
from sqe_chain.task.event_times import Hop
from sqe_chain.task.inputs import Inputs
from sqe_chain.task.roots import is_moment, moment_in

Header = tuple[str, bytes]
_MAX_BYTES: Final = 16_384


def routes_header(hops: Sequence[Hop]) -> Header:
    """The header of records whose chains name no topics.

    Args:
        hops: the routes of all that the flow reads, one after the other, the flow itself as the last hop of each.
    """
    return ROUTES_HEADER, json.dumps([*hops], separators=(",", ":")).encode()


def routes_in(headers: Headers | None) -> tuple[Hop, ...]:
    """The routes that a record names; none if it names none that can be read."""
    for name, content in headers or ():
        if name != ROUTES_HEADER or not content or len(content) > _MAX_BYTES:
            continue
        try:
            return tuple((str(flow), str(topic)) for flow, topic in json.loads(content))
        except (ValueError, TypeError):
            return ()
    return ()


def with_routes(
    numbers: Sequence[int],
    lane_at: Sequence[int],
    inputs: Inputs,
    headers: Sequence[Headers | None],
    own: Header | None,
) -> Sequence[Headers | None]:
    """The headers of records, with their routes where their chains name no topics.

    Args:
        numbers: of each record, the number of its input; those of one lane have chains that differ in offsets alone.
        lane_at: of each, the index of its lane.
        inputs: the inputs.
        headers: the headers.
        own: that of the flow; None: it repeats those of its inputs.
    """
    if own is None:
        given = inputs.headers()
        if given is None:
            return headers
        passed = [_of(given[number]) for number in numbers]
    else:
        firsts = dict(zip(reversed(lane_at), reversed(numbers), strict=True))
        caused = {lane: _names_no_topic(inputs, number) for lane, number in firsts.items()}
        passed = [own if caused[lane] else None for lane in lane_at]
    if not any(passed):
        return headers
    return [
        known if header is None else [*(known or ()), header]
        for known, header in zip(headers, passed, strict=True)
    ]


def _of(headers: Headers | None) -> Header | None:
    return next(((name, content or b"") for name, content in headers or () if name == ROUTES_HEADER), None)


def _names_no_topic(inputs: Inputs, number: int) -> bool:
    origin = inputs.origin(number)
    return is_moment(origin.tp.topic) or moment_in(origin.chain_bytes)
