"""Goal: after a fault no acknowledged write is lost, and every outcome can be known. Method: real servers, real faults.

One test for each fault and store. Each writes steps that have their number in every row, and looks afterwards. The
stored header is that of the last acknowledged step, or of the one whose outcome was unknown. All rows are of
that step, and sending it again gets through.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from sqe_chain.adapters import open_store
from sqe_chain.errors import ChainError, ConfigurationError, Unavailable
from sqe_chain.ext.dev import CassandraServer, PostgresServer, RedisServer
from sqe_chain.ext.dev.server import Server
from sqe_chain.ports import Header, StateStore, WithSchema
from tests.support.lossy_proxy import LossyProxy
from tests.support.redis_servers import RedisCluster, send_command, server_info
from tests.support.store_faults import FAULTS, IMPOSSIBLE, STORES
from tests.support.waiting import PATIENCE_S, eventually, retry_until_available

BORN = Header(1, "run-a", 0, "plan-0")
RETRY_TIMEOUT_S = PATIENCE_S
TIMEOUT_S = 1.0
retry = partial(retry_until_available, timeout_s=RETRY_TIMEOUT_S)
KEYS = [b"%03d" % number for number in range(50)]
LARGE = 4_000
"""Bytes of a state where a disk shall be filled."""

Rows = list[tuple[bytes, bytes | None]]


def rows_of(header: Header, size: int = 0) -> Rows:
    """Rows that identify the step that wrote them."""
    return [(key, (b"%d" % header.number).ljust(size, b".")) for key in KEYS]


@dataclass
class Steps:
    """Consecutive steps into one state partition, and their outcomes."""

    store: StateStore
    flow: str
    size: int = 0
    acknowledged: Header = BORN
    tried: Header = BORN

    def begin(self) -> None:
        self.store.write(self.flow, "s", 0, None, BORN, rows_of(BORN, self.size))

    def step(self) -> None:
        """The next step; after an error it is not known whether it was done."""
        before = self.acknowledged
        self.tried = replace(before, number=before.number + 1)
        standing = self.store.write(self.flow, "s", 0, before, self.tried, rows_of(self.tried, self.size))
        assert standing == self.tried
        self.acknowledged = self.tried

    def until_refused(self, timeout_s: float = RETRY_TIMEOUT_S) -> ChainError:
        """Step until the store refuses."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                self.step()
            except (Unavailable, ConfigurationError) as error:
                return error
        raise AssertionError("nothing was refused")

    def read(self) -> tuple[Header | None, list[bytes | None]]:
        """Header and states of one moment: a step that nobody answered may still be done between the reads."""
        found, states, after = self.store.read(self.flow, "s", 0, KEYS)
        if found != after:
            raise Unavailable(f"{found} became {after} while the states were read")
        return found, states

    def check(self) -> None:
        """What is stored, once the store works again."""
        found, states = retry(self.read)
        assert found in (self.acknowledged, self.tried), "an acknowledged step is lost, or another was done"
        assert found is not None
        assert states == [state for _, state in rows_of(found, self.size)], (
            "rows and header are not of one step"
        )
        before, tried = self.acknowledged, self.tried
        if tried != before:
            again = retry(
                lambda: self.store.write(self.flow, "s", 0, before, tried, rows_of(tried, self.size))
            )
            assert again == tried, "sending it again did not get through"
            self.acknowledged = tried
        retry(self.step)


@dataclass
class Target:
    """A store with its server, for one test.

    Attributes:
        url: its address, with a short `timeout_s`.
        flow: a flow that no other test uses.
        server: the server that holds the flow's state partition.
    """

    url: str
    flow: str
    server: Server | None = None
    opened: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def steps(self, size: int = 0, **options: str) -> Steps:
        store = open_store(self.url, **options)
        self.opened.callback(store.close)
        steps = Steps(store, self.flow, size)
        retry(steps.begin)
        return steps

    @property
    def process(self) -> Server:
        assert self.server is not None
        return self.server


