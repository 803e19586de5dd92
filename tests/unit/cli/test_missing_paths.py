"""Goal: a command that only reads creates nothing at a path that does not exist. Method: each such command with such a path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

KAFKA = ("--kafka", "broker:9092")
STORES = {
    "state": ("state", "cli_flows:counts", "per-word"),
    "state of windows": ("state", "cli_flows:windows", "per-window", "--waiting"),
    "failed list": ("failed", "list", "cli_flows:counts", *KAFKA),
    "flows list": ("flows", "list"),
    "flows forget": ("flows", "forget", "cli-counts", "--yes", *KAFKA),
    "readers": ("readers", "cli_flows:once"),
    "rebuild": ("rebuild", "cli_flows:counts", "--engine", "inprocess", *KAFKA),
    "rewind": ("rewind", "cli_flows:counts", "--to", "words[0]=0", "--engine", "inprocess", *KAFKA),
    "announce": ("announce", "cli_flows:counts", "--engine", "inprocess", *KAFKA),
    "export": ("export", "cli_flows:counts", "states.jsonl", *KAFKA),
    "import": ("import", "cli_flows:counts", "missing.jsonl", *KAFKA),
}
OTHERS = {
    **{f"dev {name}": ("dev", name, "--dir", "{}") for name in ("status", "down")},
    **{f"tables {name}": ("tables", name, "{}") for name in ("show", "compact", "vacuum")},
    "store init --check": ("store", "init", "sqlite://{}", "--check"),
    "dev down --delete": ("dev", "down", "--dir", "{}", "--delete"),
    **{name: (*words, "--store", "sqlite://{}") for name, words in STORES.items()},
}


def below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.mark.parametrize("missing", ["typo", "typo/below", "long" * 100])
@pytest.mark.parametrize("words", OTHERS.values(), ids=OTHERS)
@pytest.mark.usefixtures("flows", "log")
def test_nothing_is_made(
    words: tuple[str, ...], missing: str, tmp_path: Path, command: Callable[..., Result]
) -> None:
    before = below(tmp_path)
    done = command(*(word.replace("{}", str(tmp_path / missing)) for word in words))
    assert done.exit_code in {0, 2, 3}, done.output
    assert below(tmp_path) == before


@pytest.mark.parametrize("name", ["status", "down"])
def test_a_directory_without_servers_is_named(
    name: str, tmp_path: Path, command: Callable[..., Result]
) -> None:
    done = command("dev", name, "--dir", str(tmp_path / "typo"))
    assert f"nothing was started in {tmp_path / 'typo'} yet" in done.output.replace("\n", "")
