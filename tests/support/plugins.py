"""The packages of tests/plugins, installed as pip would do it: by the entry points of their pyproject.toml."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path
from typing import Final

import pytest

from sqe_chain import wings
from sqe_chain.codecs import registry

PACKAGES: Final = Path(__file__).parents[1] / "plugins"
MODULES: Final = ("keep_first", "folder_store", "pipes_codec")


@contextmanager
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install all of them for a test; afterwards nothing knows of them.

    Args:
        tmp_path: where they are put.
        monkeypatch: of the test.
    """
    site = tmp_path / "site-packages"
    for module in MODULES:
        package = PACKAGES / module
        project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        info = site / f"{module}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        shutil.copy(package / f"{module}.py", site)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
            encoding="utf-8",
        )
        points = [
            f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in targets.items())
            for group, targets in project["entry-points"].items()
        ]
        (info / "entry_points.txt").write_text("\n".join(points), encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    _forget_installed()
    yield
    for module in MODULES:
        sys.modules.pop(module, None)
    monkeypatch.undo()
    _forget_installed()


def _forget_installed() -> None:
    invalidate_caches()
    wings.installed.cache_clear()
    registry._default.cache_clear()
