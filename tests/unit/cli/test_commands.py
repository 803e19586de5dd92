"""Goal: asked for one command, the program loads that one alone, and it is the same one as among all of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sqe_chain.cli import removed
from sqe_chain.cli.commands import COMMANDS, application
from sqe_chain.cli.option_table import SHARED
from sqe_chain.cli.options import ALSO

WINGS = ("dev", "schemas", "tables", "trace", "why-not", "audit", "doctor", "web")


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
    "run": "TARGET kafka kafka-config store interval idle start engine workers master spark-conf partitions once close-windows create-topics takeover drop accept-rollback accept-changed-batch accept-lost-dead-letters allow-weak-durability max-records max-bytes files abandon max-excluded log-json metrics-port metrics-host web telemetry registry",
    "load": "TARGET store files kafka kafka-config engine workers master spark-conf abandon close-windows overwrite overwrite-partitions again drop-overwrite create-topics takeover allow-weak-durability max-records max-excluded json log-json registry",
    "show": "TARGET svg compiled",
    "state": "TARGET STAGE KEYS store match where from to output waiting json limit",
    "rebuild": "TARGET accept-lost-dead-letters kafka kafka-config store engine workers master spark-conf resume announce takeover allow-weak-durability max-excluded log-json",
    "correct": "TARGET from dry-run kafka kafka-config store takeover allow-weak-durability log-json json",
    "rewind": "TARGET accept-lost-dead-letters to kafka kafka-config store engine workers master spark-conf republish resume takeover allow-weak-durability max-excluded log-json",
    "announce": "TARGET stage kafka kafka-config store takeover allow-weak-durability log-json",
    "shadow start": "TARGET from-export kafka kafka-config store engine workers master spark-conf takeover allow-weak-durability log-json",
    "shadow report": "TARGET kafka kafka-config store takeover allow-weak-durability log-json json",
    "shadow switch": "TARGET accept-differences back kafka kafka-config store engine workers master spark-conf takeover allow-weak-durability log-json",
    "shadow end": "TARGET kafka kafka-config store takeover allow-weak-durability log-json",
    "failover": "TARGET topics margin-ms accept-missing dry-run kafka kafka-config store takeover allow-weak-durability log-json",
    "export": "TARGET FILE kafka kafka-config store takeover log-json",
    "import": "TARGET FILE kafka kafka-config store allow-weak-durability log-json",
    "peek": "TOPIC kafka kafka-config json limit from partition types",
    "failed list": "TARGET PLACES show-payloads kafka kafka-config store error key no-key topic since until state limit json",
    "failed release": "TARGET PLACES kafka kafka-config store engine workers master spark-conf error key no-key topic since until takeover allow-weak-durability json log-json",
    "failed discard": "TARGET PLACES kafka kafka-config store error key no-key topic since until takeover allow-weak-durability yes json log-json",
    "trace": "TARGET STAGE KEY kafka kafka-config store log-json format since",
    "why-not": "TARGET RECORD kafka kafka-config store log-json json",
    "audit": "TARGET kafka kafka-config store log-json sample stage every rate seed metrics-port json since",
    "doctor": "TARGET kafka kafka-config store engine workers master spark-conf json",
    "web": "TARGETS kafka kafka-config store port host show-payloads",
    "flows list": "store json",
    "flows forget": "NAME kafka kafka-config store topics yes",
    "readers": "TARGET to json kafka kafka-config store start takeover allow-weak-durability log-json",
    "store init": "URL replication datacenter-replication flow check",
    "schemas": "ACTION TARGET registry json",
    "tables show": "ADDRESS option json",
    "tables compact": "ADDRESS option json",
    "tables vacuum": "ADDRESS option retain-hours json",
    "dev up": "dir port cassandra postgres json",
    "dev status": "dir json",
    "dev down": "dir delete json",
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


def test_one_person_can_hold_the_command() -> None:
    """To add a command or an option beyond these numbers, remove one: docs/scope.md has the rule."""
    commands = dict(_leaves(typer.main.get_group(application()), ""))
    own = [
        (name, one.name)
        for name, command in commands.items()
        for one in command.params
        if one.param_type_name == "option" and not one.hidden
    ]
    assert len(commands) <= 35
    assert len(own) + len(SHARED) <= 128


def test_the_help_of_run_begins_with_what_is_usual() -> None:
    shown = CliRunner(env={"COLUMNS": "120"}).invoke(application("run"), ["run", "--help"]).stdout
    panels = ("Usual", "Observe", "Limits", "After an accident")
    wanted = ["Usual", "--once", "--interval", *panels[1:3], "--max-excluded", panels[3], "--abandon"]
    places = [shown.index(text) for text in wanted]
    assert places == sorted(places)
    assert not set(panels) & set(CliRunner().invoke(application("audit"), ["audit", "--help"]).stdout.split())


def test_every_shared_option_is_named_by_each_command_and_described_once() -> None:
    described = CliRunner().invoke(application(), ["--help"]).stdout
    for name, command in _leaves(typer.main.get_group(application()), ""):
        named = (command.help or "").partition(ALSO)[2]
        for option in command.params:
            assert not option.hidden or f"{option.opts[0]}" in re.split(r"[ ,.]+", named), (name, option.name)
    for name, option in SHARED.items():
        assert (
            described.count(f"--{name.replace('_', '-')}{f' {option.metavar}' if option.metavar else ''}:")
            == 1
        )


@pytest.mark.parametrize("words", removed.COMMANDS, ids=" ".join)
def test_a_removed_command_names_the_way_on(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(application(words[0]), [*words, "shop:orders"])
    assert done.exit_code == 2
    assert f"Use {removed.COMMANDS[words]}" in done.stderr.replace("\n", " ")
    names = [" ".join(typed) for typed in removed.COMMANDS]
    assert not set(names) & dict(_leaves(typer.main.get_group(application()), "")).keys()


@pytest.mark.parametrize(
    ("words", "option"), [(words, name) for words, options in removed.OPTIONS.items() for name in options]
)
def test_a_removed_option_names_the_way_on(words: tuple[str, ...], option: str) -> None:
    for given in ((option, "1"), (f"{option}=1",)):
        done = CliRunner().invoke(application(words[0]), [*words, "shop:orders", *given])
        assert done.exit_code == 2
        assert f"{option} was removed. Use {removed.OPTIONS[words][option]}" in done.stderr.replace("\n", " ")
    assert option.removeprefix("--") not in TAKEN[" ".join(words)].split()


def test_a_removed_variable_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQE_CHAIN_MAX_EXCLUDED_SHARE", "1")
    done = CliRunner().invoke(application("run"), ["run", "shop:orders"])
    assert "SQE_CHAIN_MAX_EXCLUDED_SHARE was removed" in done.stderr
    assert "removed" not in CliRunner().invoke(application("show"), ["show", "shop:orders"]).stderr


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
