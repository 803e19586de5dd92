"""Goal: no link of the page on a package index leads nowhere. Method: the build's own metadata, whose links are looked up in the repository."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.docs_examples import ROOT

HOME = "https://code.example/somebody/sqe-chain"


def metadata(directory: Path, home: str) -> dict[str, Any]:
    """What a build writes into the package, with the repository at `home`."""
    (directory / "scripts").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "scripts/index_page.py"):
        shutil.copy(ROOT / name, directory / name)
    project = (directory / "pyproject.toml").read_text(encoding="utf-8")
    changed, places = re.subn(r'^home = ".*?"', f'home = "{home}"', project, flags=re.MULTILINE)
    assert places == 1
    (directory / "pyproject.toml").write_text(changed, encoding="utf-8")
    command = [sys.executable, "-m", "hatchling", "metadata"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def links(text: str) -> list[str]:
    return re.findall(r"\]\(\s*([^)\s]*)", text)


def test_links_lead_to_files_of_this_version(tmp_path: Path) -> None:
    found = metadata(tmp_path, HOME)
    tag = re.escape(f"v{found['version']}")
    leading = [*links(found["readme"]["text"]), *found["urls"].values()]
    ours = [link for link in leading if link.startswith(f"{HOME}/") and link != f"{HOME}/issues"]
    assert len(ours) > 15
    for link in ours:
        path = re.fullmatch(rf"{HOME}/(?:blob|raw)/{tag}/([^#]+)(?:#.*)?", link)
        assert path, link
        assert (ROOT / path[1]).is_file(), link
    assert set(found["urls"]) >= {"Repository", "Documentation", "Changelog", "Issues", "Security"}
    assert [link for link in leading if not link.startswith("https://")] == []


def test_without_a_repository_no_link_leads_nowhere(tmp_path: Path) -> None:
    found = metadata(tmp_path, "")
    assert "urls" not in found or found["urls"] == {}
    shown = links(found["readme"]["text"])
    assert shown
    assert [link for link in shown if not link.startswith("https://")] == []
    assert links((ROOT / "README.md").read_text(encoding="utf-8")) != shown
