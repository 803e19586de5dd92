"""Goal: asked for one command, the program loads that one alone, and it is the same one as among all of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sqe_chain.cli.commands import COMMANDS, application

WINGS = ("dev", "tables", "trace", "why-not", "audit", "doctor", "web")


@pytest.mark.parametrize("name", [*COMMANDS, *WINGS])
def test_a_command_alone_is_the_same_as_among_all(name: str) -> None:
    alone, among_all = (
        CliRunner().invoke(app, [name, "--help"]) for app in (application(name), application())
    )
    assert alone.exit_code == 0
    assert f"sqe-chain {name} " in alone.stdout
    assert alone.stdout == among_all.stdout


@pytest.mark.parametrize("wanted", [None, "--help", "runs", ""])
def test_otherwise_all_are_there(wanted: str | None) -> None:
    assert set(typer.main.get_group(application(wanted)).commands) == {*COMMANDS, *WINGS}


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


TAKEN = {
    "run": "TARGET kafka kafka-config store interval idle start engine workers master spark-conf partitions once close-windows create-topics takeover drop accept-rollback accept-changed-batch accept-lost-dead-letters allow-weak-durability max-records max-bytes files open-files abandon max-excluded max-excluded-share log-json metrics-port metrics-host web telemetry",
    "load": "TARGET store files kafka kafka-config engine workers master spark-conf open-files abandon close-windows overwrite overwrite-partitions again drop-overwrite create-topics takeover allow-weak-durability max-records max-excluded max-excluded-share json log-json",
    "show": "TARGET svg compiled",
    "state": "TARGET STAGE KEYS store match where from to output waiting json limit",
    "rebuild": "TARGET accept-lost-dead-letters kafka kafka-config store engine workers master spark-conf resume announce takeover allow-weak-durability max-excluded max-excluded-share log-json",
    "rewind": "TARGET accept-lost-dead-letters to kafka kafka-config store engine workers master spark-conf republish resume takeover allow-weak-durability max-excluded max-excluded-share log-json",
    "announce": "TARGET stage kafka kafka-config store takeover allow-weak-durability log-json",
    "export": "TARGET FILE kafka kafka-config store takeover log-json",
    "import": "TARGET FILE kafka kafka-config store allow-weak-durability log-json",
    "peek": "TOPIC kafka kafka-config json limit from partition types",
    "failed list": "TARGET kafka kafka-config store error key no-key topic since until state limit json",
    "failed show": "TARGET PLACE kafka kafka-config store show-payloads",
    "failed release": "TARGET PLACES kafka kafka-config store engine workers master spark-conf error key no-key topic since until takeover allow-weak-durability json log-json",
    "failed discard": "TARGET PLACES kafka kafka-config store error key no-key topic since until takeover allow-weak-durability yes json log-json",
    "trace": "TARGET STAGE KEY kafka kafka-config store log-json format since",
    "why-not": "TARGET RECORD kafka kafka-config store log-json json",
    "audit": "TARGET kafka kafka-config store log-json sample stage every rate seed metrics-port json since",
    "doctor": "TARGET kafka kafka-config store json",
    "web": "TARGETS kafka kafka-config store port host show-payloads",
    "flows list": "store json",
    "flows forget": "NAME kafka kafka-config store topics yes",
    "readers show": "TARGET store json",
    "readers change": "TARGET to kafka kafka-config store start takeover allow-weak-durability log-json",
    "store init": "URL replication datacenter-replication",
    "store check": "URL",
    "tables show": "ADDRESS option json",
    "tables compact": "ADDRESS option least-files json",
    "tables vacuum": "ADDRESS option retain-hours json",
    "dev up": "dir kafka-port redis-port cassandra cassandra-port json",
    "dev warm": "",
    "dev status": "dir json",
    "dev down": "dir json",
    "dev reset": "dir",
}
"""Arguments (in capitals) and options that people have typed into scripts; all commands take `--traceback` too."""


def test_every_command_takes_what_is_in_scripts() -> None:
    found = {
        name: {
            part.removeprefix("--") if part.startswith("-") else part.upper()
            for one in command.params
            for part in one.opts
        }
        for name, command in _leaves(typer.main.get_group(application()), "")
    }
    assert found == {name: {*taken.split(), "traceback"} for name, taken in TAKEN.items()}


def test_every_whole_number_has_bounds() -> None:
    """Above 64 bits the code that takes a number fails without a name."""
    numbers = [
        (name, option)
        for name, command in _leaves(typer.main.get_group(application()), "")
        for option in command.params
        if option.type_descriptor.annotation is int
    ]
    assert len(numbers) > 20
    assert not [(name, it.name) for name, it in numbers if it.max is None]


def _leaves(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


@pytest.mark.parametrize("wanted", WINGS)
def test_a_command_of_a_wing_is_there_alone(wanted: str) -> None:
    app = application(wanted)
    groups = [group.name for group in app.registered_groups]
    assert groups + [command.name for command in app.registered_commands] == [wanted]
