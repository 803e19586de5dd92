"""Stores whose tables have to be created before a service uses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


@runtime_checkable
class WithSchema(Protocol):
    """A `StateStore` with tables that `sqe-chain store init` creates; services only check their version."""

    # Not derived from StateStore: isinstance() would read that one's properties, which ask the server.

    def make_schema(self, replication: Mapping[str, int]) -> list[str]:
        """Create the tables, or migrate them to the newest version. May be repeated.

        Args:
            replication: used if the database for them has to be created: data centre -> replicas; "" for every one.

        Returns:
            What was done, one line for each change; [] when there was nothing to do.

        Raises:
            Unavailable: no answer.
            ConfigurationError: login, rights, no replication given where it is needed, or a newer schema.
        """

    def schema_version(self) -> tuple[int, int]:
        """The version of the existing tables (0: none), and the newest version.

        Raises:
            Unavailable: no answer.
            ConfigurationError: login or rights.
        """
