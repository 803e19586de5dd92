"""Goal: the servers that all other tests use work as documented. Method: real ones, killed and started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from redis import Redis

from sqe_chain.adapters import open_store
from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ext.dev import DevMachine, KafkaServer, RedisServer, down, reset, status, up
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.ext.dev.server import free_port, port_is_free
from sqe_chain.ports import Home, WithSchema
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.release

USER = ("alice", "wonderland-7")
CLAIM = Home(1, "run-a", "", -1, "")


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    """A broker that these tests may kill."""
    with KafkaServer(fast_boot=True, sasl=USER) as server:
        yield server


def create(bootstrap: str, topic: str, **config: str) -> None:
    """A topic of one partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **config})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)


def produce(bootstrap: str, topic: str, values: list[bytes], **config: str) -> None:
    """All of them acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **config})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0


def consume(bootstrap: str, topic: str, count: int, **config: str) -> list[bytes | None]:
    """The first values of the topic."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest", **config}
    )
    try:
        consumer.subscribe([topic])
        return [message.value() for message in consumer.consume(count, PATIENCE_S)]
    finally:
        consumer.close()


def test_a_killed_broker_keeps_records_groups_and_address(broker: KafkaServer) -> None:
    address = broker.bootstrap
    create(address, "kept")
    produce(address, "kept", [b"before"])
    broker.kill()
    assert not broker.running
    broker.restart()
    assert broker.bootstrap == address
    produce(address, "kept", [b"after"])
    assert consume(address, "kept", 2) == [b"before", b"after"]


def test_a_user_with_a_password_may_log_in_and_no_other(broker: KafkaServer) -> None:
    def login(password: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER[0],
            "sasl.password": password,
        }

    address = broker.sasl_bootstrap
    create(address, "private", **login(USER[1]))
    produce(address, "private", [b"hush"], **login(USER[1]))
    assert consume(address, "private", 1, **login(USER[1])) == [b"hush"]

    refused: list[KafkaError] = []
    config: dict[str, Any] = {"bootstrap.servers": address, "error_cb": refused.append, **login("guess")}
    stranger = AdminClient(config)

    def is_refused() -> bool:
        stranger.poll(0.1)  # that is when callbacks are served
        return KafkaError._AUTHENTICATION in {error.code() for error in refused}

    assert wait_until(is_refused, PATIENCE_S)


def test_a_paused_broker_is_silent_and_goes_on(broker: KafkaServer) -> None:
    broker.pause()
    assert not broker._answers()
    broker.resume()
    produce(broker.bootstrap, "kept", [b"resumed"])


def test_a_topic_that_was_not_created_does_not_appear(broker: KafkaServer) -> None:
    with pytest.raises(KafkaException) as caught:
        consume_error(broker.bootstrap)
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def consume_error(bootstrap: str) -> None:
    """Raises the broker's error for a topic that does not exist."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics("misspelt", PATIENCE_S).topics
    error = topics["misspelt"].error
    if error is not None:
        raise KafkaException(error)


def test_an_older_copy_of_the_data_directory_goes_back_in_time(tmp_path: Path) -> None:
    with KafkaServer(tmp_path / "kafka", fast_boot=True, heap_mb=256) as server:
        create(server.bootstrap, "log")
        produce(server.bootstrap, "log", [b"old"])
        server.stop()
        shutil.copytree(server.data_dir, tmp_path / "copy")
        server.start()
        produce(server.bootstrap, "log", [b"lost"])
        server.stop()
        shutil.rmtree(server.data_dir)
        shutil.copytree(tmp_path / "copy", server.data_dir)
        server.start()
        produce(server.bootstrap, "log", [b"new"])
        assert consume(server.bootstrap, "log", 2) == [b"old", b"new"]
    assert server.data_dir.exists()


def test_a_broker_that_refuses_its_settings_shows_its_log() -> None:
    server = KafkaServer(fast_boot=True, properties={"num.io.threads": "many"})
    with pytest.raises(ConfigurationError, match=r"num\.io\.threads"):
        server.start()
    server.close()
    assert not server.data_dir.exists()


def test_a_server_that_ends_while_it_starts_shows_its_log() -> None:
    server = RedisServer(extra_args=["--no-such-setting", "1"])
    with pytest.raises(Unavailable, match="no-such-setting"):
        server.start()
    server.close()


@pytest.mark.parametrize("kind", [KafkaServer, RedisServer])
def test_a_taken_port_is_named_before_anything_starts(kind: type[KafkaServer | RedisServer]) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        server = kind(port=taken.getsockname()[1])
        with pytest.raises(ConfigurationError, match=f"{taken.getsockname()[1]}.*another port"):
            server.start()
        assert not server.running
        server.close()


def test_a_port_lost_in_the_meantime_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        picks = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr("sqe_chain.ext.dev.server.free_port", lambda: next(picks))
        with RedisServer() as server:
            assert server.port != taken.getsockname()[1]
            assert Redis.from_url(server.url).ping()


def test_a_free_port_is_none_that_a_client_may_be_given() -> None:
    low, _high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    port = free_port()
    assert port < int(low)
    assert port_is_free(port)


def test_a_killed_redis_keeps_what_it_acknowledged() -> None:
    with RedisServer() as server, Redis.from_url(server.url) as client:
        for number in range(500):
            client.set(f"key-{number}", number)
        server.kill()
        server.start()
        assert client.dbsize() == 500


def test_redis_has_the_durable_settings_and_the_forgetful_one_forgets() -> None:
    with RedisServer() as server, Redis.from_url(server.url, decode_responses=True) as client:
        names = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy")
        settings = client.config_get(*names)
        assert [settings[name] for name in names] == ["yes", "always", "no", "noeviction"]
    with RedisServer(durable=False) as server, Redis.from_url(server.url) as client:
        client.set("key", 1)
        server.restart()
        assert client.dbsize() == 0


def test_closing_removes_process_and_temporary_data() -> None:
    with RedisServer() as server:
        identity, directory = server.identity, server.data_dir
        assert directory.exists()
    assert not identity.alive()
    assert not directory.exists()


# --- up, status, down --------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory for `up`; its servers are always stopped at the end."""
    directory = tmp_path / "dev"
    yield directory
    for server in down(directory, grace_s=0).servers:
        assert not server.identity.alive()


