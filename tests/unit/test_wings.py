"""The core finds what hangs on it by entry points; what is missing is named, and modules keep their old names for a while."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from importlib.metadata import EntryPoint

import pytest

from sqe_chain import wings
from sqe_chain._old_names import NEW
from sqe_chain.errors import ConfigurationError, FlowError
from sqe_chain.flow import Flow


def test_all_wings_of_this_package_load() -> None:
    for group in (wings.WINGS, wings.COMMANDS, "sqe_chain.stages"):
        names = set(wings.installed(group))
        assert names
        for name in names:
            assert wings.load(group, name, "all") is not None


def test_a_wing_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqe_chain.wings.installed", lambda _: {})
    with pytest.raises(
        ConfigurationError, match=r"'ingest' is in no installed package .* pip install 'sqe-chain\[tables\]'"
    ):
        wings.load(wings.WINGS, "ingest", "tables")
    with pytest.raises(FlowError, match=r"test_wings\.py:\d+: table 'rows'"):
        Flow("loads").source("rows", dict, raw=True).ingest("rows", partition_key="key", row_key="at")


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("sqe_chain.no_such_module:function", r"cut = sqe_chain\.no_such_module:function .* does not load"),
        ("no_such_driver:function", r"'cut' needs the package 'no_such_driver', .*'sqe-chain\[cli\]'"),
    ],
)
def test_a_wing_that_does_not_load_names_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, target: str, text: str
) -> None:
    point = EntryPoint("cut", target, wings.COMMANDS)
    monkeypatch.setattr("sqe_chain.wings.installed", lambda _: {"cut": point})
    with pytest.raises(ConfigurationError, match=text):
        wings.load(wings.COMMANDS, "cut", "cli")


@pytest.mark.parametrize("old", sorted(NEW))
def test_an_old_name_is_the_module_itself_with_a_warning(old: str) -> None:
    sys.modules.pop(old, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = importlib.import_module(old)
    assert f"{old} is now {NEW[old]}" in [str(one.message) for one in caught]
    assert module is importlib.import_module(NEW[old])
    assert module.__spec__ is not None
    assert module.__spec__.name == NEW[old]


def test_the_core_imports_no_wing() -> None:
    program = "import sys, sqe_chain, sqe_chain.flow, sqe_chain.testing; print([m for m in sys.modules if m.startswith('sqe_chain.ext')])"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )
