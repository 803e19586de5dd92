"""The rules of `tests/contract/test_state_store.py`, asked of the stores that need no server: memory and SQLite.

There every store is asked, with real servers. Here the same tests run early, so that a rule that one of these two
breaks is known at once.
"""

from __future__ import annotations

import runpy
import uuid
from pathlib import Path

import pytest

_RULES = Path(__file__).parents[2] / "contract" / "test_state_store.py"

# Its tests, and the fixtures that they ask for; `url` below is asked for instead of its own.
globals().update(
    {
        name: found
        for name, found in runpy.run_path(str(_RULES), run_name="store_rules").items()
        if name.startswith("test_") or name in ("store", "flow")
    }
)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    return f"sqlite://{tmp_path}/states.db"


def test_the_rules_are_here() -> None:
    """Were they moved, nothing would be asked."""
    assert sum(name.startswith("test_") for name in globals()) > 30
