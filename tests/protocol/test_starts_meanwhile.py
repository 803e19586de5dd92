"""A run starts while another one reads on: at whatever call, it goes on, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import Superseded
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.plans.events import When
from sqe_chain.testing import Rehearsal
from tests.support.file_flows import expected, published_once, rows_flow, rows_of, totals_flow, write
from tests.support.number_flows import passing_on

OLD, NEW = rows_of(0, 2), rows_of(1, 5)


def test_another_run_reads_and_commits_what_is_new_while_this_one_starts() -> None:
    probe = passing_on()
    probe.start()
    calls = probe.script.calls
    assert calls > 3
    for at in range(calls):
        rehearsal = passing_on()
        rehearsal.start()

        def read_on(rehearsal: Rehearsal = rehearsal) -> None:
            rehearsal.feed("in", Int64Value(value=1))
            rehearsal.run_until_caught_up()

        rehearsal.meanwhile(read_on, at=at, when="after")
        rehearsal.start()
        rehearsal.cancel()
        rehearsal.feed("in", Int64Value(value=2))
        rehearsal.run_until_caught_up()
        published = {envelope.payload_as(Int64Value).value for envelope in rehearsal.published("out")}
        assert published >= {2}, at
        assert len(rehearsal.log.records("in")) == len(published), at


def loading(folder: Path, flow_of: Callable[[Path], Flow]) -> Rehearsal:
    folder.mkdir()
    write(folder / "0.csv", OLD)
    load = Rehearsal(flow_of(folder), settings=settings_of(max_records=2, takeover=True))
    load.run_until_caught_up()
    return load


@pytest.mark.parametrize("flow_of", [totals_flow, rows_flow])
@pytest.mark.parametrize("when", ["before", "after"])
def test_another_run_reads_a_part_of_a_new_file_while_this_one_starts(
    tmp_path: Path, flow_of: Callable[[Path], Flow], when: When
) -> None:
    """What this run has seen of the folder before it claimed the flow is older than the plan that it finds."""
    probe = loading(tmp_path / "probe", flow_of)
    before = probe.script.calls
    probe.start()
    calls = probe.script.calls - before
    assert calls > 5
    for at in range(calls):
        folder = tmp_path / str(at)
        load = loading(folder, flow_of)

        def read_on(load: Rehearsal = load, folder: Path = folder) -> None:
            write(folder / "1.csv", NEW)
            load.batch()

        load.meanwhile(read_on, at=at, when=when)
        with suppress(Superseded):
            load.start()
        load.cancel()
        write(folder / "1.csv", NEW)  # the same; a fault after the last call does not come
        load.run_until_caught_up()
        if load.flow.stages:
            assert load.states("per-robot") == expected([OLD, NEW]), at
        else:
            assert published_once(load) == Counter(row["screws"] for row in [*OLD, *NEW]), at
