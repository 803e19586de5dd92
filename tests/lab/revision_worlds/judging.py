"""The oracle: each root by the corrected functions alone. It knows roots, seams and functions, and nothing of lanes, marks or plans."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from sqe_chain.adapters.memory import MemoryLog
from tests.lab.revision_worlds.flows import fails, made

Seam = Mapping[int, int] | None
"""Partition of raw -> the first offset that counts, where that is not 0; None: all."""
Root = tuple[int, int]
Letters = Mapping[tuple[str, str, int], bool]
"""Flow, text of an input that it has skipped, and the revision that would have had its outputs -> whether it was released."""


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
    texts: Counter[str],
    roots: Sequence[Root],
    revisions: Mapping[str, Mapping[int, Seam]],
    letters: Letters,
) -> str:
    """What a reader counts wrongly of these roots; empty: nothing."""
    for root in roots:
        name = f"{root[0]}.{root[1]}"
        own = {text for text in texts if text.split("/")[0] == name}
        if not _explains(own, name, root, [*revisions], revisions, letters):
            allowed = {flow: versions(known, root) for flow, known in revisions.items()}
            skipped = {key: value for key, value in letters.items() if key[1].split("/")[0] == name}
            return f"root {name}: {sorted(own)} is what no version gives of {allowed}, skipped {skipped}"
    return ""


def unknown_texts(texts: Counter[str], roots: Iterable[Root]) -> str:
    """What nobody can have made; empty: nothing."""
    names = {f"{partition}.{offset}" for partition, offset in roots}
    left = {text for text in texts if text.split("/")[0] not in names}
    return f"nobody can have made {sorted(left)}" if left else ""


def covered(
    roots: Iterable[Root], revisions: Mapping[str, Mapping[int, Seam]], followed: Mapping[str, int]
) -> list[Root]:
    """The roots for which the newest revision of each flow is one that a reader follows."""
    return [root for root in roots if all(versions(revisions[f], root)[0] <= followed[f] for f in revisions)]


def _explains(
    own: Collection[str],
    text: str,
    root: Root,
    flows: Sequence[str],
    revisions: Mapping[str, Mapping[int, Seam]],
    letters: Letters,
) -> bool:
    """Whether these are what one of the allowed versions of each flow gives of a text."""
    if not flows:
        return set(own) == {text}
    first, *rest = flows
    allowed = versions(revisions[first], root)
    released = letters.get((first, text, allowed[0]))
    if released is False:
        return not own
    for version in allowed:
        if released is None and fails(first, version, text):
            continue
        children = made(first, version, text)
        parts = [{one for one in own if one == child or one.startswith(f"{child}/")} for child in children]
        if sum(map(len, parts)) == len(own) and all(
            _explains(part, child, root, rest, revisions, letters)
            for part, child in zip(parts, children, strict=True)
        ):
            return True
    return False