Servers = dict[str, "RedisServer | RedisCluster | CassandraServer | PostgresServer"]
Make = Callable[..., Target]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Running servers of earlier tests, by kind of store."""
    with contextlib.ExitStack() as opened:
        found: Servers = {}
        yield found
        for server in found.values():
            opened.push(server.__exit__)


@pytest.fixture
def target(tmp_path: Path, servers: Servers) -> Iterator[Make]:
    """Creates a store of a kind; with a disk, on a new server that uses it."""
    with contextlib.ExitStack() as opened:

        def make(kind: str, disk: Path | None = None) -> Target:
            flow = f"faults-{uuid.uuid4().hex[:8]}"
            if kind == "sqlite":
                return Target(f"sqlite://{disk or tmp_path}/states.db?timeout_s={TIMEOUT_S}", flow)
            if disk is not None:
                server = _started(kind, disk)
                opened.enter_context(server)
                return _of(server, flow, opened)
            if kind not in servers:
                servers[kind] = _started(kind).__enter__()
            return _of(servers[kind], flow, opened)

        yield make


def _started(
    kind: str, disk: Path | None = None
) -> RedisServer | RedisCluster | CassandraServer | PostgresServer:
    if kind == "redis":
        return RedisServer(data_dir=disk and disk / "redis")
    if kind == "cassandra":
        return CassandraServer(data_dir=disk and disk / "cassandra")
    if kind == "postgres":
        return PostgresServer(data_dir=disk and disk / "postgres")
    return RedisCluster(disk)


def _of(
    server: RedisServer | RedisCluster | CassandraServer | PostgresServer,
    flow: str,
    opened: contextlib.ExitStack,
) -> Target:
    timeout = f"timeout_s={TIMEOUT_S}"
    if isinstance(server, RedisCluster):
        return Target(f"{server.url}?{timeout}", flow, server.owner(f"sqe:{{{flow}/s/0}}:header"), opened)
    if isinstance(server, RedisServer):
        return Target(f"{server.url}?{timeout}", flow, server, opened)
    store = open_store(server.url)
    assert isinstance(store, WithSchema)
    retry(partial(store.make_schema, {"": 1}))
    store.close()
    patience = TIMEOUT_S if isinstance(server, PostgresServer) else 3 * TIMEOUT_S
    return Target(f"{server.url}?timeout_s={patience}", flow, server, opened)


def fault(name: str) -> pytest.MarkDecorator:
    """One test for each store with which this fault is possible; the others are skipped with the reason."""
    assert name in FAULTS
    marked = []
    for store in STORES:
        why = IMPOSSIBLE.get((store, name))
        marks = (
            [pytest.mark.skip(reason=f"{name} of {store}: not possible here, because {why}")] if why else []
        )
        if store == "cassandra" and not why:  # it starts again, which takes longest
            marks = [pytest.mark.release]
        marked.append(pytest.param(store, marks=marks, id=f"{name}-{store}"))
    return pytest.mark.parametrize("kind", marked)


# --- the server goes away ------------------------------------------------------------------------------


@fault("kill")
def test_a_kill_in_the_middle_of_writes(kind: str, target: Make) -> None:
    made = target(kind)
    steps = made.steps()
    for _ in range(2):
        began = steps.acknowledged.number
        if kind == "sqlite":
            _killed_writer(made.url, steps)
        else:
            retry(steps.step)
            killer = threading.Timer(0.4, made.process.kill)
            killer.start()
            assert isinstance(steps.until_refused(), Unavailable)
            killer.join()
            assert not made.process.running
            made.process.start()
        assert steps.acknowledged.number > began, "killed before anything was written"
        steps.check()


WRITER = """
import sys
from dataclasses import replace
from sqe_chain.ports import Header
from sqe_chain.adapters import open_store
store, header = open_store(sys.argv[1]), Header(1, "run-a", int(sys.argv[2]), "plan-0")
while True:
    after = replace(header, number=header.number + 1)
    rows = [(b"%03d" % number, b"%d" % after.number) for number in range(50)]
    assert store.write(sys.argv[3], "s", 0, header, after, rows) == after
    header = after
    print(header.number, flush=True)
