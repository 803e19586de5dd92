"""A Redis Cluster: which server owns a slot, and what to do when it moved.

The order of reads matters (a header, states, the header again), so a read that was redirected in part is
asked again as a whole, one command after the other: while a slot moves, each key is in one place, but not
all keys of the slot are in the same one.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Final, cast

from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ClusterError,
    MovedError,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from sqe_chain.stores.redis.connections import Server, checked
from sqe_chain.stores.redis.faults import Meaning, meaning_of
from sqe_chain.stores.redis.settings import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqe_chain.stores.redis.connections import Answer, Command, Reply
    from sqe_chain.stores.redis.settings import Place, RedisSettings

_REDIRECTIONS: Final = 5
"""More of them in a row mean that nodes disagree; that passes, or never does. The protocol waits."""


class Cluster:
    """The masters of a cluster, one pool of connections for each."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._servers: dict[Place, Server] = {}
        self._owners: dict[int, Place] = {}
        self._turn = 0

    def exchange(self, commands: Sequence[Command]) -> list[Answer]:
        """See `Servers.exchange`: one round trip for each server, unless slots are moving."""
        places: dict[Place, list[int]] = {}
        for number, command in enumerate(commands):
            places.setdefault(self._owner(_slot(command)), []).append(number)
        answers: dict[int, Answer] = {}
        for place, numbers in places.items():
            found = self._send(place, [commands[number] for number in numbers])
            if any(isinstance(answer, AskError) for answer in found):  # MovedError is one
                found = [self.step([commands[number]])[0] for number in numbers]
            answers |= zip(numbers, found, strict=True)
        return [answers[number] for number in range(len(commands))]

    def step(self, commands: Sequence[Command]) -> list[Answer]:
        """See `Servers.step`. What was redirected was not executed, so all is sent again there."""
        slot = _slot(commands[0])
        place, asking = self._owner(slot), False
        for _ in range(_REDIRECTIONS):
            if asking:
                asked, *answers = self._send(place, [("ASKING",), *commands])
                checked(asked)
            else:
                answers = self._send(place, commands)
            match answers[0]:
                case MovedError() as moved:
                    place, asking = _target(moved, place), False
                    self._owners[slot] = place
                case AskError() as ask:
                    place, asking = _target(ask, place), True
                case _:
                    return answers
        raise ClusterError(f"slot {slot}: redirected {_REDIRECTIONS} times, lastly to {shown(place)}")

    @contextlib.contextmanager
    def pinned(self, key: str) -> Iterator[Callable[[Command], Reply]]:
        """See `Servers.pinned`."""
        checked(self.step([("HMGET", key, "")])[0])  # learns the owner, if the slot has moved
        with self._server(self._owner(_slot(("HMGET", key)))).pinned(key) as ask:

            def unmoved(command: Command) -> Reply:
                try:
                    return ask(command)
                except AskError as error:
                    raise TryAgainError(f"{key} moved to another server meanwhile; begin again") from error

            yield unmoved

    def each(self, command: Command) -> dict[str, Answer]:
        """See `Servers.each`: the masters that own slots now."""
        self._discover()
        return {shown(place): self._send(place, [command])[0] for place in sorted(set(self._owners.values()))}

    def masters(self) -> Sequence[Server]:
        """See `Servers.masters`."""
        self._discover()
        return [self._server(place) for place in sorted(set(self._owners.values()))]

    def failover(self) -> bool | None:
        """See `Servers.failover`: whether any node is a replica. CLUSTER SLOTS leaves out those without data."""
        nodes = next(iter(self.each(("CLUSTER", "NODES")).values()))
        if not isinstance(nodes, bytes):
            return None
        return any(b"slave" in line.split()[2] for line in nodes.splitlines())

    def close(self) -> None:
        """See `Servers.close`."""
        for server in self._servers.copy().values():
            server.close()

    def _send(self, place: Place, commands: Sequence[Command]) -> list[Answer]:
        try:
            answers = self._server(place).exchange(commands)
        except (RedisConnectionError, RedisTimeoutError):
            self._owners = {}  # perhaps it has a successor; the next call asks
            raise
        if any(isinstance(answer, ClusterDownError) for answer in answers):
            self._owners = {}
        return answers

    def _server(self, place: Place) -> Server:
        return self._servers.get(place) or self._servers.setdefault(place, Server(self._settings, place))

    def _owner(self, slot: int) -> Place:
        place = self._owners.get(slot) or self._discover().get(slot)
        if place is None:
            raise SlotNotCoveredError(f"no server of the cluster owns slot {slot}")
        return place

    def _discover(self) -> dict[int, Place]:
        """Ask for the owners of all slots, each time another node first: one may be cut off from the others."""
        places = list(dict.fromkeys([*self._settings.nodes, *self._servers]))
        self._turn += 1
        failure: Exception | None = None
        for number in range(len(places)):
            place = places[(self._turn + number) % len(places)]
            try:
                (answer,) = self._server(place).exchange([("CLUSTER", "SLOTS")])
            except (RedisConnectionError, RedisTimeoutError) as error:
                if meaning_of(error) is Meaning.SETTINGS:  # a wrong password is one of these, too
                    raise
                failure = error
                continue
            self._learn(cast("list[list[Reply]]", checked(answer)), place)
            if self._owners:
                return self._owners
        raise failure or SlotNotCoveredError("no node of the cluster knows who owns its slots")

    def _learn(self, ranges: Sequence[Sequence[Reply]], asked: Place) -> None:
        owners: dict[int, Place] = {}
        for first, last, master, *_ in ranges:
            host, port = cast("list[Reply]", master)[:2]
            # A node that does not know by what name it is reached leaves it out.
            name = host.decode() if isinstance(host, bytes) and host not in {b"", b"?"} else asked[0]
            owners |= zip(
                range(cast("int", first), cast("int", last) + 1),
                itertools.repeat((name, cast("int", port))),
                strict=False,
            )
        self._owners = owners


def _slot(command: Command) -> int:
    """The slot of a command's first key."""
    key = command[3] if command[0] in {"EVALSHA", "EVAL"} else command[1]
    return key_slot(str(key).encode())


def _target(redirection: AskError, asked: Place) -> Place:
    return redirection.host or asked[0], redirection.port