def address(machine: DevMachine, kind: str) -> str:
    """Address of a server that must be there."""
    server = machine.server(kind)
    assert server is not None
    return server.address


def test_up_goes_on_until_down_and_keeps_data_and_addresses(place: Path) -> None:
    machine = up(directory=place)
    assert {server.kind for server in machine.servers if server.running} == {"kafka", "redis"}
    create(address(machine, "kafka"), "kept")
    with Redis.from_url(address(machine, "redis")) as client:
        client.set("key", "value")
    assert up(directory=place) == machine
    assert status(place) == machine

    stopped = down(place)
    assert stopped == machine
    assert not any(server.running for server in status(place).servers)
    assert not any(server.identity.alive() for server in machine.servers)

    again = up(["redis"], place)
    assert address(again, "redis") == address(machine, "redis")
    with Redis.from_url(address(again, "redis")) as client:
        assert client.get("key") == b"value"
    kafka = again.server("kafka")
    assert kafka is not None
    assert not kafka.running

    assert {server.kind for server in reset(place).servers} == {"kafka", "redis"}
    assert status(place).servers == ()
    with Redis.from_url(address(up(["redis"], place), "redis")) as client:
        assert client.get("key") is None
    assert not (place / "kafka").exists()


def test_up_starts_cassandra_when_asked(place: Path) -> None:
    machine = up(["cassandra"], place)
    url = address(machine, "cassandra")
    store = open_store(url)
    assert isinstance(store, WithSchema)
    store.make_schema({"": 1})
    store.set_home("kept", None, CLAIM)
    store.close()
    assert down(place) == machine
    assert not any(server.identity.alive() for server in machine.servers)

    again = up(["cassandra"], place)
    assert address(again, "cassandra") == url
    assert store.check() == []
    assert store.home("kept") == (CLAIM, 0)
    store.close()
    assert [server.kind for server in status(place).servers if server.running] == ["cassandra"]


def test_up_starts_postgres_when_asked_and_down_waits_for_no_client(place: Path) -> None:
    machine = up(["postgres"], place)
    store = open_store(address(machine, "postgres"))
    assert isinstance(store, WithSchema)
    store.make_schema({})
    store.set_home("kept", None, CLAIM)
    assert down(place) == machine
    assert not any(server.identity.alive() for server in machine.servers)
    assert "database system is shut down" in (place / "postgres" / "postgres.log").read_text(encoding="utf-8")
    up(["postgres"], place)
    with pytest.raises(Unavailable):
        store.home("kept")  # by the connection of before
    assert store.home("kept") == (CLAIM, 0)
    store.close()


def test_up_replaces_what_died(place: Path) -> None:
    first = up(["redis"], place).server("redis")
    assert first is not None
    os.killpg(first.pid, signal.SIGKILL)
    first.identity.kill()
    second = up(["redis"], place).server("redis")
    assert second is not None
    assert second.running
    assert second.pid != first.pid


def test_a_port_that_a_running_server_does_not_have_is_refused(place: Path) -> None:
    """It would be ignored silently; and the other requested servers are not started either."""
    running = up(["redis"], place).server("redis")
    assert running is not None
    with pytest.raises(ConfigurationError, match=f"port {running.port}.*dev down"):
        up(["kafka", "redis"], place, redis_port=1)
    assert [server.kind for server in status(place).servers] == ["redis"]
    assert up(["redis"], place, redis_port=running.port).server("redis") == running


def test_the_listing_is_for_scripts_too(place: Path) -> None:
    machine = up(["redis"], place)
    shown = json.loads(machine.as_json())
    assert shown["redis"]["address"] == address(machine, "redis")
    assert shown["redis"]["running"] is True
    assert shown["directory"] == str(place)


def test_a_half_written_listing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "servers.json").write_text('[{"kind": "redis"', encoding="utf-8")
    for command in (status, up, down):
        with pytest.raises(ConfigurationError, match=r"servers\.json"):
            command(directory=tmp_path)


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot start mysql; choose from kafka, redis"):
        up(["mysql"], tmp_path)
