"""All that can be set for a run, by name: each value goes into the group that it belongs to."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from sqe_chain.features.file_inputs import FileSettings
from sqe_chain.features.overwrite import OverwriteSettings
from sqe_chain.plans.settings import Once, Settings

GROUPS: Final = (FileSettings, OverwriteSettings)
"""Settings of features."""
NAMES: Final = frozenset(field.name for kind in (Settings, Once, *GROUPS) for field in fields(kind)) - {
    "once",
    "groups",
}
"""Names of all values."""


def settings_of(**values: Any) -> Settings:  # noqa: ANN401 - those of Settings, Once and the groups
    """The settings of a run, by their names: those of all services, of one start, and of loads.

    >>> settings_of(max_records=1_000, takeover=True, open_files=4).once.takeover
    True

    Args:
        values: of `Settings`; `takeover`, `accept_rollback` and `drop_stages` of one start; `open_files` and `abandon` of files;
            `overwrite`, `again` and `drop_overwrite` of loads into tables.

    Raises:
        ConfigurationError: a value cannot work.
        TypeError: there is no such field.
    """
    once = Once(**_taken(values, Once))
    groups = tuple(kind(**own) for kind in GROUPS if (own := _taken(values, kind)))
    return Settings(once=once, groups=groups, **values)


def _taken(values: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    return {field.name: values.pop(field.name) for field in fields(kind) if field.name in values}
