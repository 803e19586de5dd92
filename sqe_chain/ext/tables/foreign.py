"""Files of other programs in a table, where they are met by who reads it or merges its files. A service that writes it looks for them itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from sqe_chain.errors import TableAltered
from sqe_chain.ext.tables.storage import Snapshot, Storage

_OTHER_CONTENT: Final = (pa.ArrowException, ValueError, KeyError, TypeError)
"""What reading something raises that nobody of us has written."""


@contextmanager
def named_if_foreign(storage: Storage, snapshot: Snapshot) -> Iterator[None]:
    """Within it an error is told as the file of another program that a snapshot holds, if it holds one.

    Args:
        storage: where the table lives.
        snapshot: of it, which is read.

    Raises:
        TableAltered: in place of what reading such a file raises.
    """
    try:
        yield
    except _OTHER_CONTENT as error:
        path = snapshot.foreign_file()
        if path is None:
            raise
        raise TableAltered(
            f"{storage}: holds a file of another program: {path}; restore the table to the version before"
        ) from error