"""


def _killed_writer(url: str, steps: Steps) -> None:
    """Another process writes until it is killed, and reports each acknowledged step."""
    arguments = [sys.executable, "-c", WRITER, url, str(steps.acknowledged.number), steps.flow]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        number = writer.stdout.readline()
        threading.Timer(0.3, writer.kill).start()
        for line in writer.stdout:
            number = line if line.endswith("\n") else number
    assert writer.returncode == -signal.SIGKILL
    steps.acknowledged = replace(steps.acknowledged, number=int(number))
    steps.tried = replace(steps.acknowledged, number=int(number) + 1)


@fault("reconnect")
def test_a_restart_between_two_calls(kind: str, target: Make) -> None:
    made = target(kind)
    steps = made.steps()
    retry(steps.step)
    made.process.stop()
    made.process.start()
    steps.check()


# --- the server is silent ------------------------------------------------------------------------------


@contextlib.contextmanager
def silent(made: Target) -> Iterator[None]:
    """While in the context, the server does not answer."""
    if made.server is not None:
        made.server.pause()
        try:
            yield
        finally:
            made.server.resume()
        return
    path = made.url.removeprefix("sqlite://").partition("?")[0]
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


@fault("timeout")
def test_a_silent_server_is_noticed_in_bounded_time(kind: str, target: Make) -> None:
    made = target(kind)
    steps = made.steps()
    with silent(made):
        began = time.monotonic()
        with pytest.raises(Unavailable):
            steps.step()
        assert time.monotonic() - began < RETRY_TIMEOUT_S / 2  # bounded: else it would wait without end
    steps.check()


@fault("slow")
def test_a_slow_answer_is_waited_for(kind: str, target: Make) -> None:
    made = target(kind)
    steps = made.steps(timeout_s="30")
    with contextlib.ExitStack() as silence:
        silence.enter_context(silent(made))
        waker = threading.Timer(1.5 * TIMEOUT_S, silence.close)
        waker.start()
        steps.step()
        waker.join()
    steps.check()


@fault("lost-answer")
def test_an_answer_that_is_lost_after_the_effect(kind: str, target: Make) -> None:
    made = target(kind)
    with LossyProxy(made.process.port) as wire:
        made.url = made.url.replace(f":{made.process.port}", f":{wire.port}")
        steps = made.steps()
        retry(steps.step)
        for _ in range(3):
            wire.responses_to_drop = 1
            with contextlib.suppress(Unavailable):  # Cassandra's store finds out the outcome by itself
                steps.step()
            assert wire.responses_to_drop == 0
            steps.check()


# --- the disk ------------------------------------------------------------------------------------------

SIZES_MB = {"sqlite": 8, "redis": 16, "redis-cluster": 24, "cassandra": 420, "postgres": 160}
"""Of the disk. Cassandra sets aside segments of its commit log."""
ROOM_MB = {"sqlite": 2, "redis": 4, "redis-cluster": 4, "cassandra": 4, "postgres": 4}


@pytest.fixture
def disk(tmp_path: Path, kind: str) -> Iterator[Path]:
    """A small disk in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    size = f"size={SIZES_MB[kind]}m"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a disk of its own needs the right to mount: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@fault("disk-full")
def test_a_full_disk(kind: str, disk: Path, target: Make) -> None:
    """The current step is refused, acknowledged writes stay, and with free space the service continues."""
    made = target(kind, disk)
    steps = made.steps(LARGE)
    retry(steps.step)
    ballast = disk / "ballast"
    room = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(room - (ROOM_MB[kind] << 20), 4096))
    assert isinstance(steps.until_refused(), Unavailable)
    assert steps.acknowledged.number > 1
    ballast.unlink()
    if made.server is not None:  # some servers end by themselves, others must be restarted
        made.server.kill()
        made.server.start()
    steps.check()


@fault("read-only")
def test_a_server_that_no_longer_accepts_writes(
    kind: str, target: Make, request: pytest.FixtureRequest
) -> None:
    """Writes are refused with a clear error and change nothing; when it accepts writes again, the service continues."""
    if kind == "sqlite":
        disk = request.getfixturevalue("disk")
        made = target(kind, disk)
        steps = made.steps()
        retry(steps.step)
        steps.store.close()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises((ConfigurationError, Unavailable), match=r"states\.db"):
            steps.step()
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        steps.check()
        return
    made = target(kind)
    steps = made.steps()
    retry(steps.step)
    if kind == "postgres":
        _set_read_only(made, "on")
        for _ in range(2):  # by the connection that is open, then by a new one
            with pytest.raises(Unavailable, match="the server is a replica, or takes no writes"):
                steps.step()
            steps.store.close()
        _set_read_only(made, "off")
        steps.check()
        return
    with RedisServer() as other:
        assert isinstance(made.server, RedisServer)
        send_command(other, "REPLICAOF", "127.0.0.1", made.server.port)
        eventually(lambda: _in_step(other), "the replica has everything")
        replica = Steps(open_store(f"{other.url}?timeout_s={TIMEOUT_S}"), steps.flow, 0, steps.acknowledged)
        with pytest.raises(Unavailable, match=r"(?i)read only"):
            replica.step()
        send_command(other, "REPLICAOF", "NO", "ONE")
        replica.check()
        replica.store.close()


def _set_read_only(made: Target, value: Literal["on", "off"]) -> None:
    address = made.url.partition("?")[0]
    with contextlib.closing(psycopg.connect(address, autocommit=True)) as server:
        server.execute("SET default_transaction_read_only = off")
        server.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        server.execute("SELECT pg_reload_conf()")
    eventually(lambda: _is_read_only(address) == value, "the server has read its settings again")


def _is_read_only(address: str) -> object:
    with contextlib.closing(psycopg.connect(address, autocommit=True)) as server:
        row = server.execute("SHOW default_transaction_read_only").fetchone()
        return row and row[0]


def _in_step(replica: RedisServer) -> bool:
    return server_info(replica, "replication").get("master_link_status") == "up"
