"""Goal: who starts a service sees a line at once, before anything is imported that takes time."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable

import pytest

from sqe_chain import cli

Started = Callable[..., list[str]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Started:
    """What standard error holds of a start with some arguments, where nothing else can be imported."""
    monkeypatch.setitem(sys.modules, "sqe_chain.cli.commands", None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def start(*arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["sqe-chain", *arguments])
        with pytest.raises((SystemExit, ImportError)):
            cli.main()
        return capsys.readouterr().err.splitlines()

    return start


def test_a_service_reports_that_it_starts(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "  starting   pid=" in started("run", "screws:totals")[0]
    shown = json.loads(started("run", "screws:totals", "--log-json")[0])
    assert [*shown][:2] == ["timestamp", "event"]
    assert shown["event"] == "starting"
    monkeypatch.setenv("SQE_CHAIN_LOG_JSON", "1")
    assert json.loads(started("run", "screws:totals")[0])["event"] == "starting"


@pytest.mark.parametrize("arguments", [["run", "--help"], ["run"], ["doctor", "screws:totals"]])
def test_other_commands_and_help_do_not(started: Started, arguments: list[str]) -> None:
    assert not any("starting" in line for line in started(*arguments))
