"""Goal: the changelog gives users of a version what they must know, in one form. Method: its text is compared with pyproject.toml and limits."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise

from tests.support.docs_examples import ROOT

TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
GROUPS = ("Security", "Fixed", "Added", "Changed", "Removed")
VERSIONS = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
MOST_WORDS = 1_900


def test_the_newest_version_is_the_package_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    released = VERSIONS[1] if VERSIONS[0].startswith("[Unreleased]\n") else VERSIONS[0]
    assert re.match(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n", released)


def test_groups_have_known_names_in_one_order() -> None:
    for version in VERSIONS:
        places = [GROUPS.index(name) for name in re.findall(r"^### (.+)$", version, re.MULTILINE)]
        assert all(before < after for before, after in pairwise(places)), version.partition("\n")[0]


def test_each_version_is_short() -> None:
    for version in VERSIONS:
        assert len(version.split()) <= MOST_WORDS, version.partition("\n")[0]


def test_each_entry_is_on_one_line() -> None:
    assert re.findall(r"^ {2,}\S.*$", TEXT, re.MULTILINE) == []
