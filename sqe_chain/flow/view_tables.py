"""What `view=` declares: the form in which other programs read the states of a stage."""

from __future__ import annotations

import re
from typing import Final

from sqe_chain.errors import FlowError
from sqe_chain.flow.stage_kind import StageKind
from sqe_chain.ports import ViewKind, ViewTable

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,49}")
"""Of a table: no quotes are needed, and there is room for what follows it in the names of its parts."""

_FORMS: Final[dict[str | None, ViewKind | None]] = {None: None, "json": "json", "hash": "hash"}


def view_in(kind: StageKind, view: str | None, where: str) -> tuple[ViewKind | None, ViewTable | None]:
    """The form of a view, and of a table its columns.

    Args:
        kind: of the stage.
        view: as it is declared: "json", "hash", or the name of a table.
        where: file, line and stage, for errors.

    Raises:
        FlowError: it is neither a form nor a name, or its states cannot have columns.
    """
    if isinstance(view, str | None) and view in _FORMS:
        return _FORMS[view], None
    if not (isinstance(view, str) and _NAME.fullmatch(view)) or view == "table" or view.startswith("sqe_"):
        raise FlowError(
            f"{where}: view={view!r}. Expected 'json', 'hash', None, or the name of a table in PostgreSQL. Name it by at most 50 of a-z 0-9 _, "
            "no digit first, and neither 'table' nor sqe_…"
        )
    try:
        table = kind.state_table
    except ValueError as error:
        raise FlowError(f"{where}: view={view!r}: {error}") from error
    if table is None:
        raise FlowError(
            f"{where}: view={view!r} is a table, which shows windows, and states of aggregates without timers and expiry. Expected "
            "'json', 'hash' or None here. Leave it out"
        )
    return "table", ViewTable(view, tuple((column.name, column.sql_type) for column in table.columns))
