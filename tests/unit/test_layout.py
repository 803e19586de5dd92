"""Rooms of tests are called as the rooms that they test: those of the package, of the repository, or of the tests."""

from __future__ import annotations

from tests.support.commit import TREE

UNIT = TREE / "tests" / "unit"
TESTED = (TREE / "sqe_chain", TREE, TREE / "tests")
"""Where a room may be that has tests."""


def test_each_room_of_tests_has_the_place_of_what_it_tests() -> None:
    rooms = {file.parent.relative_to(UNIT) for file in UNIT.rglob("test_*.py")}
    without = {
        str(room) for room in rooms if not any((place / room / "__init__.py").exists() for place in TESTED)
    }
    assert without - {"."} == set()
