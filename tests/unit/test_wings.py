"""The core finds what hangs on it by entry points; what is missing is named, and modules keep their old names for a while."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

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
    with pytest.raises(ConfigurationError, match=r"'ingest' is in no .*'sqe-chain\[tables\]'"):
        wings.load(wings.WINGS, "ingest", "tables")
    with pytest.raises(FlowError, match=r"test_wings\.py:\d+: table 'rows'"):
        Flow("loads").source("rows", dict, raw=True).ingest("rows", partition_key="key", row_key="at")


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("sqe_chain.no_such_module:function", r"cut = sqe_chain\.no_such_module:function .* does not load"),
        (
            "sqe_chain.ext.tables.directory:no_such_name",
            r"^'cut' needs the package 'deltalake': pip install 'sqe-chain\[tables\]'$",
        ),
        ("no_such_package:function", r"cut = no_such_package:function .* does not load"),
    ],
)
def test_a_wing_that_does_not_load_names_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, target: str, text: str
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "sqe_chain.ext.tables.directory", raising=False)
    monkeypatch.setattr(wings, "installed", lambda _: {"cut": EntryPoint("cut", target, wings.WINGS)})
    with pytest.raises(ConfigurationError, match=text):
        wings.load(wings.WINGS, "cut", "tables")


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [("web", "starlette", "web"), ("web", "uvicorn", "web"), ("tables", "pyarrow", "tables")],
)
def test_a_command_names_the_extra_that_installs_what_it_needs(
    command: str, package: str, extra: str
) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; sys.argv = ['sqe-chain', {command!r}]; import sqe_chain.cli; sqe_chain.cli.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"needs the package {package!r}: pip install 'sqe-chain[{extra}]'" in done.stderr


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


@pytest.fixture
def broken(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which a package is installed whose entry points are broken, but one."""
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[sqe_chain.commands]\ntorn = torn:app\ntext = whole:TEXT\nfine = whole:fine\n"
        "[sqe_chain.stages]\ntorn = torn:Kind\n"
        "[sqe_chain.stores]\ntorn = torn:open_address\n"
        "[sqe_chain.codecs]\ntorn = torn:Torn\n",
        encoding="utf-8",
    )
    (tmp_path / "torn.py").write_text("raise RuntimeError('two\\nlines')\n", encoding="utf-8")
    (tmp_path / "whole.py").write_text(
        "TEXT = 'no command'\n\n\ndef fine():\n    'Does what it says.'\n    print('done')\n",
        encoding="utf-8",
    )
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "COLUMNS": "300"}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


TORN = r"entry point torn = torn:\w+ of package broken \(sqe_chain\.{}\) does not load: RuntimeError: two lines\. "


def test_a_broken_command_of_another_package_is_listed_with_its_error(broken: dict[str, str]) -> None:
    done = run(broken, "-m", "sqe_chain.cli", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(rf"│ torn +{TORN.format('commands')}", done.stdout)
    assert re.search(r"│ text +entry point text = whole:TEXT of package broken .* is neither", done.stdout)
    assert re.search(r"│ fine +Does what it says\.", done.stdout)


def test_a_broken_command_fails_with_its_reason_and_others_still_work(broken: dict[str, str]) -> None:
    done = run(broken, "-m", "sqe_chain.cli", "torn")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"error: {TORN.format('commands')}.*\n", done.stderr)
    assert run(broken, "-m", "sqe_chain.cli", "fine").stdout == "done\n"


@pytest.mark.parametrize(
    ("group", "program"),
    [
        (
            "stages",
            "from sqe_chain import Flow; Flow('f').source('t', bytes, raw=True).stage('s', 'torn', key=len)",
        ),
        ("stores", "from sqe_chain.adapters import open_store; open_store('torn://here')"),
        ("codecs", "from sqe_chain.codecs import codec_for; codec_for(str, 'torn')"),
        ("codecs", "from sqe_chain.codecs import codec_for; codec_for(str)"),
    ],
)
def test_an_entry_point_that_does_not_load_names_its_package(
    broken: dict[str, str], group: str, program: str
) -> None:
    done = run(broken, "-c", program)
    assert re.search(rf"^sqe_chain\.errors\.\w+: .*{TORN.format(group)}", done.stderr, re.MULTILINE)
