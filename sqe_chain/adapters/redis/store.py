"""The Redis store: each atomic operation is one script, whose keys are all in one hash slot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, cast

from sqe_chain.adapters.redis import layout, scripts
from sqe_chain.adapters.redis.client import RedisClient
from sqe_chain.adapters.redis.connections import Argument, RedisSettings, Reply
from sqe_chain.adapters.redis.layout import cell_key, flow_key, number_text, record_arguments
from sqe_chain.adapters.store_rules import (
    HEADER_FIELDS,
    HOME_FIELDS,
    Cell,
    CheckedStore,
    SizeLimits,
    cell_of,
    header_values,
    home_values,
    with_lost,
)
from sqe_chain.ports import Header, Home, Locations, Rows, ViewKind, Views

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
_ACCEPT: Final = "--allow-weak-durability accepts that"


class RedisStore(CheckedStore):
    """A `StateStore` in Redis 6.2 or later: one server, a cluster, or a master behind sentinels.

    The object holds only settings and can be pickled.

    The layout is documented in docs/stores.md, because other programs may read it.

    Args:
        settings: how to reach the server.
        max_rows: most rows of one `write`.
        max_bytes: most bytes of keys and states in one `write`.
    """

    views: frozenset[ViewKind] = frozenset({"json", "hash"})

    def __init__(self, settings: RedisSettings, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(max_rows, max_bytes)
        self.settings = settings

    def __repr__(self) -> str:
        return f"RedisStore({self.settings})"

    @property
    def _client(self) -> RedisClient:
        return RedisClient.of_this_process(self.settings)

    @property
    def _limits(self) -> SizeLimits:
        return self._client.limits

    def check(self) -> list[str]:
        client = self._client
        client.ping()
        weak = []
        for name, wanted in _STRONG.items():
            servers: dict[str | None, list[str]] = {}
            for address, value in client.setting(name).items():
                servers.setdefault(value, []).append(address)
            for value, addresses in servers.items():
                if value == wanted or (value is None and self._is_declared):
                    continue
                trouble = (
                    f"the setting {name} cannot be read, so it may be weak; it should be {wanted}"
                    if value is None
                    else f"{name} is {value}, so acknowledged states may be lost; set it to {wanted}"
                )
                weak.append(f"{', '.join(addresses)}: {trouble}. {_ACCEPT}")
        read_only = client.setting("replica-read-only")
        weak += [
            f"{address}: it is a replica of {master}, takes writes, and its master overwrites them; use the master's address. {_ACCEPT}"
            for address, master in client.setting("replicaof").items()
            if master and read_only.get(address) == "no"
        ]
        if self.settings.wait_replicas or self.settings.wait_aof_replicas:
            return weak
        replicas = client.failover()
        if replicas is not False and not (replicas is None and self._is_declared):
            trouble = (
                "it cannot be read whether there are replicas; one that takes over may lack acknowledged states"
                if replicas is None
                else "a replica that replaces its master may lack states that were acknowledged"
            )
            weak.append(
                f"{self.settings}: {trouble}; wait for replicas with the option wait_replicas=1. {_ACCEPT}"
            )
        return weak

    @property
    def _is_declared(self) -> bool:
        return self.settings.durability == "declared"

    def remarks(self) -> list[str]:
        unread = sorted(name for name in _STRONG if None in self._client.setting(name).values())
        if not unread or not self._is_declared:
            return []
        return [
            f"{self.settings}: {', '.join(unread)} cannot be read, and durability=declared in the address vouches for them"
        ]

    def clocks(self) -> dict[str, int]:
        """The clocks of the servers, in milliseconds since 1970."""
        return self._client.clocks()

    def home(self, flow: str) -> tuple[Home | None, int]:
        key = flow_key(flow, "home")
        fields, beat = self._client.together([("HMGET", key, *HOME_FIELDS), ("GET", flow_key(flow, "beat"))])
        return layout.home_of(_values(fields), key), int(cast("bytes | None", beat) or 0)

    def _set_home(
        self, flow: str, before: Home | None, after: Home, plan: bytes | None, drop_below: int
    ) -> Home | None:
        arguments: list[Argument] = [
            *record_arguments(home_values(before)),
            *record_arguments(home_values(after)),
            number_text(drop_below) if drop_below > 0 else b"",
        ]
        if plan is not None:
            arguments += [number_text(after.number), plan]
        return self._home_after(scripts.SET_HOME, flow, ("home", "plans"), arguments)

    def _home_after(
        self, script: scripts.Script, flow: str, names: Sequence[str], arguments: Sequence[Argument]
    ) -> Home | None:
        """The home that a script leaves; its key is the first."""
        keys = [flow_key(flow, name) for name in names]
        return layout.home_of(_values(self._client.run(script, keys, arguments)), keys[0])

    def beat(self, flow: str, epoch: int, run_id: str) -> bool:
        keys = [flow_key(flow, "home"), flow_key(flow, "beat")]
        return self._client.run(scripts.BEAT, keys, [number_text(epoch), run_id.encode()], lasting=False) == 1

    def plan(self, flow: str, number: int) -> bytes | None:
        if number < 0:
            return None
        command = ("HGET", flow_key(flow, "plans"), number_text(number))
        return cast("bytes | None", self._client.together([command])[0])

    def flows(self) -> list[str]:
        # Scans all keys of all masters, without blocking them.
        flows = {layout.flow_of(key) for key in self._client.keys(layout.HOMES)}
        return sorted(flow for flow in flows if flow is not None)

    def forget(self, flow: str, before: Home) -> Home | None:
        arguments = record_arguments(home_values(before))
        return self._home_after(scripts.FORGET_HOME, flow, ("home", "beat", "plans"), arguments)

    def forget_part(self, flow: str, stage: str, part: int, before: Header) -> Header | None:
        keys = [cell_key(cell_of(flow, stage, part), name) for name in ("header", "states", "json")]
        current = self._client.run(scripts.FORGET_PART, keys, record_arguments(header_values(before)))
        return layout.header_of(_values(current), keys[0])

    def headers(self, flow: str, stage: str, parts: Sequence[int]) -> list[Header | None]:
        # Two round trips, and not one snapshot.
        cells = [cell_of(flow, stage, part) for part in parts]
        replies = self._client.together([_header_command(cell) for cell in cells]) if cells else []
        values = dict(zip(cells, map(_values, replies), strict=True))
        noted = [cell for cell in cells if values[cell][-1] is not None]
        answers = self._client.together([_count_command(cell) for cell in noted]) if noted else []
        counts = dict(zip(noted, answers, strict=True))
        return [self._header_with_lost(cell, values[cell], counts.get(cell)) for cell in cells]

    def _header_with_lost(self, cell: Cell, values: Sequence[bytes | None], count: Reply) -> Header | None:
        """The header in these values. Another run may have written before the states were counted, so both are read again."""
        header = _header_of(cell, values)
        expected = layout.expected_states(values[-1], values[1])
        if header is None or expected is None or expected == count:
            return header
        keys = [cell_key(cell, "header"), cell_key(cell, "states")]
        now = cast("list[int]", self._client.run(scripts.WITNESS_NOW, keys, [], lasting=False))
        return with_lost(header, now[0], now[1]) if now else header

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        # One round trip for each 20,000 keys.
        cell = cell_of(flow, stage, part)
        commands: list[Sequence[Argument]] = [_header_command(cell)]
        commands += [
            ("HMGET", cell_key(cell, "states"), *keys[start : start + _READ_KEYS])
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
        before, after = (_header_of(cell, _values(reply)) for reply in (first, last))
        with_losses = self._header_with_lost(cell, _values(last), count)
        return (with_losses if before == after else before), states, with_losses

    def _write(
        self, cell: Cell, before: Header | None, after: Header, rows: Rows, views: Views | None
    ) -> Header | None:
        kept = [row for row in rows if row[1] is not None]
        deleted = [key for key, state in rows if state is None]
        keys: list[str | bytes] = [cell_key(cell, "header"), cell_key(cell, "states")]
        states: list[Argument] = [field for row in kept for field in row if field is not None]
        script = scripts.WRITE
        shown: list[Argument] = []
        showing = [key for key, _ in kept if views is not None and key in views.shown]
        if views is not None and views.kind == "json":
            script = scripts.WRITE_JSON
            keys.append(cell_key(cell, "json"))
            shown = [2 * len(showing)]
            shown += [field for key in showing for field in (key, str(views.shown[key]))]
        elif views is not None:
            script = scripts.WRITE_HASHES
            keys += [layout.hash_key(cell, key) for key in (*showing, *deleted)]
            shown = [len(showing)]
            for key in showing:
                view = views.shown[key]
                fields = [] if isinstance(view, str) else [text for field in view.items() for text in field]
                shown += (len(fields), *fields)
        records = [*record_arguments(header_values(before)), *record_arguments(header_values(after))]
        reply = self._client.run(script, keys, [*records, len(states), *states, *shown, *deleted])
        return layout.header_of(_values(reply), str(keys[0]))

    def scan(self, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        # A key may come twice if the hash shrinks in the meantime.
        for page in self._client.pages(cell_key(cell_of(flow, stage, part), "states"), _PAGE_BYTES):
            yield from page.items()

    def locations(self, flow: str) -> Locations | None:
        return self._locations_after(scripts.GET_LOCATIONS, flow, [], lasting=False)

    def _set_locations(self, flow: str, after: Locations) -> Locations | None:
        return self._locations_after(scripts.SET_LOCATIONS, flow, layout.locations_arguments(after))

    def forget_locations(self, flow: str, before: Locations) -> Locations | None:
        age = [number_text(number) for number in before.age]
        return self._locations_after(scripts.FORGET_LOCATIONS, flow, age)

    def _locations_after(
        self, script: scripts.Script, flow: str, arguments: Sequence[Argument], *, lasting: bool = True
    ) -> Locations | None:
        key = flow_key(flow, "locations")
        reply = self._client.run(script, [key], arguments, lasting=lasting)
        return layout.locations_of(cast("list[bytes]", reply), key)

    def try_writes(
        self, flow: str, cells: Sequence[tuple[str, int]], views: Collection[ViewKind] = ()
    ) -> list[str]:
        """Try all that a service does: a script for the home record and for each cell, whose key is gone when it ends.

        Args:
            flow: name of the flow.
            cells: stage and number of each cell that it writes.
            views: kinds of the views that it writes.

        Returns:
            What could not be tried: before Redis 7.0, rights that a script cannot ask for.

        Raises:
            Unavailable: no answer, or a server takes no writes now, or has too few replicas.
            ConfigurationError: the user may not do it.
        """
        keys = [flow_key(flow, "doctor"), *(cell_key(cell_of(flow, *cell), "doctor") for cell in cells)]
        more = ["DEL"] if "hash" in views else []
        asked = [self._client.run(scripts.TRY, [key], more) for key in keys]
        if all(asked):
            return []
        return [
            f"{self.settings}: a server before Redis 7.0 reports no rights; a field was written and deleted, and nothing else was tried"
        ]

    def close(self) -> None:
        RedisClient.forget(self.settings)


def _header_command(cell: Cell) -> Sequence[Argument]:
    """Asks for a header, and at the end for the number of its states."""
    return ("HMGET", cell_key(cell, "header"), *HEADER_FIELDS, layout.WITNESS)


def _header_of(cell: Cell, values: Sequence[bytes | None]) -> Header | None:
    return layout.header_of(values[:-1], cell_key(cell, "header"))


def _count_command(cell: Cell) -> Sequence[Argument]:
    return ("HLEN", cell_key(cell, "states"))


def _values(reply: Reply) -> list[bytes | None]:
    return cast("list[bytes | None]", reply)
