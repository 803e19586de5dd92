"""Goal: what tasks get and give about revisions is the same in another process. Method: it is packed as engines pack it."""

from __future__ import annotations

import pickle
from collections import Counter

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.revisions import Revision
from sqe_chain.task.results import PartitionEnd, Report, Sections
from sqe_chain.task.revised import Followed, Newer


def test_what_tasks_get_and_give_is_packed_as_it_is() -> None:
    followed = Followed({"up/out": (Revision(2, {b"r" * 16: {0: (1, 7)}}), Revision(3))})
    end = PartitionEnd("in", 0, PartitionMarks("in", bytes(16), 0), superseded=2)
    end.newer = Counter({Newer("up/out", 4, "in"): 3})
    packed = pickle.dumps((Sections.of(followed), Report(ends=[end])))
    sections, report = pickle.loads(packed)  # noqa: S301 - packed here
    assert sections.find(Followed) == followed
    assert (report.ends[0].superseded, report.ends[0].newer) == (2, end.newer)
