"""Handles of Delta tables with which this process has committed, so that it does not read the whole log for each commit.

Opening a table reads its newest checkpoint and up to a hundred commits after it; moving a handle on reads what came since. A snapshot has to stay as
it is: so a handle is taken only when nobody holds the snapshot that it was, and by one at a time. Who takes it must check that the log
still has the entry that the handle ends with: else the table was deleted, or restored, and the handle would write on in a
past that is gone.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

_MOST: Final = 8
"""Tables of one process of which handles are kept; a handle holds what the log says of each file."""
Key = tuple[object, ...]
"""Which table, and how it is reached."""
_kept: OrderedDict[tuple[int, Key], Handle] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Handle:
    """A table of delta-rs at one version.

    Attributes:
        table: of delta-rs.
        version: its version.
        entry: what the log had at that version, when it was loaded.
    """

    table: Any
    version: int
    entry: bytes
    _user: weakref.ref[object]


def keep(key: Key, table: Any, version: int, entry: bytes, user: object) -> None:  # noqa: ANN401 - of delta-rs
    """Keep a handle for whoever is next.

    Args:
        key: of the table.
        table: see `Handle`.
        version: see there.
        entry: see there.
        user: as long as it lives, nobody gets the handle.
    """
    own = os.getpid(), key  # delta-rs does not work on in a forked child
    with _lock:
        _kept[own] = Handle(table, version, entry, weakref.ref(user))
        _kept.move_to_end(own)
        if len(_kept) > _MOST:
            _kept.popitem(last=False)


def take(key: Key) -> Handle | None:
    """The handle that was kept, if nobody uses it; it is not kept any more."""
    with _lock:
        found = _kept.pop((os.getpid(), key), None)
    return found if found is not None and found._user() is None else None  # noqa: SLF001 - of this module
