"""Goal: an export and an import keep their claim alive, and end when they are asked to.

Method: the command in this process, broker and stores in memory; the heartbeat comes with each line instead of each second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import Result

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.cli import listening, move
from sqe_chain.runtime.launching import Prepared

Command = Callable[..., Result]
Feed = Callable[..., None]
KAFKA = ("--kafka", "broker:9092")
RUN = (*KAFKA, "--engine", "inprocess", "--once", "--allow-weak-durability")


@pytest.fixture
def ran(flows: ModuleType, feed: Feed, command: Command, store: str) -> str:
    """A flow that has counted three words. Returns the address of its store."""
    assert flows.counts
    feed("one", "three", "seven")
    assert command("run", "cli_flows:counts", *RUN, "--store", store).exit_code == 0
    return store


def home_of(store: str) -> tuple[str | None, int]:
    """The run that holds the claim, and its heartbeats."""
    home, beats = MemoryStore(store.removeprefix("memory://")).home("cli-counts")
    return None if home is None else home.run_id, beats


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the claim was alive at each line, with a heartbeat for each."""
    answers: list[bool] = []

    class Pulse:
        def __init__(self, beat: Callable[[], bool], *_: object) -> None:
            self.beat = beat

        def __enter__(self) -> None:
            monkeypatch.setattr(move, "with_counter", self.count)

        def __exit__(self, *_: object) -> None:
            pass

        def count(self, items: Iterable[str], _what: str) -> Iterator[str]:
            for item in items:
                answers.append(self.beat())
                yield item

    monkeypatch.setattr(listening, "Heartbeat", Pulse)
    return answers


def test_the_claim_is_alive_while_states_are_moved(
    ran: str, command: Command, tmp_path: Path, alive: list[bool]
) -> None:
    file, fresh = str(tmp_path / "states.jsonl"), f"{ran}-new"
    before = home_of(ran)[1]
    exported = command("export", "cli_flows:counts", file, *KAFKA, "--store", ran)
    assert exported.exit_code == 0, exported.stderr
    assert len(alive) == 5  # the plan, three states, the digest
    assert all(alive)
    assert home_of(ran) == ("", before + 5)
    alive.clear()
    imported = command(
        "import", "cli_flows:counts", file, *KAFKA, "--store", fresh, "--allow-weak-durability"
    )
    assert imported.exit_code == 0, imported.stderr
    assert all(alive)
    assert home_of(fresh)[1] > 0


@pytest.mark.parametrize("lines", [0, 2])
def test_a_move_ends_when_it_is_asked_to(
    ran: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    file, fresh = tmp_path / "states.jsonl", f"{ran}-new"
    assert command("export", "cli_flows:counts", str(file), *KAFKA, "--store", ran).exit_code == 0
    for arguments in (
        ("export", "cli_flows:counts", str(tmp_path / "again.jsonl"), *KAFKA, "--store", ran),
        ("import", "cli_flows:counts", str(file), *KAFKA, "--store", fresh, "--allow-weak-durability"),
    ):
        answers = iter([False] * lines)
        monkeypatch.setattr(Prepared, "asked_to_stop", lambda _self, answers=answers: next(answers, True))
        stopped = command(*arguments)
        assert (stopped.exit_code, "asked to stop" in stopped.stderr) == (3, True), stopped.stderr
    assert [path.name for path in tmp_path.glob("*.json*")] == [file.name]
    assert home_of(ran)[0] == ""
    assert home_of(fresh)[0] in ("", None)
