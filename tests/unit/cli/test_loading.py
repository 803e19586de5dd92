"""Goal: every error in MODULE:FLOW shows the user where it is and what to do. Method: modules written for this test."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from sqe_chain.cli.loading import load_flow
from sqe_chain.errors import ChainError, ConfigurationError, FlowError

FLOW = "from sqe_chain.flow import Flow\nflow = Flow"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_a_flow_is_found_in_the_working_directory(flows: ModuleType) -> None:
    assert load_flow("cli_flows:counts") is flows.counts.compile()


@pytest.mark.parametrize(
    "target", ["", "cli_flows", "cli_flows:", ":counts", "a/b.py:counts", "a:b:c", "a.:b"]
)
def test_the_form_is_explained(target: str) -> None:
    with pytest.raises(ConfigurationError, match="Expected MODULE:FLOW"):
        load_flow(target)


def test_a_module_that_is_nowhere(here: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no module 'no_such_module'.*PYTHONPATH"):
        load_flow("no_such_module:flow")


def test_a_package_that_lacks_the_module(here: Path) -> None:
    (here / "cli_package").mkdir()
    with pytest.raises(ConfigurationError, match=r"no module 'cli_package\.flows'"):
        load_flow("cli_package.flows:flow")


@pytest.mark.parametrize(
    ("code", "error", "place"),
    [
        ("\nimport no_such_dependency\n", ConfigurationError, r":2: .*no_such_dependency"),
        ("\n\nflow = (\n", ConfigurationError, r":3: .*SyntaxError"),
        ("# a comment\n1 / 0\n", ConfigurationError, r":2: importing \w+ failed: ZeroDivisionError: "),
        ("# a comment\nraise SystemExit(3)\n", ConfigurationError, r":2: importing \w+ failed: SystemExit: "),
        ("# a comment\nint('x')\n", ConfigurationError, r":2: importing \w+ failed: ValueError: "),
        (f"{FLOW}('a flow with spaces')\n", FlowError, ":2: flow name"),
        (f"{FLOW}('half')\nflow.source('words', bytes.decode)\n", FlowError, ":3: nothing is done"),
    ],
    ids=["import", "syntax", "division", "exit", "value", "declaration", "unfinished"],
)
def test_what_is_wrong_in_a_module_names_its_line(
    here: Path, request: pytest.FixtureRequest, code: str, error: type[ChainError], place: str
) -> None:
    name = f"cli_{request.node.callspec.id}"
    (here / f"{name}.py").write_text(code, encoding="utf-8")
    with pytest.raises(error, match=rf"{name}\.py{place}"):
        load_flow(f"{name}:flow")


def test_a_name_that_is_missing_or_no_flow_lists_the_flows(flows: ModuleType) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"'totals'\. Expected one of: by_key, .*, windows",
    ):
        load_flow("cli_flows:totals")
    with pytest.raises(ConfigurationError, match="is a stream of a flow"):
        load_flow("cli_flows:counted")
    with pytest.raises(ConfigurationError, match=r"is a int\. Expected one of"):
        load_flow("cli_flows:a_number")
