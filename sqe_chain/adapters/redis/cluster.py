"""A Redis Cluster: which server owns a slot, and what to do when a slot has moved.

The order of reads matters: a header, states, the header again. So a read that was redirected in part is repeated as a
whole, one command after the other. While a slot moves, its keys are not all on the same server.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

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

from sqe_chain.adapters.address import HostPort, host_port_text
from sqe_chain.adapters.redis.connections import (
    Answer,
    Command,
    RedisServers,
    RedisSettings,
    Reply,
    SingleRedisServer,
    meaning_of,
    reply_of,
)
from sqe_chain.adapters.store_rules import Meaning

_REDIRECTIONS: Final = 5
"""More of them in a row mean that nodes disagree. That may pass, and the protocol retries."""


class RedisCluster(RedisServers):
    """The masters of a cluster, one pool of connections for each."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._servers: dict[HostPort, SingleRedisServer] = {}
        # Slot -> the master that had it last. It may be wrong: a redirection corrects it.
        self._owners: dict[int, HostPort] = {}
        # Which node is asked for the owners of all slots next.
        self._turn = 0

    def exchange(self, commands: Sequence[Command]) -> list[Answer]:
        addresses: dict[HostPort, list[int]] = {}
        for number, command in enumerate(commands):
            addresses.setdefault(self._owner(_slot(command)), []).append(number)
        answers: dict[int, Answer] = {}
        for address, numbers in addresses.items():
            replies = self._send(address, [commands[number] for number in numbers])
            if any(isinstance(answer, AskError) for answer in replies):  # MovedError is one
                replies = [self.exchange_in_slot([commands[number]])[0] for number in numbers]
            answers |= zip(numbers, replies, strict=True)
        return [answers[number] for number in range(len(commands))]

    def exchange_in_slot(self, commands: Sequence[Command]) -> list[Answer]:
        # A redirected command was not executed, so all are sent again to the new server.
        slot = _slot(commands[0])
        address, asking = self._owner(slot), False
        for _ in range(_REDIRECTIONS):
            if asking:
                asked, *answers = self._send(address, [("ASKING",), *commands])
                reply_of(asked)
            else:
                answers = self._send(address, commands)
            match answers[0]:
                case MovedError() as moved:
                    address, asking = _target(moved, address), False
                    self._owners[slot] = address
                case AskError() as ask:
                    address, asking = _target(ask, address), True
                case _:
                    return answers
        raise ClusterError(
            f"slot {slot}: redirected {_REDIRECTIONS} times, last to {host_port_text(address)}"
        )

    @contextlib.contextmanager
    def pin(self, key: str) -> Iterator[Callable[[Command], Reply]]:
        reply_of(self.exchange_in_slot([("HMGET", key, "")])[0])  # learns the owner, if the slot has moved
        with self._server(self._owner(_slot(("HMGET", key)))).pin(key) as ask:

            def unmoved(command: Command) -> Reply:
                try:
                    return ask(command)
                except AskError as error:
                    raise TryAgainError(
                        f"{key} has moved to another server in the meantime; begin again"
                    ) from error

            yield unmoved

    def each(self, command: Command) -> dict[str, Answer]:
        return {
            host_port_text(address): self._send(address, [command])[0] for address in self._known_masters()
        }

    def masters(self) -> Sequence[SingleRedisServer]:
        return [self._server(address) for address in self._known_masters()]

    def _known_masters(self) -> list[HostPort]:
        return sorted(set(self._discover().values()))

    def failover(self) -> bool | None:
        # CLUSTER SLOTS omits replicas without data.
        nodes = next(iter(self.each(("CLUSTER", "NODES")).values()))
        if not isinstance(nodes, bytes):
            return None
        return any(b"slave" in line.split()[2] for line in nodes.splitlines())

    def close(self) -> None:
        for server in self._servers.copy().values():
            server.close()

    def _send(self, address: HostPort, commands: Sequence[Command]) -> list[Answer]:
        try:
            answers = self._server(address).exchange(commands)
        except (RedisConnectionError, RedisTimeoutError):
            self._owners = {}  # a replica may have taken over; the next call asks
            raise
        if any(isinstance(answer, ClusterDownError) for answer in answers):
            self._owners = {}
        return answers

    def _server(self, address: HostPort) -> SingleRedisServer:
        return self._servers.get(address) or self._servers.setdefault(
            address, SingleRedisServer(self._settings, address)
        )

    def _owner(self, slot: int) -> HostPort:
        address = self._owners.get(slot) or self._discover().get(slot)
        if address is None:
            raise SlotNotCoveredError(f"no server of the cluster owns slot {slot}")
        return address

    def _discover(self) -> dict[int, HostPort]:
        """Ask for the owners of all slots, another node first each time: one may be cut off from the others."""
        addresses = list(dict.fromkeys([*self._settings.nodes, *self._servers]))
        self._turn += 1
        failure: Exception | None = None
        for number in range(len(addresses)):
            address = addresses[(self._turn + number) % len(addresses)]
            try:
                (answer,) = self._server(address).exchange([("CLUSTER", "SLOTS")])
            except (RedisConnectionError, RedisTimeoutError) as error:
                if meaning_of(error) is Meaning.SETTINGS:  # a wrong password is one of these, too
                    raise
                failure = error
                continue
            self._learn(cast("list[list[Reply]]", reply_of(answer)), address)
            if self._owners:
                return self._owners
        raise failure or SlotNotCoveredError("no node of the cluster knows who owns its slots")

    def _learn(self, ranges: Sequence[Sequence[Reply]], asked: HostPort) -> None:
        owners: dict[int, HostPort] = {}
        for first, last, master, *_ in ranges:
            host, port = cast("list[Reply]", master)[:2]
            # A node that does not know its own address leaves it out.
            name = host.decode() if isinstance(host, bytes) and host not in {b"", b"?"} else asked[0]
            owners |= zip(
                range(cast("int", first), cast("int", last) + 1),
                itertools.repeat((name, cast("int", port))),
                strict=False,
            )
        self._owners = owners


def _slot(command: Command) -> int:
    key = command[3] if command[0] in {"EVALSHA", "EVAL"} else command[1]
    return key_slot(str(key).encode())


def _target(redirection: AskError, asked: HostPort) -> HostPort:
    return redirection.host or asked[0], redirection.port
