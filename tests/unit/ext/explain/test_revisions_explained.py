"""Goal: what explains a flow knows which revisions count for it: why-not, trace, doctor and the page.

Method: messages of two revisions, before and after a rebuild.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.doctor.checks import examine
from sqe_chain.ext.doctor.facts import Gathering
from sqe_chain.ext.explain.audit import audit
from sqe_chain.ext.explain.fate import find_fate
from sqe_chain.ext.explain.trace import trace
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.support.revised import begin_revision, counting, hop, message
from tests.unit.ext.web.test_flow_page import page_of

FIRST, SECOND = "clean/good", "clean/good@2"


@pytest.fixture
def behind() -> Rehearsal:
    """It follows revision 1, and has met revision 2, which begins at root 1."""
    found = Rehearsal(counting())
    for text, root, output in (("a", 0, FIRST), ("b", 1, FIRST)):
        found.feed("good", message(text, root, hop(output)), key="k")
    found.run_until_caught_up()
    begin_revision(found, "clean/good", 2, {0: 1})
    for text, root, output in (("B", 1, SECOND), ("B", 1, SECOND), ("z", 2, FIRST)):
        found.feed("good", message(text, root, hop(output)), key="k")
    found.run_until_caught_up()
    return found


def verdicts(found: Rehearsal) -> list[str]:
    env = environment_of(found)
    return [find_fate(env, ("good", 0, offset)).verdict for offset in range(5)]


def test_why_not_names_the_revision(behind: Rehearsal) -> None:
    assert verdicts(behind) == ["counted", "counted", "newer", "newer", "counted"]
    reason = find_fate(environment_of(behind), ("good", 0, 2)).reason
    assert reason == ("It is of revision 2 of clean/good, and the flow follows 1. A rebuild takes it up.")
    behind.rebuild()
    assert verdicts(behind) == ["counted", "superseded", "counted", "replay", "superseded"]
    reason = find_fate(environment_of(behind), ("good", 0, 1)).reason
    assert reason == "It is superseded by revision 2 of clean/good from raw[0]@1 on."


def test_trace_and_audit_have_the_records_that_count_alone(behind: Rehearsal) -> None:
    for places in ([0, 1, 4], [0, 2]):
        env = environment_of(behind)
        traced = trace(env, behind.flow.stages[0], [b"all"])
        assert [unit.place[2] for unit in traced.contributions] == places
        assert traced.equal
        audited = audit(env, behind.flow.stages[0], 10, random.Random(0))
        assert (audited.keys, audited.different) == (1, ())
        behind.rebuild()


def test_a_trace_does_not_begin_with_an_export_of_other_revisions(behind: Rehearsal, tmp_path: Path) -> None:
    export = tmp_path / "states.jsonl"
    export.write_text("\n".join(behind.exported()) + "\n")
    behind.rebuild()
    with pytest.raises(ConfigurationError, match="Expected an export of the same"):
        trace(environment_of(behind), behind.flow.stages[0], [b"all"], since=export)


def findings(found: Rehearsal) -> Iterator[tuple[str, str, str]]:
    gathering = Gathering(found.flow, found.log, found.stores, found.clock.now_ms, lambda _: None)
    for finding in examine(gathering.gather()):
        if "revision" in finding.check:
            yield finding.check, finding.subject, finding.text


def test_doctor_names_revisions_that_are_not_followed_before_any_message_of_them_came(
    behind: Rehearsal,
) -> None:
    ignored = "it has revision 2, and the flow follows 1: the messages of the newer one are ignored"
    assert [*findings(behind)] == [("newer-revision", "clean/good", ignored)]
    behind.rebuild()
    assert [*findings(behind)] == []
    begin_revision(behind, "clean/good", 3)
    assert [(check, text[:17]) for check, _, text in findings(behind)] == [
        ("newer-revision", "it has revision 3")
    ]
    behind.log.append("good.revisions", 0, b"?", b"clean/good", None, 0)
    assert [check for check, _, _ in findings(behind)] == ["unknown-revision"]


def test_the_page_shows_what_counts_and_what_is_ignored(behind: Rehearsal) -> None:
    with page_of(behind) as page:
        assert page.get("/api/flows/totals")["revisions"] == [
            {"output": "clean/good", "follows": 1, "newer": 2}
        ]
    behind.rebuild()
    with page_of(behind) as page:
        assert page.get("/api/flows/totals")["revisions"] == [
            {"output": "clean/good", "follows": 2, "newer": None}
        ]
