"""Goal: text of messages, users and servers forges no line and drives no terminal, whichever command or log shows it.

Method: words full of control characters go through a flow that refuses some of them; each command that shows anything of it is run. What has a
console of its own (the panel, a load) is shown alone.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import typer
from rich.text import Text
from typer.testing import Result

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.cli import console, load
from sqe_chain.cli.failed import _print_release
from sqe_chain.cli.panel import LivePanel
from sqe_chain.errors import ConfigurationError
from sqe_chain.operations.failed import ReleaseResult
from sqe_chain.plans.events import Notice, Standby, Waiting
from sqe_chain.runtime.lines import Lines
from sqe_chain.runtime.statistics import Statistics

FORGED = "2026-01-01 00:00:00  committed  forged=1"
HOSTILE = f"x\x1b]0;owned\x07\x1b[2J\n{FORGED}\r{FORGED}\u2028{FORGED}\x85{FORGED}\x9b31m\u202e\x7f[bold red][/nothing]"
KAFKA = ("--kafka", "broker:9092")
RUN = (*KAFKA, "--engine", "inprocess", "--once", "--allow-weak-durability", "--max-excluded", "1000000")
Command = Callable[..., Result]


def assert_tame(text: str) -> None:
    lines = text.split("\n")
    assert all(line.isprintable() for line in lines), [line for line in lines if not line.isprintable()]
    assert not [line for line in lines if line.lstrip(" │┃").startswith(FORGED[:19])]


@pytest.fixture
def fed(
    flows: ModuleType, feed: Callable[..., None], log: MemoryLog, command: Command, store: str
) -> Callable[..., Result]:
    """The command, after flows have read and refused what is hostile, with a header and a type that are so, too."""
    flows.broken.add(HOSTILE)
    log.append("words", 0, b"\x1b[2J", key=HOSTILE.encode(), headers=[(HOSTILE, HOSTILE.encode())])
    feed(HOSTILE, "b", HOSTILE)
    for flow in ("skips", "letters"):
        assert_tame(command("run", f"cli_flows:{flow}", *RUN, "--store", f"{store}-{flow}").output)
    return command


@pytest.mark.parametrize(
    "arguments",
    [
        ("failed", "list", "cli_flows:skips", *KAFKA, "--store", "STORE-skips", "--state", "all"),
        ("failed", "list", "cli_flows:skips", *KAFKA, "--store", "STORE-skips", "--state", "all", "--json"),
        ("peek", "words", *KAFKA),
        ("peek", "words", *KAFKA, "--json"),
        ("peek", "cli-letters.dead-letters", *KAFKA),
        ("peek", "cli-letters.dead-letters", *KAFKA, "--json"),
        (
            "failed",
            "release",
            "cli_flows:letters",
            *KAFKA,
            "--store",
            "STORE-letters",
            "--engine",
            "inprocess",
        ),
        ("run", "cli_flows:counts", *RUN, "--store", "STORE"),
        ("run", "cli_flows:counts", *RUN, "--store", "STORE", "--log-json"),
        ("run", "cli_flows:counts", *RUN, "--store", "STORE", "--traceback"),
        ("state", "cli_flows:skips", "per-word", "--store", "STORE-skips"),
        ("state", "cli_flows:skips", "per-word", "--store", "STORE-skips", "--json"),
        ("flows", "list", "--store", "STORE-skips"),
        ("why-not", "cli_flows:skips", "words[0]@0", *KAFKA, "--store", "STORE-skips"),
        ("why-not", "cli_flows:skips", "words[0]@1", *KAFKA, "--store", "STORE-skips"),
        ("why-not", "cli_flows:skips", "words[0]@1", *KAFKA, "--store", "STORE-skips", "--json"),
        ("why-not", "cli_flows:skips", f"{HOSTILE}[0]@1", *KAFKA, "--store", "STORE-skips"),
        ("trace", "cli_flows:skips", "per-word", HOSTILE, *KAFKA, "--store", "STORE-skips"),
        ("trace", "cli_flows:skips", HOSTILE, "b", *KAFKA, "--store", "STORE-skips"),
        ("audit", "cli_flows:skips", "--stage", HOSTILE, *KAFKA, "--store", "STORE-skips"),
        ("failed", "list", "cli_flows:letters", *KAFKA, "--store", "STORE-letters"),
        ("failed", "list", "cli_flows:letters", *KAFKA, "--store", "STORE-letters", "--json"),
        ("failed", "list", "cli_flows:letters", "words[0]@0", *KAFKA, "--store", "STORE-letters"),
        ("failed", "list", "cli_flows:letters", "words[0]@1", *KAFKA, "--store", "STORE-letters"),
        ("doctor", "cli_flows:letters", *KAFKA, "--store", "STORE-letters"),
        ("peek", HOSTILE, *KAFKA),
        ("run", HOSTILE, *RUN),
    ],
    ids=lambda arguments: " ".join(arguments[:2])[:30],
)
def test_no_command_shows_what_a_terminal_obeys(fed: Command, store: str, arguments: tuple[str, ...]) -> None:
    result = fed(*(one.replace("STORE", store) for one in arguments))
    assert result.output, "it shows something"
    assert_tame(result.output)


KEYS = {
    "controls": HOSTILE,
    "HTML": '<img src=x onerror="alert(1)"></title><script>alert(1)</script>',
    "right to left": "a\u202egpj.exe\u2066\u200f",
    "long": "long " * 65_000,
    "long and hostile": HOSTILE * 1_500,
}
"""The long ones make records of a megabyte, which is as much as a topic takes."""


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize(
    "arguments",
    [
        ("state", "cli_flows:counts", "per-word", "--store", "STORE"),
        ("state", "cli_flows:counts", "per-word", "--store", "STORE", "--json"),
        ("trace", "cli_flows:counts", "per-word", "KEY", *KAFKA, "--store", "STORE"),
        ("trace", "cli_flows:counts", "per-word", "KEY", *KAFKA, "--store", "STORE", "--format", "json"),
        ("trace", "cli_flows:counts", "per-word", "KEY", *KAFKA, "--store", "STORE", "--format", "html"),
        ("why-not", "cli_flows:counts", "words[0]@0", *KAFKA, "--store", "STORE"),
        ("why-not", "cli_flows:counts", "words[0]@0", *KAFKA, "--store", "STORE", "--json"),
        ("audit", "cli_flows:counts", *KAFKA, "--store", "STORE"),
        ("peek", "words", *KAFKA),
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[-1]}".replace("STORE", "text"),
)
def test_hostile_keys_are_shown_tamely(
    flows: ModuleType,
    feed: Callable[..., None],
    command: Command,
    store: str,
    key: str,
    arguments: tuple[str, ...],
) -> None:
    assert flows.counts
    feed(key)
    command("run", "cli_flows:counts", *RUN, "--store", store)
    result = command(*({"STORE": store, "KEY": f"0x{key.encode().hex()}"}.get(one, one) for one in arguments))
    assert result.exit_code == 0, result.output[:2_000]
    assert_tame(result.output)
    if "html" in arguments:
        assert not re.search("<(img|script)", result.stdout)
    if "json" not in " ".join(arguments) and arguments[0] not in {"state", "peek"}:
        assert len(result.output) < 20_000


@pytest.mark.parametrize("as_json", [True, False])
def test_a_line_of_the_log_is_one_line(as_json: bool) -> None:
    stream = io.StringIO()
    lines = Lines("f", as_json=as_json, stream=stream)
    events = (Notice(HOSTILE, HOSTILE), Waiting("read", HOSTILE, 5), Standby(1, HOSTILE))
    for event in events:
        lines.event(event)
    assert_tame(stream.getvalue())
    found = stream.getvalue().splitlines()
    assert len(found) == len(events)
    if as_json:
        assert json.loads(found[0])["text"] == HOSTILE, "JSON says the same"


@pytest.mark.parametrize("traceback", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("error", [ConfigurationError, ValueError])
def test_an_error_is_one_line(
    error: type[Exception], as_json: bool, traceback: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit), console.report_errors(traceback=traceback, as_json=as_json):
        raise error(HOSTILE)
    shown = capsys.readouterr().err
    assert_tame(shown)
    assert len(shown.splitlines()) == 1 or traceback


def test_what_has_a_console_of_its_own_is_tame_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console.SafeConsole, "is_terminal", property(lambda _: True))
    found = load.Loading()
    found.event(Notice(HOSTILE))
    panel = LivePanel(console.ERR, Statistics(lambda: 0.0), "f", HOSTILE)
    panel.event(Notice(HOSTILE))
    _print_release(ReleaseResult(stuck=1, reasons=[(HOSTILE, HOSTILE)]))
    shown = capsys.readouterr().err
    assert shown.count("forged=1") >= 4 * 4
    assert_tame(shown)


def test_a_console_obeys_no_markup_and_no_control(capsys: pytest.CaptureFixture[str]) -> None:
    console.OUT.print(Text("one\ntwo\x1b[2J"))
    console.OUT.print("[bold]x[/]\x9b")
    assert capsys.readouterr().out == "one\ntwo\\x1b[2J\n[bold]x[/]\\x9b\n"


def test_commands_write_through_the_safe_consoles_alone() -> None:
    for path in Path(console.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name not in {"console.py", "__init__.py"}:
            assert "Console(" not in text, path.name
            assert not re.search(r"(?<![\w.])print\(|sys\.stdout|typer\.echo|json\.dumps\(.*\\n", text), (
                path.name
            )
