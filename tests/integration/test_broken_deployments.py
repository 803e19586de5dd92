"""Goal: of a broken deployment on real servers, the doctor names the fault, and a start stops or waits by name.

Method: a table of rights that a login lacks at Kafka, Redis and Cassandra, and of servers that take no writes. Of each row the
doctor is asked, then a service is started; where nothing is broken, both are content.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer
from typer.testing import CliRunner

from sqe_chain.adapters import open_store
from sqe_chain.adapters.cassandra import CassandraStore
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.cli.commands import application
from sqe_chain.ext.dev import RedisServer
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.ext.dev.server import HOST
from tests.support.broken_kafka import PASSWORD, GuardedKafka, Right, guarded_kafka
from tests.support.redis_servers import LEAST_RIGHTS, send_command
from tests.support.service_processes import ServiceProcess
from tests.support.waiting import PATIENCE_S

FLOWS: Final = """
from sqe_chain import Flow


def add(total: dict, event: dict):
    total["n"] = total.get("n", 0) + event["n"]


def key_of(event: dict) -> str:
    return event["k"]


def double(event: dict) -> dict:
    return {**event, "n": 2 * event["n"]}


def counting(name, view=None, prefix="", transactional=False):
    flow = Flow(name, state_partitions=1, poison="dead_letter", dead_letter_topic=prefix + "dead", transactional=transactional)
    counted = flow.source(prefix + "in", dict, raw=True).aggregate("total", key=key_of, state=dict, fold=add, view=view)
    counted.changes().to(prefix + "out", partitions=1)
    return flow


def publishing(name):
    return counting(name, transactional=True)


def doubling(name, prefix=""):
    flow = Flow(name, poison="dead_letter", dead_letter_topic=prefix + "dead")
    flow.source(prefix + "in", dict, raw=True).map(double).to(prefix + "out", partitions=1)
    return flow


