"""Goal: every error in MODULE:FLOW shows the user where it is and what to do. Method: modules written for this test."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from sqe_chain.cli.loading import load_flow
from sqe_chain.errors import ConfigurationError, FlowError


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


def test_an_import_that_fails_within_the_module_names_its_line(here: Path) -> None:
    (here / "cli_importing.py").write_text("\nimport no_such_dependency\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"cli_importing\.py:2: .*no_such_dependency"):
        load_flow("cli_importing:flow")


def test_a_syntax_error_names_its_line(here: Path) -> None:
    (here / "cli_broken.py").write_text("\n\nflow = (\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"cli_broken\.py:3: .*SyntaxError"):
        load_flow("cli_broken:flow")


@pytest.mark.parametrize("code", ["1 / 0", "raise SystemExit(3)", "int('x')"])
def test_a_module_that_fails_names_its_line(here: Path, code: str) -> None:
    (here / "cli_failing.py").write_text(f"# a comment\n{code}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"cli_failing\.py:2: importing cli_failing failed: \w+: "):
        load_flow("cli_failing:flow")


def test_a_wrong_declaration_keeps_its_name_and_place(here: Path) -> None:
    (here / "cli_wrong.py").write_text(
        "from sqe_chain.flow import Flow\nflow = Flow('a flow with spaces')\n", encoding="utf-8"
    )
    with pytest.raises(FlowError, match=r"cli_wrong\.py:2: flow name"):
        load_flow("cli_wrong:flow")


def test_an_unfinished_declaration_is_refused(here: Path) -> None:
    (here / "cli_half.py").write_text(
        "from sqe_chain.flow import Flow\nflow = Flow('half')\nflow.source('words', bytes.decode)\n",
        encoding="utf-8",
    )
    with pytest.raises(FlowError, match=r"cli_half\.py:3: nothing is done"):
        load_flow("cli_half:flow")


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
