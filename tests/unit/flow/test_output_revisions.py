"""What a flow may declare of revisions of its outputs."""

from __future__ import annotations

import pytest

from sqe_chain.errors import FlowError
from sqe_chain.flow import Flow


def test_all_outputs_of_a_flow_have_one_revision() -> None:
    flow = Flow("clean")
    source = flow.source("raw", int, raw=True)
    source.to("good", partitions=1, revision=2)
    with pytest.raises(FlowError, match="output 'bad' has revision 1, output 'good' has 2"):
        source.to("bad", partitions=1)
    with pytest.raises(FlowError, match="revision"):
        source.to_sqe("sqe", partitions=1, process_id=1)


def test_names_with_an_at_are_refused_so_that_no_output_looks_like_a_revision() -> None:
    flow = Flow("clean")
    with pytest.raises(FlowError, match="output"):
        flow.source("raw", int, raw=True).to("good", name="good@2", partitions=1)
