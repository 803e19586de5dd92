"""Goal: the sum of ints is shown as it is. Method: the table of a state in this process, all in memory."""

from __future__ import annotations

from sqe_chain.cli.state import _cell
from sqe_chain.flow import Flow, sum_


def test_a_sum_of_ints_is_an_int_of_any_size_also_where_tables_have_floats() -> None:
    flow = Flow("sums")
    flow.source("in", dict, raw=True).aggregate("all", key="k", total=sum_("v"), mean=sum_("w"))
    (stage,) = flow.compile().stages
    codec = stage.codec
    assert codec is not None
    state = codec.new()
    state.total, state.mean = 2**60 + 1, 0.5
    plain = codec.to_json(state)
    assert [_cell(field, state, plain) for field in codec.fields()] == ["1152921504606846977", "0.5"]
