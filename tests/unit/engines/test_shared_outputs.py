"""Several processes hand outputs to the service at the same time, and it finds each block where its place is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sqe_chain.engines.shared_outputs import SharedOutputs
from sqe_chain.engines.workers import Team
from sqe_chain.ports import Output
from tests.support import worker_commands as commands


@pytest.fixture
def shared() -> Iterator[SharedOutputs]:
    found = SharedOutputs(wanted=True)
    found.begin()
    yield found
    found.release()


def test_what_processes_put_at_the_same_time_is_whole(shared: SharedOutputs) -> None:
    assert shared.file is not None
    team = Team(3, "workers of a test")
    try:
        puts = [
            partial(commands.put_outputs, shared_file=shared.file, mark=mark, blocks=300) for mark in range(3)
        ]
        places = team.call(puts)
    finally:
        team.close()
    for mark, own in enumerate(places):
        shared.places = own
        blocks = list(shared.blocks())
        assert blocks == [commands.outputs_of(mark, number) for number in range(300)]


def test_a_task_on_another_machine_hands_over_nothing(shared: SharedOutputs, tmp_path: Path) -> None:
    """Where the path is nothing, and where it is a file of somebody else."""
    shared_file, other = shared.file, tmp_path / "other"
    assert shared_file is not None
    other.touch()
    for path in (tmp_path / "nothing", other):
        assert replace(shared_file, path=str(path)).put([_OUTPUT]) is None
    assert other.read_bytes() == b""


def test_late_tasks_of_an_earlier_attempt_cannot_reach_the_next_one(shared: SharedOutputs) -> None:
    before = shared.file
    assert before is not None
    shared.begin()
    assert before.put([_OUTPUT]) is None


def test_memory_is_given_back(shared: SharedOutputs) -> None:
    assert shared.file is not None
    path, label = Path(shared.file.path), shared.file.label
    assert str(path.readlink()) == label
    shared.release()
    shared.release()
    assert not path.is_symlink() or str(path.readlink()) != label


_OUTPUT: Output = ("t", 0, b"k", b"v", None, 1)