"""

CONFIGURATION: Final = 2


@dataclass(frozen=True, slots=True)
class Deployed:
    """Where a flow runs."""

    directory: Path
    kafka: tuple[str, ...]
    store: str = ""
    runs: list[ServiceProcess] = field(default_factory=list)

    def examine(self, flow: str) -> tuple[int, dict[str, str]]:
        """Status of the doctor, and check -> text of its errors and of what it could not try."""
        store = ("--store", self.store) if self.store else ()
        command = ["doctor", f"broken_flows:{flow}", *self.kafka, *store, "--json"]
        done = CliRunner().invoke(application("doctor"), command)
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert done.exit_code in {0, 1, 3}, done.output
        return done.exit_code, {
            finding["check"]: f"{finding['subject']}: {finding['text']}"
            for finding in found
            if finding["severity"] == "error" or finding["check"] in {"not-tried", "unknown-rights"}
        }

    def start(self, flow: str) -> ServiceProcess:
        """Start a service that ends when it has processed what is there."""
        store = ("--store", self.store) if self.store else ()
        where = (*self.kafka, *store, "--engine", "inprocess", "--log-json", "--once")
        log = self.directory / f"{flow}-{len(self.runs)}.log"
        arguments = ("run", f"broken_flows:{flow}", *where)
        self.runs.append(ServiceProcess(arguments, log, {"PYTHONPATH": str(self.directory)}))
        return self.runs[-1]


def both_stop(deployed: Deployed, flow: str, found: str, text: str) -> None:
    """The doctor reports an error of this name and with this text, and a start stops by it."""
    status, errors = deployed.examine(flow)
    stopped = deployed.start(flow).stopped_by("ConfigurationError", CONFIGURATION)
    assert (status, found in errors) == (1, True), errors
    for part in text.split():
        assert part in errors[found], errors
        assert part in stopped, stopped


def both_are_content(deployed: Deployed, flow: str) -> None:
    assert deployed.examine(flow) == (0, {})
    run = deployed.start(flow)
    assert run.wait() == 0, run.text


@dataclass(frozen=True, slots=True)
class User:
    """A user of Redis. Without anything else it is what docs/stores.md asks for.

    Attributes:
        lacks: a right of these that it does not have.
        keys: pattern of the keys that it may use.
        view: of the flow's stage.
        database: of the address.
        start_needs_it: whether a start stops, or what lacks is needed later only.
    """

    lacks: str = ""
    keys: str = "sqe:*"
    view: str | None = None
    database: int = 0
    start_needs_it: bool = True


USERS: Final = {
    "all": User(),
    **{
        f"no_{right[1:]}": User(right, start_needs_it=right not in {"+hscan", "+incr"})
        for right in LEAST_RIGHTS
    },
    "no_del": User(view="hash"),
    "no_select": User(database=3),
    "other_keys": User(keys="sqe:{other*"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """A server as it should not be: settings that break it, those that repair it, and the word of both for it."""

    broken: Mapping[str, object]
    repaired: Mapping[str, object]
    text: str


NO_WRITES: Final = {
    "full": Settings({"maxmemory": 1_000_000}, {"maxmemory": 0}, "maxmemory"),
    "no_replica": Settings({"min-replicas-to-write": 1}, {"min-replicas-to-write": 0}, "NOREPLICAS"),
    "replica": Settings({"replicaof": "127.0.0.1 1"}, {"replicaof": "no one"}, "read only replica"),
}
WEAK: Final = {
    "evicts": Settings(
        {"maxmemory-policy": "allkeys-lru"}, {"maxmemory-policy": "noeviction"}, "maxmemory-policy"
    ),
    "memory": Settings({"appendonly": "no"}, {"appendonly": "yes"}, "appendonly"),
    "lazy": Settings({"appendfsync": "everysec"}, {"appendfsync": "always"}, "appendfsync"),
    "writable_replica": Settings(
        {"replica-read-only": "no", "replicaof": "127.0.0.1 1"},
        {"replicaof": "no one", "replica-read-only": "yes"},
        "it is a replica of 127.0.0.1 1",
    ),
}


# --- rights at Kafka -----------------------------------------------------------------------------------


COUNTING: Final[tuple[Right, ...]] = (
    *(("in", "READ"), ("in", "DESCRIBE_CONFIGS")),
    *(("out", "WRITE"), ("out", "DESCRIBE_CONFIGS")),
    *(("dead", "WRITE"), ("dead", "DESCRIBE_CONFIGS")),
    ("group", "READ"),
)
"""What the login of a flow with stages needs, by docs/production.md."""
DOUBLING: Final[tuple[Right, ...]] = (*COUNTING, ("out", "READ"), ("dead", "READ"))
"""The same without stages: it reads back what it has published."""
OF_MARKERS: Final[tuple[Right, ...]] = (("published", "READ"), ("published", "WRITE"))
PUBLISHING: Final[tuple[Right, ...]] = (
    *(*COUNTING, *OF_MARKERS),
    *(("published", "DESCRIBE_CONFIGS"), ("transactions", "WRITE")),
)
"""What that of a transactional flow needs."""
NEEDED: Final = {"counting": COUNTING, "doubling": DOUBLING, "publishing": PUBLISHING}
OTHERS: Final = ("counting", "doubling")
LACKING: Final = [
    *((kind, right) for kind in OTHERS for right in NEEDED[kind]),
    *(("publishing", right) for right in OF_MARKERS),
    *((kind, (what, "ALL")) for kind in OTHERS for what in ("in", "out", "group")),
]
"""Kind of flow, and the right that its login lacks; "ALL": all of them, also to see that it exists."""


def user_of(kind: str, right: Right | None) -> str:
    return f"{kind}_{'_'.join(right).lower()}" if right else f"{kind}_all"


def rights_without(kind: str, lacking: Right | None) -> list[Right]:
    needed = {*NEEDED[kind], *((what, "DESCRIBE") for what, _ in NEEDED[kind])}
    if lacking is None:
        return sorted(needed)
    return sorted(right for right in needed if right != lacking and (right[0], "ALL") != lacking)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    directory = tmp_path_factory.mktemp("guarded")
    lacking: list[tuple[str, Right | None]] = [*LACKING, ("publishing", ("transactions", "WRITE"))]
    rows = {user_of(*row): row for row in [*lacking, *((kind, None) for kind in NEEDED)]}
    flows = [f"{user} = {kind}({user!r})" for user, (kind, _) in rows.items()]
    flows += [f"redis_{row} = counting('redis_{row}', {user.view!r})" for row, user in USERS.items()]
    flows += [f"outage_{row} = counting('outage_{row}')" for row in NO_WRITES]
    flows += [f"weak_{row} = counting('weak_{row}')" for row in WEAK]
    flows += [f"{name} = counting('{name}')" for name in ("cassandra_all", "cassandra_none", "joined")]
    flows += [f"{kind}_nowhere = {kind}('{kind}_nowhere', prefix='nowhere.')" for kind in OTHERS]
    (directory / "broken_flows.py").write_text(FLOWS + "\n".join(flows) + "\n")
    with guarded_kafka(directory, rows, {"in": 1, "out": 1, "dead": 1}) as server:
        server.grant({user: (user, rights_without(*row)) for user, row in rows.items()})
        log = KafkaLog(server.open_address)
        for user, (kind, _) in rows.items():
            if kind == "publishing":
                log.create_topic(f"{user}.published", 1, compacted=True)
        log.close()
        server.fill("in", [{"k": "x", "n": 1}] * 3)
        yield server


def at_kafka(server: GuardedKafka, user: str) -> Deployed:
    kafka = ("--kafka", server.address, "--kafka-config", str(server.login(user)))
    store = f"sqlite://{server.directory}/{user}.db" if not user.startswith("doubling") else ""
    return Deployed(server.directory, kafka, store)


@pytest.mark.parametrize(("kind", "right"), LACKING, ids=str)
def test_a_right_at_kafka_that_is_missing_is_named(
    guarded: GuardedKafka, kind: str, right: Right, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(guarded.directory)
    user, (what, operation) = user_of(kind, right), right
    asked = operation in {"READ", "WRITE"}  # of others the broker refuses to answer
    name = {"group": user, "published": f"{user}.published"}.get(what, what)
    both_stop(
        at_kafka(guarded, user),
        user,
        "no-right" if asked else "unreachable",
        f"{name} {operation if asked else 'authorization'}",
    )


def test_a_right_to_transactions_that_is_missing_is_named(
    guarded: GuardedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(guarded.directory)
    user = user_of("publishing", ("transactions", "WRITE"))
    both_stop(at_kafka(guarded, user), user, "ConfigurationError", "WRITE on transactional ids")


@pytest.mark.parametrize("kind", NEEDED)
def test_the_documented_rights_at_kafka_are_enough(
    guarded: GuardedKafka, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(guarded.directory)
    user = user_of(kind, None)
    both_are_content(at_kafka(guarded, user), user)


# --- topics and groups ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OTHERS)
def test_topics_that_do_not_exist_are_named(
    guarded: GuardedKafka, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(guarded.directory)
    flow = f"{kind}_nowhere"
    store = f"sqlite://{guarded.directory}/nowhere.db" if kind == "counting" else ""
    deployed = Deployed(guarded.directory, ("--kafka", guarded.open_address), store)
    both_stop(deployed, flow, "missing-input", "nowhere.in")


def test_another_program_in_the_group_is_named(
    guarded: GuardedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(guarded.directory)
    store = f"sqlite://{guarded.directory}/joined.db"
    deployed = Deployed(guarded.directory, ("--kafka", guarded.open_address), store)
    other = Consumer({"bootstrap.servers": guarded.open_address, "group.id": "joined"})
    other.subscribe(["in"])
    assert wait_until(lambda: other.poll(0.1) is None and bool(other.assignment()), PATIENCE_S)
    status, errors = deployed.examine("joined")
    assert (status, [*errors]) == (1, ["group-members"])
    run = deployed.start("joined")
    assert run.wait() == CONFIGURATION, run.text
    assert "The group has members" in str(run.lines()[-1]["text"])
    other.close()
    both_are_content(deployed, "joined")


# --- Redis: rights, and servers that take no writes ----------------------------------------------------


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize("row", USERS)
def test_a_right_at_redis_that_is_missing_is_named(
    row: str, guarded: GuardedKafka, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(guarded.directory)
    user, flow = USERS[row], f"redis_{row}"
    rights = [right for right in (*LEAST_RIGHTS, "+config|get") if right != user.lacks]
    send_command(redis_server, "ACL", "SETUSER", row, "reset", "on", f">{PASSWORD}", f"~{user.keys}", *rights)
    send_command(redis_server, "SCRIPT", "FLUSH")
    url = f"redis://{row}:{PASSWORD}@{HOST}:{redis_server.port}/{user.database}"
    deployed = Deployed(guarded.directory, ("--kafka", guarded.open_address), url)
    if row == "all":
        both_are_content(deployed, flow)
        return
    status, errors = deployed.examine(flow)
    text = "access one of the keys" if row == "other_keys" else row.removeprefix("no_")
    assert status == 1
    assert text in " ".join(errors.values()).lower()
    run = deployed.start(flow)
    if user.start_needs_it:
        assert "redis://" in run.stopped_by("ConfigurationError", CONFIGURATION)
    else:
        assert run.wait() == 0, run.text


def configure(server: RedisServer, settings: Mapping[str, object]) -> None:
    for name, value in settings.items():
        if name == "replicaof":
            send_command(server, "REPLICAOF", *str(value).split())
        else:
            send_command(server, "CONFIG", "SET", name, str(value))


def checked(url: str) -> tuple[int, str]:
    """Status and output of `sqe-chain store init --check`."""
    done = CliRunner().invoke(application(), ["store", "init", url, "--check"])
    return done.exit_code, done.output


@contextmanager
def broken(server: RedisServer, settings: Settings) -> Iterator[None]:
    """A server with broken settings, which are repaired at the end."""
    configure(server, settings.broken)
    try:
        yield
    finally:
        configure(server, settings.repaired)


def both_find(deployed: Deployed, flow: str, url: str, finding: str, text: str) -> None:
    """Doctor and `store init --check` name what is wrong with a store."""
    status, errors = deployed.examine(flow)
    assert (status, text in errors[finding]) == (1, True), errors
    status, output = checked(url)
    assert (status, text in output) == (1, True), output


@pytest.mark.parametrize("row", NO_WRITES)
def test_a_redis_that_takes_no_writes_is_named_and_waited_for(
    row: str, guarded: GuardedKafka, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(guarded.directory)
    settings, flow = NO_WRITES[row], f"outage_{row}"
    deployed = Deployed(guarded.directory, ("--kafka", guarded.open_address), redis_server.url)
    with broken(redis_server, settings):
        both_find(deployed, flow, redis_server.url, "no-writes", settings.text)
        run = deployed.start(flow)
        assert settings.text in str(run.wait_for("waiting"))
    assert run.wait() == 0, run.text
    assert checked(redis_server.url) == (0, "durable: acknowledged writes are kept\n")
    assert deployed.examine(flow) == (0, {})


@pytest.mark.parametrize("row", WEAK)
def test_a_redis_that_may_lose_writes_is_named(
    row: str, guarded: GuardedKafka, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(guarded.directory)
    settings, flow = WEAK[row], f"weak_{row}"
    deployed = Deployed(guarded.directory, ("--kafka", guarded.open_address), redis_server.url)
    with broken(redis_server, settings):
        both_find(deployed, flow, redis_server.url, "weak-store", settings.text)
        assert settings.text in deployed.start(flow).stopped_by("WeakDurability")


# --- Cassandra -----------------------------------------------------------------------------------------


def test_a_cassandra_with_its_tables_is_written_to_and_nothing_stays(
    guarded: GuardedKafka, cassandra_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(guarded.directory)
    url = cassandra_url.replace("/sqe_chain", "/well_deployed")
    store = open_store(url)
    assert isinstance(store, CassandraStore)
    store.make_schema({"": 1})
    deployed = Deployed(guarded.directory, ("--kafka", guarded.open_address), url)
    assert deployed.examine("cassandra_all") == (0, {})
    assert checked(url)[0] == 0
    assert store.flows() == []
    both_are_content(deployed, "cassandra_all")


def test_a_keyspace_that_is_missing_is_named(
    guarded: GuardedKafka, cassandra_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(guarded.directory)
    url = cassandra_url.replace("/sqe_chain", "/not_made")
    deployed = Deployed(guarded.directory, ("--kafka", guarded.open_address), url)
    both_stop(deployed, "cassandra_none", "unreachable", "sqe-chain store init")
    assert checked(url)[0] == 1
