"""Goal: asked for one command, the program loads that one alone, and it is the same one as among all of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from sqe_chain.cli.commands import COMMANDS, application


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_alone_is_the_same_as_among_all(name: str) -> None:
    alone, among_all = (
        CliRunner().invoke(app, [name, "--help"]) for app in (application(name), application())
    )
    assert alone.exit_code == 0
    assert f"sqe-chain {name} " in alone.stdout
    assert alone.stdout == among_all.stdout


@pytest.mark.parametrize("wanted", [None, "--help", "runs", ""])
def test_otherwise_all_are_there(wanted: str | None) -> None:
    assert set(typer.main.get_group(application(wanted)).commands) == set(COMMANDS)


def test_what_a_service_does_not_need_is_not_loaded() -> None:
    """Others' options, tables for people, and Prometheus without its port take time until a service starts."""
    program = (
        "import sys; from sqe_chain.cli import main; sys.argv = ['sqe-chain', 'run', '--help']\n"
        "try: main()\n"
        "finally: print('loaded', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("loaded ")[2].split())
    assert "sqe_chain.cli.run" in loaded
    others = {f"sqe_chain.cli.{name.partition(':')[0]}" for name in COMMANDS.values()}
    assert loaded & (others - {"sqe_chain.cli.run"}) == set()
    assert loaded & {"prometheus_client", "sqe_chain.cli.panel", "pyspark"} == set()
