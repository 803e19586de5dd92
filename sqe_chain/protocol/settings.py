"""How a service runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqe_chain.errors import ConfigurationError
from sqe_chain.ports.files import is_hash

_LEAST = {
    "interval_ms": 0,
    "max_records": 1,
    "max_bytes": 1,
    "keep_plans": 2,
    "max_excluded": 0,
    "standby_ms": 0,
    "back_off_ms": 0,
    "idle_ms": 0,
    "open_files": 1,
}
"""Settings that are whole numbers, and the least that each may be."""
_MOST = 10**15
_LEAST_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """How a service runs.

    Attributes:
        interval_ms: how often a batch is made, hence how often a state is written at most.
        start: where a new flow begins: `earliest` with what its inputs still hold, `latest` with what comes from now on.
            None: at offset 0; the flow stops if a log no longer holds that.
        takeover: claim although another run seems alive.
        max_records: records of one batch, over all partitions.
        max_bytes: bytes of values of one batch, over all partitions (kept by the average so far).
        keep_plans: sealed plans that the metadata store keeps; at least 2.
        max_excluded: inputs that one batch may skip, whatever their share. The service stops before it seals a batch that
            would skip more than this, and more than `max_excluded_share` of its records.
        max_excluded_share: share of its records, 0 to 1, that one batch may skip, however many they are.
        accept_rollback: go on although the store went back as a whole.
        allow_weak_durability: accept stores that may lose acknowledged writes.
        drop_stages: stored stages that the flow no longer has and that may be forgotten.
        in_place: run level 1 in the reading tasks where the partitions allow it.
        standby_ms: how long the other run's heartbeat must have stopped before a standby takes over.
        back_off_ms: longest wait between two attempts to reach a broker or store.
        idle_ms: how long an input partition must have been silent before stages that go by event time no longer wait for it.
        open_files: files of a flow that are read at the same time; those that go by event time read all.
        abandon: hashes of files, or their beginnings, whose remaining rows are not read.
        overwrite: what the rows of files replace in tables: `table`, all rows; `partitions`, those with the partition keys of
            the files. None: nothing; they are added.
        again: overwrite although the last load was an overwrite with the same contents.
        drop_overwrite: give up the overwrite that is under way, and end.
    """

    interval_ms: int = 5_000
    start: Literal["earliest", "latest"] | None = None
    takeover: bool = False
    max_records: int = 400_000
    max_bytes: int = 96 * 1024 * 1024
    keep_plans: int = 20
    max_excluded: int = 100
    max_excluded_share: float = 0.1
    accept_rollback: bool = False
    allow_weak_durability: bool = False
    drop_stages: tuple[str, ...] = ()
    in_place: bool = True
    standby_ms: int = 6_000
    back_off_ms: int = 10_000
    idle_ms: int = 5_000
    open_files: int = 16
    abandon: tuple[str, ...] = ()
    overwrite: Literal["table", "partitions"] | None = None
    again: bool = False
    drop_overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work."""
        for name, least in _LEAST.items():
            found = getattr(self, name)
            if type(found) is not int or not least <= found <= _MOST:
                raise ConfigurationError(f"{name}={found!r}; a whole number, {least} to {_MOST}")
        share = self.max_excluded_share
        if type(share) not in (int, float) or not 0 <= share <= 1:
            raise ConfigurationError(f"max_excluded_share={share!r}; a number, 0 to 1")
        if self.overwrite not in (None, "table", "partitions"):
            raise ConfigurationError(f"overwrite={self.overwrite!r}; must be 'table', 'partitions' or None")
        if self.overwrite is not None and self.drop_overwrite:
            raise ConfigurationError("overwrite and drop_overwrite: one of them, begin or go on, or give up")
        if self.again and self.overwrite is None:
            raise ConfigurationError("again: needs overwrite")
        for digits in self.abandon:
            if not is_hash(f"{digits:0<32}") or len(digits) < _LEAST_DIGITS:
                raise ConfigurationError(
                    f"abandon={digits!r}; must be the hash of a content as the error about its file says it, or its first "
                    f"{_LEAST_DIGITS} digits or more"
                )
