"""The oracle: each root by the corrected functions alone. It knows roots, seams and functions, and nothing of lanes, marks or plans."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from sqe_chain.adapters.memory import MemoryLog
from tests.lab.revision_worlds.flows import made

Seam = Mapping[int, int] | None
"""Partition of raw -> the first offset that counts, where that is not 0; None: all."""
Root = tuple[int, int]


def begun_revisions(log: MemoryLog, family: str, topic: str) -> dict[int, Seam]:
    """The revisions of an output that have begun, as operators read them; the first record of one holds."""
    name, begun = f"{topic}.revisions", dict[int, Seam]()
    if name not in log.describe([name]):
        return begun
    for record in log.kept(name, 0).values():
        if record.key() != family.encode():
            continue
        raw = json.loads(record.value() or b"")
        since = raw["since"]
        # Nothing had come from raw when it began: so it counts for none of its roots.
        never: dict[str, list[int]] = {str(partition): [0, 1 << 60] for partition in range(8)}
        own = next((one["from"] for one in since or () if one["topic"] == "raw"), never)
        begun.setdefault(
            raw["revision"],
            None if since is None else {int(partition): place[1] for partition, place in own.items()},
        )
    return begun


def versions(revisions: Mapping[int, Seam], root: Root) -> list[int]:
    """The versions of a flow that may have made what counts of a root: the newest revision that covers it, or a later one.

    A root before the seam that was not published yet is made by whatever code runs then.
    """
    covering = [1]
    for number, since in revisions.items():
        if since is None or since.get(root[0], 0) <= root[1]:
            covering.append(number)
    newest = max(covering)
    return [newest, *sorted(number for number in revisions if number > newest)]


def mixed(texts: Counter[str]) -> str:
    """What one state must never have: a text twice, or what two versions of a flow made of one input. Empty: it has neither."""
    twice = [text for text, count in texts.items() if count > 1]
    if twice:
        return f"{twice[0]} counts {texts[twice[0]]} times"
    by: dict[tuple[str, str], set[str]] = {}
    for text in texts:
        steps = text.split("/")
        for at in range(1, len(steps)):
            name, _, version = steps[at].partition("v")
            by.setdefault(("/".join(steps[:at]), name[0]), set()).add(version)
    for (before, flow), found in by.items():
        if len(found) > 1:
            return f"{before} counts by versions {sorted(found)} of {flow}"
    return ""


def wrong_texts(
    texts: Counter[str], roots: Sequence[Root], revisions: Mapping[str, Mapping[int, Seam]]
) -> str:
    """What a reader of all counts wrongly; empty: nothing."""
    flows, left = [*revisions], set(texts)
    for root in roots:
        name = f"{root[0]}.{root[1]}"
        own = {text for text in texts if text.split("/")[0] == name}
        left -= own
        if not _explains(own, name, root, flows, revisions):
            return (
                f"root {name}: {sorted(own)} is what no version gives of {_allowed(flows, revisions, root)}"
            )
    return f"nobody can have made {sorted(left)}" if left else ""


def _allowed(
    flows: Iterable[str], revisions: Mapping[str, Mapping[int, Seam]], root: Root
) -> dict[str, list[int]]:
    return {flow: versions(revisions[flow], root) for flow in flows}


def _explains(
    own: Collection[str],
    text: str,
    root: Root,
    flows: Sequence[str],
    revisions: Mapping[str, Mapping[int, Seam]],
) -> bool:
    """Whether these are what one of the allowed versions of each flow gives of a text."""
    if not flows:
        return set(own) == {text}
    first, *rest = flows
    for version in versions(revisions[first], root):
        children = made(first, version, text)
        parts = [{one for one in own if one == child or one.startswith(f"{child}/")} for child in children]
        if sum(map(len, parts)) == len(own) and all(
            _explains(part, child, root, rest, revisions) for part, child in zip(parts, children, strict=True)
        ):
            return True
    return False
