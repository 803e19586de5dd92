"""Rooms of tests are called as the rooms that they test: those of the package, of the repository, or of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commit import TREE

ROOMS = [TREE / "tests" / name for name in ("unit", "protocol")]
TESTED = (TREE / "sqe_chain", TREE, TREE / "tests")
"""Where a room may be that has tests."""


@pytest.mark.parametrize("within", ROOMS, ids=lambda within: str(within.name))
def test_each_room_of_tests_has_the_place_of_what_it_tests(within: Path) -> None:
    rooms = {file.parent.relative_to(within) for file in within.rglob("test_*.py")}
    without = {
        str(room) for room in rooms if not any((place / room / "__init__.py").exists() for place in TESTED)
    }
    assert without - {"."} == set()
