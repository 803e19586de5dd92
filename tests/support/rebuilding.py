"""A rebuild after one that crashed, as a user would do it."""

from __future__ import annotations

from sqe_chain.errors import ConfigurationError
from sqe_chain.testing import Rehearsal


def rebuild_after_a_crash(rehearsal: Rehearsal, *, resume: bool) -> None:
    """Rebuild again; or resume, and rebuild where the first one had not begun to fold, or was done already."""
    try:
        rehearsal.rebuild(resume=resume)
    except ConfigurationError as error:
        if not resume or "no interrupted attempt" not in str(error):
            raise
        rehearsal.rebuild()
