"""How a service runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from sqe_chain.errors import ConfigurationError

_LEAST = {
    "interval_ms": 0,
    "max_records": 1,
    "max_bytes": 1,
    "keep_plans": 2,
    "max_excluded": 0,
    "standby_ms": 0,
    "back_off_ms": 0,
    "idle_ms": 0,
}
"""Settings that are whole numbers, and the least that each may be."""
_MOST = 10**15


class FeatureSettings:
    """The settings of a feature. A subclass is a frozen dataclass, and has defaults for all fields."""

    __slots__ = ()

    @property
    def needs_end(self) -> str:
        """What is asked for that ends only with a finite input, as the error of a run without an end; empty: nothing."""
        return ""


Group = TypeVar("Group", bound=FeatureSettings)


@dataclass(frozen=True, slots=True)
class Once:
    """What one start is asked for.

    Attributes:
        takeover: claim although another run seems alive.
        accept_rollback: go on although the store went back as a whole.
        accept_changed_batch: finish a batch that another run has begun although the code of now gives something else.
        accept_lost_dead_letters: read inputs again although dead-letter records of some of them are gone.
        drop_stages: stored stages that the flow no longer has and that may be forgotten.
    """

    takeover: bool = False
    accept_rollback: bool = False
    accept_changed_batch: bool = False
    accept_lost_dead_letters: bool = False
    drop_stages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """How a service runs.

    Attributes:
        interval_ms: how often a batch is made, hence how often a state is written at most.
        start: where a new flow begins: `earliest` with what its inputs still hold, `latest` with what comes from now on.
            None: at offset 0; the flow stops if a log no longer holds that.
        max_records: records of one batch, over all partitions.
        max_bytes: bytes of values of one batch, over all partitions (kept by the average so far).
        keep_plans: sealed plans that the metadata store keeps; at least 2.
        max_excluded: inputs that one batch may skip, whatever their share. The service stops before it seals a batch that
            would skip more than this, and more than `max_excluded_share` of its records.
        max_excluded_share: share of its records, 0 to 1, that one batch may skip, however many they are.
        allow_weak_durability: accept stores that may lose acknowledged writes.
        in_place: run level 1 in the reading tasks where the partitions allow it.
        standby_ms: how long the other run's heartbeat must have stopped before a standby takes over.
        back_off_ms: longest wait between two attempts to reach a broker or store.
        idle_ms: how long an input partition must have been silent before stages that go by event time no longer wait for it.
        once: what this start is asked for.
        groups: settings of features, one object for each; see `of`.
    """

    interval_ms: int = 5_000
    start: Literal["earliest", "latest"] | None = None
    max_records: int = 400_000
    max_bytes: int = 96 * 1024 * 1024
    keep_plans: int = 20
    max_excluded: int = 100
    max_excluded_share: float = 0.1
    allow_weak_durability: bool = False
    in_place: bool = True
    standby_ms: int = 6_000
    back_off_ms: int = 10_000
    idle_ms: int = 5_000
    once: Once = field(default_factory=Once)
    groups: tuple[FeatureSettings, ...] = ()

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= _MOST:
                raise ConfigurationError(f"{name}={value!r}; a whole number, {least} to {_MOST}")
        share = self.max_excluded_share
        if type(share) not in (int, float) or not 0 <= share <= 1:
            raise ConfigurationError(f"max_excluded_share={share!r}; a number, 0 to 1")

    def of(self, kind: type[Group]) -> Group:
        """The settings of a feature, by their class; without any, its defaults."""
        return next((group for group in self.groups if isinstance(group, kind)), None) or kind()

    @property
    def needs_end(self) -> str:
        """See `FeatureSettings.needs_end`."""
        return next((text for group in self.groups if (text := group.needs_end)), "")

    def asking(self, **once: Any) -> Settings:  # noqa: ANN401 - those of Once
        """The same settings, for a start that is asked for this."""
        return replace(self, once=replace(self.once, **once))
