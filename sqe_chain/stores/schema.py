"""Stores whose tables somebody has to make before a service uses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


@runtime_checkable
class WithSchema(Protocol):
    """What a `StateStore` with tables has beside: `sqe-chain store init` makes them, services look at their version only."""

    # Not derived from StateStore: isinstance() would ask a server for that one's properties.

    def make_schema(self, replication: Mapping[str, int]) -> list[str]:
        """Make the tables, or bring them to the newest version. May be repeated.

        Args:
            replication: of a place for them that is not there yet: data centre -> replicas; "" for all alike.

        Returns:
            What was done, a line for each step; [] when there was nothing to do.

        Raises:
            Unavailable: no answer.
            ConfigurationError: login, rights, no replication where it is needed, or a newer schema.
        """

    def schema_version(self) -> tuple[int, int]:
        """The version of the tables that are there (0: none), and the version that is needed.

        Raises:
            Unavailable: no answer.
            ConfigurationError: login or rights.
        """
