"""A broker and a store for one piece of the campaign, each on a small disk of its own where that is allowed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqe_chain.adapters import open_store
from sqe_chain.ext.dev import CassandraServer, KafkaServer, PostgresServer, RedisServer
from sqe_chain.ports import WithSchema
from tests.support.lossy_proxy import LossyProxy

Store = RedisServer | PostgresServer | CassandraServer
_MAKES: Final[dict[str, Callable[[Path], Store]]] = {
    "redis": RedisServer,
    "postgres": PostgresServer,
    "cassandra": lambda place: CassandraServer(place, heap_mb=768),
}
STORES: Final = tuple(_MAKES)
_DISK_MB: Final = {"kafka": 1024, "redis": 512, "postgres": 1536, "cassandra": 1536}
_ROOM: Final = 1 << 20
"""Bytes that a full disk has left: the next writes fail, not the server's own housekeeping before."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Where a server keeps its data.

    Attributes:
        place: the directory.
        own: whether it is a file system of its own, which can be filled.
    """

    place: Path
    own: bool

    @property
    def _ballast(self) -> Path:
        return self.place / "ballast"

    def fill(self) -> None:
        """Take nearly all that is free."""
        room = os.statvfs(self.place)
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(room.f_bavail * room.f_frsize - _ROOM, 4096))

    def free(self) -> None:
        """Give it back."""
        self._ballast.unlink()


@dataclass(frozen=True, slots=True)
class Servers:
    """What the services of a piece talk to.

    Attributes:
        broker: with topics of its own.
        store: with its tables.
        broker_disk: of the broker.
        store_disk: of the store.
        proxy: between services and store, to lose answers; None: its clients go past a proxy.
    """

    broker: KafkaServer
    store: Store
    broker_disk: Disk
    store_disk: Disk
    proxy: LossyProxy | None

    @property
    def service_store(self) -> str:
        """The store's URL for services: short patience, and through the proxy."""
        url = self.store.url
        if self.proxy is not None:
            url = url.replace(f":{self.store.port}", f":{self.proxy.port}")
        return f"{url}{'&' if '?' in url else '?'}timeout_s=2"


@contextmanager
def running(kind: str, directory: Path) -> Iterator[Servers]:
    """A broker and a store, until the end of the context.

    Args:
        kind: of `STORES`.
        directory: for their data.
    """
    with ExitStack() as run:
        broker_disk, store_disk = (run.enter_context(_disk(name, directory)) for name in ("kafka", kind))
        broker = run.enter_context(KafkaServer(broker_disk.place / "data", fast_boot=True))
        store = _MAKES[kind](store_disk.place / "data")
        run.enter_context(store)
        with closing(open_store(store.url)) as opened:
            if isinstance(opened, WithSchema):
                opened.make_schema({"": 1} if kind == "cassandra" else {})
        proxy = None if kind == "cassandra" else run.enter_context(LossyProxy(store.port))
        yield Servers(broker, store, broker_disk, store_disk, proxy)


@contextmanager
def _disk(name: str, directory: Path) -> Iterator[Disk]:
    """A file system in memory; a plain directory where this user must not mount one."""
    place = directory / name
    place.mkdir()
    size = f"size={_DISK_MB[name]}m"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", place], capture_output=True, check=False
    )
    own = mounted.returncode == 0
    try:
        yield Disk(place, own)
    finally:
        if own:
            subprocess.run(["umount", "--lazy", place], check=True)
