"""Settings and error codes of Kafka clients, as far as they can be checked without a broker."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from sqe_chain.adapters.kafka import KafkaLog, load_config
from sqe_chain.adapters.kafka._clients import CONFIGURATION, REFUSALS, error_for, logger
from sqe_chain.adapters.kafka._settings import READER, REFUSED, WRITER, settings
from sqe_chain.errors import ConfigurationError, Unavailable


def test_every_code_of_the_driver_is_judged() -> None:
    known = {name for name in dir(KafkaError) if name.isupper()}
    transient = set((Path(__file__).parent / "transient_kafka_codes.txt").read_text("utf-8").split())
    judged = [*CONFIGURATION, *REFUSALS, *transient]
    assert len(judged) == len(set(judged)), "judged twice"
    assert known - set(judged) == set(), "judge these: can trying again help?"
    assert set(judged) - known == set(), "the driver lost these"


@pytest.mark.parametrize("name", sorted({*REFUSED, *READER, *WRITER} - {"max.poll.interval.ms"}))
def test_what_exactness_depends_on_cannot_be_set(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' cannot be set"):
        KafkaLog("localhost:9092", {name: "1"})


@pytest.mark.parametrize("bootstrap", ["", "  "])
def test_a_broker_must_be_given(bootstrap: str) -> None:
    with pytest.raises(ConfigurationError, match="No Kafka broker"):
        KafkaLog(bootstrap)


def test_times_must_be_positive() -> None:
    with pytest.raises(ConfigurationError, match="must be positive"):
        KafkaLog("localhost:9092", timeout_s=0)


def test_no_secret_is_shown_and_all_travel() -> None:
    log = KafkaLog("localhost:9092", {"sasl.password": "hush", "sasl.username": "ann"})
    made = settings("localhost:9092", {"sasl.password": "hush", "sasl.username": "ann"}, 1, 1)
    assert "hush" not in repr(log) + repr(made)
    again = pickle.loads(pickle.dumps(log))  # noqa: S301 - our own bytes
    assert again == log
    assert again != KafkaLog("localhost:9092", {"sasl.password": "other", "sasl.username": "ann"})


def test_no_secret_is_in_an_error() -> None:
    made = settings("localhost:9092", {"sasl.password": "hush"}, 1, 1)
    error = error_for(KafkaError(KafkaError._AUTHENTICATION, "bad login ann:hush"), "Logging in", made)
    assert isinstance(error, ConfigurationError)
    assert "hush" not in str(error)
    assert "ann" in str(error)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"sasl.pasword": "x"}, "sasl.pasword"),
        ({"security.protocol": "TSL"}, "security.protocol"),
        ({"socket.timeout.ms": "soon"}, "socket.timeout.ms"),
    ],
)
def test_a_wrong_property_is_named(config: dict[str, str], found: str) -> None:
    with pytest.raises(ConfigurationError, match=found):
        KafkaLog("127.0.0.1:1", config, timeout_s=1).describe(["t"])


def test_no_broker_is_unavailable_within_its_time() -> None:
    log = KafkaLog("127.0.0.1:1", timeout_s=0.3)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 did not answer within 0\.3 s.*refused"):
        log.describe(["t"])


def test_failed_connections_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    logger.error("FAIL [rdkafka#producer-1] connection refused")
    logger.warning("CONFWARN [x] enable.gapless.guarantee is experimental")
    logger.warning("SASL [x] something to know")
    assert [record.getMessage() for record in caplog.records] == ["SASL [x] something to know"]
    with caplog.at_level(logging.DEBUG, logger.name):
        logger.error("FAIL [rdkafka#producer-1] connection refused")
    assert len(caplog.records) == 2


def test_a_configuration_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hush=#1")
    file = tmp_path / "kafka.properties"
    file.write_text(
        "# login\n\nsasl.username = ann\nsasl.password=${KAFKA_PASSWORD}\n  sasl.mechanism=PLAIN\n"
    )
    assert load_config(file) == {
        "sasl.username": "ann",
        "sasl.password": "hush=#1",
        "sasl.mechanism": "PLAIN",
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=1\nsasl.password", "line 2: expected name=value"),
        ("sasl.password=", r"line 1: sasl\.password has no value"),
        ("=hush", "line 1: expected name=value"),
        ("a=1\n\na=2", "line 3: a is set twice"),
        ("sasl.password=${NOT_SET_ANYWHERE}", "line 1: the environment variable NOT_SET_ANYWHERE"),
    ],
)
def test_a_half_written_line_is_named_by_its_number(tmp_path: Path, text: str, found: str) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=found):
        load_config(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        load_config(tmp_path / "nowhere")


def test_a_value_is_never_in_the_error(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("sasl.password hush")
    with pytest.raises(ConfigurationError) as caught:
        load_config(file)
    assert "hush" not in str(caught.value)
