"""The oracle: by what the operators' list has of each input, its outputs count once or never for any reader of the topic.

It reads records with the wire format and counts; it knows nothing of plans, commits or decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.envelope.message import read
from sqe_chain.ports import Message
from tests.lab.failed_worlds.flows import LAST, fragile, made

Partitions = Mapping[int, Sequence[Message]]


Texts = tuple[str, ...]
"""The texts of one record: a flow takes all of them, or skips all."""


def texts_of(message: Message, *, raw: bool = False) -> Texts:
    """The texts that a record has."""
    value = message.value() or b""
    payloads = (value,) if raw else read(value).payloads
    return tuple(StringValue.FromString(payload or b"").value for payload in payloads)


def count(partitions: Partitions, begins: Mapping[int, int]) -> Counter[Texts]:
    """What a reader counts that begins at these offsets: what is not beyond the last position of its lane is a replay."""
    counted, marks = Counter[Texts](), dict[tuple[int, int], bytes]()
    for partition, messages in partitions.items():
        for message in messages:
            if message.offset() < begins.get(partition, 0):
                continue
            chain = read(message.value() or b"").chain
            lane, position = chain.lane(), chain.position()
            if position > marks.get((partition, lane), b""):
                marks[partition, lane] = position
                counted[texts_of(message)] += 1
    return counted


def single(counted: Counter[Texts]) -> Counter[str]:
    """How often each text counts."""
    texts = Counter[str]()
    for own, times in counted.items():
        for text in own:
            texts[text] += times
    return texts


def difference(
    flow: str, inputs: Iterable[Texts], said: Mapping[Texts, str], counted: Counter[str], *, says_all: bool
) -> str:
    """What a reader from the beginning counts wrongly; empty if it is right.

    Args:
        flow: name of the flow that made what it reads.
        inputs: what the flow has read.
        said: what has become of those that it has skipped: released, or something else.
        counted: what the reader counts.
        says_all: the list has each input that the flow has skipped.
    """
    left = Counter(counted)
    for own in sorted(inputs):
        status, may_fail = said.get(own, ""), any(fragile(flow, text) for text in own)
        made_by = {
            version: [output for text in own for output in made(flow, version, text)]
            for version in (range(LAST + 1) if may_fail else (0,))
        }
        # What a version makes is the same for texts that never fail.
        by = {version: [output for output in outputs if left[output]] for version, outputs in made_by.items()}
        found = [version for version, outputs in by.items() if outputs]
        if status not in ("", "released"):
            if found:
                return f"{own} is {status}, and counts"
            continue
        if len(found) > 1 and may_fail:
            exact = [version for version in found if all(left[output] for output in made_by[version])]
            if len(exact) != 1 or any(set(by[version]) - set(made_by[exact[0]]) for version in found):
                return f"{own} counts by code of versions {found}"
            found = exact
        if not found:
            if made_by[LAST if may_fail else 0] and (says_all or status or not may_fail):
                return f"{own} is {status or 'not skipped'}, and never counts"
            continue
        for output in made_by[found[0]]:
            if left.pop(output, 0) != 1:
                return f"{output} counts {counted[output]} times"
    left = +left
    return f"nobody can have made {dict(left)}" if left else ""
