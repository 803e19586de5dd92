"""The Redis store: each atomic operation is one script, whose keys are all in one hash slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from sqe_chain.adapters.limits import Limited, Limits, check_home, check_locations, check_rows, with_witness
from sqe_chain.adapters.redis import layout, scripts
from sqe_chain.adapters.redis.client import RedisClient

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqe_chain.adapters.redis.connections import Argument, RedisSettings, Reply
    from sqe_chain.ports import Header, Home, Locations, Rows, Shown, ViewKind, Views

MAX_ROWS: Final = 5_000
MAX_BYTES: Final = 4_000_000
"""Limits of one script: it blocks the server for 3 ms (small rows) to 13 ms (4 MB) (docs/stores.md)."""

_READ_KEYS: Final = 1_000
"""Keys of one HMGET, so that no single command blocks the server for long."""

_TRIP_KEYS: Final = 20_000
"""Keys of one round trip, whose reply is held in memory on both sides."""

_PAGE_BYTES: Final = 1_000_000
"""Size of a page of a scan."""

_STRONG: Final = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
}
"""Settings with which an acknowledged write is neither lost by a crash nor evicted."""


Cell = tuple[str, str, int]
"""Flow, stage, and number of the cell."""


class RedisStore(Limited):
    """A `StateStore` in Redis 6.2 or later: one server, a cluster, or a master behind sentinels.

    The object holds only settings and can be pickled.

    The layout is documented in docs/stores.md, because other programs may read it.

    Args:
        settings: how to reach the server.
        max_rows: most rows of one `write`.
        max_bytes: most bytes of keys and states in one `write`.
    """

    max_rows: int = MAX_ROWS
    max_bytes: int = MAX_BYTES
    views: frozenset[ViewKind] = frozenset({"json", "hash"})

    def __init__(self, settings: RedisSettings, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES) -> None:
        self.settings = settings
        self.max_rows = max_rows
        self.max_bytes = max_bytes

    def __repr__(self) -> str:
        return f"RedisStore({self.settings})"

    @property
    def _client(self) -> RedisClient:
        return RedisClient.of_this_process(self.settings)

    @property
    def _limits(self) -> Limits:
        return self._client.limits

    def check(self) -> list[str]:
        # Settings with which the server may lose or evict acknowledged writes
        client = self._client
        client.ping()
        weak = []
        for name, wanted in _STRONG.items():
            servers: dict[str | None, list[str]] = {}
            for address, found in client.setting(name).items():
                servers.setdefault(found, []).append(address)
            for found, addresses in servers.items():
                if found == wanted:
                    continue
                trouble = (
                    f"the setting {name} cannot be read, so it may be weak; it should be {wanted}"
                    if found is None
                    else f"{name} is {found}, so acknowledged states may be lost; set it to {wanted}"
                )
                weak.append(f"{', '.join(addresses)}: {trouble}. --allow-weak-durability accepts that")
        if not (self.settings.wait_replicas or self.settings.wait_aof_replicas):
            weak += self._weak_failover()
        return weak

    def _weak_failover(self) -> list[str]:
        replicas = self._client.failover()
        if replicas is False:
            return []
        trouble = (
            "it cannot be read whether there are replicas; one that takes over may lack acknowledged states"
            if replicas is None
            else "a replica that replaces its master may lack states that were acknowledged"
        )
        advice = "wait for replicas with the option wait_replicas=1. --allow-weak-durability accepts that"
        return [f"{self.settings}: {trouble}; {advice}"]

    def home(self, flow: str) -> tuple[Home | None, int]:
        key = layout.home_key(flow)
        fields, beat = self._client.together(
            [("HMGET", key, *layout.HOME_FIELDS), ("GET", layout.beat_key(flow))]
        )
        return layout.home_of(_values(fields), key), int(cast("bytes | None", beat) or 0)

    def set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None = None, drop_below: int = 0
    ) -> Home | None:
        check_home(after, plan)
        self._limits.check_plan(self, plan)
        key = layout.home_key(flow)
        arguments: list[Argument] = [
            *layout.home_arguments(before),
            *layout.home_arguments(after),
            layout.number_text(drop_below) if drop_below > 0 else b"",
        ]
        if plan is not None:
            arguments += [layout.number_text(after.number), plan]
        current = self._client.run(scripts.SET_HOME, [key, layout.plans_key(flow)], arguments)
        return layout.home_of(_values(current), key)

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        keys = [layout.home_key(flow), layout.beat_key(flow)]
        arguments = [layout.number_text(epoch), run_id.encode()]
        return self._client.run(scripts.BEAT, keys, arguments, lasting=False) == 1

    def plan(self, flow: str, number: int) -> bytes | None:
        if number < 0:
            return None
        command = ("HGET", layout.plans_key(flow), layout.number_text(number))
        return cast("bytes | None", self._client.together([command])[0])

    def flows(self) -> list[str]:
        # Scans all keys of all masters, without blocking them
        found = {layout.flow_of(key) for key in self._client.keys(layout.HOMES)}
        return sorted(flow for flow in found if flow is not None)

    def forget(self, flow: str, before: Home) -> Home | None:
        key = layout.home_key(flow)
        keys = [key, layout.beat_key(flow), layout.plans_key(flow)]
        current = self._client.run(scripts.FORGET_HOME, keys, layout.home_arguments(before))
        return layout.home_of(_values(current), key)

    def forget_part(self, flow: str, stage: str, part: int, before: Header) -> Header | None:
        cell = flow, stage, part
        key = layout.header_key(*cell)
        keys = [key, layout.states_key(*cell), layout.json_key(*cell)]
        current = self._client.run(scripts.FORGET_PART, keys, layout.header_arguments(before))
        return layout.header_of(_values(current), key)

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        # Two round trips, and not one snapshot
        cells = [(flow, stage, part) for part in parts]
        replies = self._client.together([_header_command(cell) for cell in cells]) if cells else []
        values = dict(zip(cells, map(_values, replies), strict=True))
        said = [cell for cell in cells if values[cell][-1] is not None]
        found = self._client.together([_count_command(cell) for cell in said]) if said else []
        counts = dict(zip(said, found, strict=True))
        headers = [layout.header_of(values[cell][:-1], layout.header_key(*cell)) for cell in cells]
        return [
            self._told(cell, header, values[cell], counts.get(cell))
            for cell, header in zip(cells, headers, strict=True)
        ]

    def _told(
        self, cell: Cell, header: Header | None, values: Sequence[bytes | None], count: Reply
    ) -> Header | None:
        """A header with what is lost beside it. Another run may have written before the states were counted, so both are read again."""
        said = layout.states_said(values[-1], values[1])
        if header is None or said is None or said == count:
            return header
        keys = [layout.header_key(*cell), layout.states_key(*cell)]
        now = cast("list[int]", self._client.run(scripts.WITNESS_NOW, keys, [], lasting=False))
        return with_witness(header, now[0], now[1]) if now else header

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        # One round trip for each 20,000 keys
        cell = flow, stage, part
        header_key, states_key = layout.header_key(*cell), layout.states_key(*cell)
        commands: list[Sequence[Argument]] = [_header_command(cell)]
        commands += [
            ("HMGET", states_key, *keys[start : start + _READ_KEYS])
            for start in range(0, len(keys), _READ_KEYS)
        ]
        commands += [_count_command(cell), _header_command(cell)]
        trip = _TRIP_KEYS // _READ_KEYS
        first, *middle, count, last = [
            reply
            for start in range(0, len(commands), trip)
            for reply in self._client.together(commands[start : start + trip])
        ]
        # Redis runs the commands of one slot in order: equal headers before and after mean that no write came between.
        states = [state for values in middle for state in _values(values)]
        before, after = (layout.header_of(_values(reply)[:-1], header_key) for reply in (first, last))
        told = self._told(cell, after, _values(last), count)
        return (told if before == after else before), states, told

    def write(
        self,
        flow: str,
        stage: str,
        part: int,
        before: Header | None,
        after: Header,
        rows: Rows,
        views: Views | None = None,
    ) -> Header | None:
        check_rows(rows, self.max_rows, self.max_bytes, views)
        self._limits.check(self, rows, views)
        cell = flow, stage, part
        header_key = layout.header_key(*cell)
        kept = [row for row in rows if row[1] is not None]
        deleted = [key for key, state in rows if state is None]
        keys: list[str | bytes] = [header_key, layout.states_key(*cell)]
        states: list[Argument] = [field for row in kept for field in row if field is not None]
        script = scripts.WRITE
        shown: list[Argument] = []
        showing = [key for key, _ in kept if views is not None and key in views.shown]
        if views is not None and views.kind == "json":
            script = scripts.WRITE_JSON
            keys.append(layout.json_key(*cell))
            shown = [2 * len(showing)]
            shown += [field for key in showing for field in (key, str(views.shown[key]))]
        elif views is not None:
            script = scripts.WRITE_HASHES
            keys += [layout.hash_key(*cell, key) for key in (*showing, *deleted)]
            shown = [len(showing)]
            for key in showing:
                fields = [text for field in _fields(views.shown[key]) for text in field]
                shown += (len(fields), *fields)
        arguments: list[Argument] = [
            *layout.header_arguments(before), *layout.header_arguments(after), len(states), *states, *shown, *deleted,
        ]  # fmt: skip
        return layout.header_of(_values(self._client.run(script, keys, arguments)), header_key)

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        # A key may come twice if the hash shrinks in the meantime
        for page in self._client.pages(layout.states_key(flow, stage, part), _PAGE_BYTES):
            yield from page.items()

    def locations(self, flow: str) -> Locations | None:
        key = layout.locations_key(flow)
        found = self._client.run(scripts.GET_LOCATIONS, [key], [], lasting=False)
        return layout.locations_of(cast("list[bytes]", found), key)

    def set_locations(self, flow: str, after: Locations) -> Locations | None:
        check_locations(after)
        key = layout.locations_key(flow)
        found = self._client.run(scripts.SET_LOCATIONS, [key], layout.locations_arguments(after))
        return layout.locations_of(cast("list[bytes]", found), key)

    def forget_locations(self, flow: str, before: Locations) -> Locations | None:
        key = layout.locations_key(flow)
        arguments = [layout.number_text(number) for number in before.age]
        found = self._client.run(scripts.FORGET_LOCATIONS, [key], arguments)
        return layout.locations_of(cast("list[bytes]", found), key)

    def close(self) -> None:
        """Close this process's connections; a later call opens them again."""
        RedisClient.forget(self.settings)


def _header_command(cell: Cell) -> Sequence[Argument]:
    """Of a header, and the witness of its states at the end."""
    return ("HMGET", layout.header_key(*cell), *layout.HEADER_FIELDS, layout.WITNESS)


def _count_command(cell: Cell) -> Sequence[Argument]:
    return ("HLEN", layout.states_key(*cell))


def _fields(shown: Shown) -> Iterable[tuple[str, str]]:
    return () if isinstance(shown, str) else shown.items()


def _values(reply: Reply) -> list[bytes | None]:
    return cast("list[bytes | None]", reply)
