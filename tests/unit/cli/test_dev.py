"""`sqe-chain dev status` shows full addresses on narrow terminals; `fetch` downloads only the named servers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sqe_chain.cli.commands import application
from sqe_chain.ext.dev import __main__ as command
from sqe_chain.ext.dev import command as commands
from sqe_chain.ext.dev.machine import DevMachine, DevServer


def test_the_status_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / ("deep" * 30)
    place.mkdir()
    server = {
        "kind": "cassandra",
        "address": f"cassandra://127.0.0.1:9042/{'keyspace' * 12}",
        "port": 9042,
        "pid": os.getpid(),
        "started": 1,
        "data_dir": str(place),
        "log_file": str(place / "cassandra" / "cassandra.log"),
        "running": True,
    }
    (place / "servers.json").write_text(json.dumps([server]))
    monkeypatch.setenv("COLUMNS", "40")
    shown = CliRunner().invoke(application(), ["dev", "status", "--dir", str(place)])
    lines = shown.output.splitlines()
    assert lines[0] == str(place)
    assert "stopped" in lines[1]
    assert lines[1].endswith(str(server["address"]))
    assert lines[2].endswith(f"log: {server['log_file']}")


@pytest.mark.parametrize(("options", "store"), [((), "redis"), (("--postgres",), "postgres")])
def test_up_prints_what_a_terminal_needs_for_a_service(
    options: tuple[str, ...], store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = {
        "kafka": "127.0.0.1:19092",
        "redis": "redis://127.0.0.1:16379",
        "postgres": "postgres://[::1]/test",
    }
    servers = [
        DevServer(kind, address, 1, 1, 1, str(tmp_path), "log", running=True)
        for kind, address in addresses.items()
    ]
    monkeypatch.setattr(commands, "fetch", lambda *_: None)
    monkeypatch.setattr(commands, "_make_tables", lambda *_: None)

    def up(kinds: Sequence[str], *_: object, starting: Callable[[str], None]) -> DevMachine:
        starting(kinds[0])
        return DevMachine(tmp_path, tuple(servers))

    monkeypatch.setattr(commands, "up", up)
    lines = CliRunner().invoke(application(), ["dev", "up", *options]).output.splitlines()
    assert lines[0] == "starting kafka"
    wanted = zip(
        ("KAFKA", "STORE", "ENGINE"), (addresses["kafka"], addresses[store], "inprocess"), strict=True
    )
    assert lines[-3:] == [f"  export SQE_CHAIN_{name}={value}" for name, value in wanted]


def test_only_what_is_named_is_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(command, "fetch", lambda _report, kinds: asked.append(tuple(kinds)))
    assert command.main(["fetch", "kafka", "redis"]) == 0
    assert command.main(["fetch"]) == 0
    assert asked == [("kafka", "redis"), ("kafka", "redis", "cassandra", "postgres")]
    for wrong in ([], ["fetch", "mysql"], ["other"]):
        assert command.main(wrong) == 2
    assert "usage" in capsys.readouterr().err
    assert len(asked) == 2
