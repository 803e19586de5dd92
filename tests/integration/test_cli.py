"""Goal: `sqe-chain` works on real servers as documented. Method: the command in separate processes, read line by line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from redis import Redis

from sqe_chain import read, wrap
from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.message import parse_head
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.ext.dev import KafkaServer, RedisServer
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.ports import Range
from tests.support.event_log import EventLog, Line
from tests.support.loaded_command import COMMAND, finished, start
from tests.support.ports import own_port
from tests.support.waiting import PATIENCE_S

LOGIN = ("carol", "looking-glass-9")

FLOWS = """
from pathlib import Path

from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.flow import Flow


def add(total, word):
    total.value += 1


def word_of(word):
    return word.value


def length_of(word):
    return str(len(word.value))


copies = Flow("NAME-copies")
copies.source("NAME.words", StringValue).to("NAME.copies", key=word_of, partitions=2)

counts = Flow("NAME-counts", state_partitions=2)
(
    counts.source("NAME.copies", StringValue)
    .aggregate("per-word", key=word_of, state=Int64Value, fold=add)
    .changes()
    .to("NAME.totals", partitions=1)
)


def check(word):
    if Path("broken").exists() and word.value != "sound":
        raise ValueError(word.value)
    return word


letters = Flow("NAME-letters", state_partitions=2, poison="dead_letter", dead_letter_partitions=2)
letters.source("NAME.words", StringValue).map(check).aggregate(
    "per-word", key=word_of, state=Int64Value, fold=add
)
"""


class Run(EventLog):
    """One process of the command that writes JSON lines."""

    def __init__(self, arguments: tuple[str, ...], directory: Path) -> None:
        file = directory / f"{uuid4().hex}.log"
        super().__init__(file)
        self.process = start(arguments, output=Path(os.devnull), errors=file, directory=directory)

    def wait_for(self, event: str, **fields: object) -> Line:
        """The first line of that event with these fields."""

        def found() -> list[Line]:
            return self.all(event, **fields)

        assert wait_until(lambda: bool(found()) or self.process.poll() is not None, PATIENCE_S), self.text
        assert found(), self.text
        return found()[0]

    def wait_until_taken(self, count: int) -> None:
        """Wait until this many messages are committed, in any number of batches."""

        def taken() -> int:
            return sum(int(line["inputs"]) for line in self.all("committed"))

        assert wait_until(lambda: taken() >= count or self.process.poll() is not None, PATIENCE_S), self.text
        assert taken() == count, self.text

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


class Deployment:
    """Flows of their own topics, and the means to run them."""

    def __init__(self, directory: Path, kafka: str, store: str) -> None:
        self.name = f"cli-{uuid4().hex[:8]}"
        self.directory, self.kafka, self.store = directory, kafka, store
        self.runs: list[Run] = []
        (directory / "words_flows.py").write_text(FLOWS.replace("NAME", self.name), encoding="utf-8")

    def arguments(self, flow: str, *more: str, engine: str = "inprocess") -> tuple[str, ...]:
        where = ("--kafka", self.kafka, "--store", self.store, "--engine", engine)
        return ("run", f"words_flows:{flow}", *where, "--log-json", "--create-topics", "2", *more)

    def start(self, flow: str, *more: str, engine: str = "inprocess") -> Run:
        self.runs.append(Run(self.arguments(flow, *more, engine=engine), self.directory))
        return self.runs[-1]

    def once(self, flow: str, *more: str, engine: str = "inprocess") -> Run:
        run = self.start(flow, "--once", *more, engine=engine)
        assert run.process.wait(PATIENCE_S) == 0, run.text
        return run

    def show(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return finished(arguments, self.directory, PATIENCE_S)

    def create_topics(self) -> None:
        """Create all topics that the flows need; faster than a run with --create-topics."""
        log = KafkaLog(self.kafka)
        for topic, partitions in (("words", 2), ("copies", 2), ("totals", 1)):
            log.create_topic(f"{self.name}.{topic}", partitions)

    def produce(self, *words: str, to: str = "words", kafka: str = "") -> None:
        """One message for each word; the topic must exist."""
        producer = Producer({"bootstrap.servers": kafka or self.kafka, "acks": "all"})
        for number, word in enumerate(words):
            value = wrap(StringValue(value=word), key=word, timestamp_ms=number)
            producer.produce(f"{self.name}.{to}", value, key=word, partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0

    def counted(self, flow: str = "counts") -> dict[str, int]:
        """Word -> count, as `state` shows it."""
        shown = self.show("state", f"words_flows:{flow}", "per-word", "--store", self.store, "--json")
        assert shown.returncode == 0, shown.stderr
        lines = [json.loads(line) for line in shown.stdout.splitlines()]
        return {line["key"]: int(line["state"]) for line in lines}

    def holder(self) -> str:
        """Run id of the claim; empty when there is no claim."""
        home, _ = open_store(self.store).home(f"{self.name}-counts")
        assert home is not None
        return home.run_id


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Callable[[str, str], Deployment]]:
    """Deploys the flows; their processes end with the test."""
    made: list[Deployment] = []

    def make(kafka: str, store: str) -> Deployment:
        made.append(Deployment(tmp_path, kafka, store))
        return made[-1]

    yield make
    for run in (run for deployment in made for run in deployment.runs):
        run.process.send_signal(signal.SIGKILL)
        run.process.wait(PATIENCE_S)


@pytest.fixture
def deployment(deploy: Callable[[str, str], Deployment], kafka: str, redis_url: str) -> Deployment:
    found = deploy(kafka, redis_url)
    found.create_topics()
    return found


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    """A broker that these tests may kill, with a login."""
    with KafkaServer(fast_boot=True, sasl=LOGIN) as server:
        yield server


# --- dead-letter records --------------------------------------------------------------------------


def test_dead_letter_records_count_once_although_the_release_is_killed(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Kills at chosen writes are in tests/protocol/operations/test_failed_in_plans.py; here the processes and the broker are real."""
    words = [f"word-{number}" for number in range(4_000)]
    (tmp_path / "broken").touch()
    deployment.produce(*words, "sound")
    stopped = deployment.once("letters", "--max-excluded", "1000000")
    assert stopped.lines()[-1]["event"] == "stopped"
    (tmp_path / "broken").unlink()
    where = ("--kafka", deployment.kafka, "--store", deployment.store, "--engine", "inprocess")
    arguments = ("failed", "release", "words_flows:letters", *where, "--json")
    log, topic = KafkaLog(deployment.kafka), f"{deployment.name}-letters.dead-letters"

    def decided() -> int:
        kept = sum(bounds.stable_end for bounds in log.bounds([(topic, 0), (topic, 1)]).values())
        return kept - len(words)

    run = Run(arguments, tmp_path)
    deployment.runs.append(run)
    assert wait_until(lambda: decided() > 0 or run.process.poll() is not None, PATIENCE_S), run.text
    run.process.send_signal(signal.SIGKILL)
    run.process.wait(PATIENCE_S)
    again = deployment.show(*arguments)
    assert again.returncode == 0, again.stderr
    assert json.loads(deployment.show(*arguments).stdout)["released"] == 0
    deployment.once("letters")
    assert deployment.counted("letters") == dict.fromkeys([*words, "sound"], 1)


# --- flows ----------------------------------------------------------------------------------------


@pytest.fixture
def own_redis() -> Iterator[str]:
    """URL of a store with the flows of one test only: forgetting checks all flows of a store."""
    with RedisServer() as server:
        yield server.url


def test_a_flow_is_listed_and_forgotten_with_its_topics(deployment: Deployment, own_redis: str) -> None:
    deployment.store = own_redis
    deployment.produce("a", "bb")
    deployment.once("copies")
    running = deployment.start("counts")
    running.wait_for("caught_up")
    name = f"{deployment.name}-counts"
    where = ("--store", deployment.store)

    def listed() -> list[str]:
        shown = deployment.show("flows", "list", *where, "--json")
        assert shown.returncode == 0, shown.stderr
        return [json.loads(line)["flow"] for line in shown.stdout.splitlines()]

    assert name in listed()
    forget = ("flows", "forget", name, "--kafka", deployment.kafka, *where, "--topics", "--yes")
    refused = deployment.show(*forget)
    assert (refused.returncode, "is running" in refused.stderr) == (2, True)
    assert running.end() == 0
    done = deployment.show(*forget)
    assert done.returncode == 0, done.stderr
    assert f"deleted topics: {deployment.name}.totals" in done.stderr
    assert name not in listed()
    assert not Redis.from_url(own_redis).keys(f"sqe:{{{name}*")
    KafkaLog(deployment.kafka).create_topic(f"{deployment.name}.totals", 1)
    deployment.once("counts")
    assert deployment.counted() == {"a": 1, "bb": 1}


# --- rebuild and rewind ---------------------------------------------------------------------------


def outputs(deployment: Deployment, topic: str) -> int:
    """Records in a topic."""
    peeked = deployment.show("peek", f"{deployment.name}.{topic}", "--kafka", deployment.kafka, "--json")
    return len(peeked.stdout.splitlines())


def test_a_lost_state_partition_is_folded_again(deployment: Deployment, redis_url: str) -> None:
    deployment.produce("a", "bb", "a", "ccc")
    deployment.once("copies")
    deployment.once("counts")
    before = outputs(deployment, "totals")
    client = Redis.from_url(redis_url)
    lost = [key for key in client.keys(f"sqe:{{{deployment.name}-counts/per-word/*") if b"/1}" in key]
    assert client.delete(*lost) == len(lost) > 0
    stopped = deployment.start("counts", "--once")
    assert stopped.process.wait(PATIENCE_S) == 3
    assert "sqe-chain rebuild" in stopped.text
    where = ("--kafka", deployment.kafka, "--store", deployment.store, "--engine", "inprocess")
    done = deployment.show("rebuild", "words_flows:counts", *where)
    assert done.returncode == 0, done.stderr
    assert "folded again; start its service" in done.stderr
    assert deployment.counted() == {"a": 2, "bb": 1, "ccc": 1}
    assert outputs(deployment, "totals") == before
    deployment.produce("a", "dd")
    deployment.once("copies")
    deployment.once("counts")
    assert deployment.counted() == {"a": 3, "bb": 1, "ccc": 1, "dd": 1}


def test_flows_are_rewound_to_offsets_and_times(deployment: Deployment) -> None:
    deployment.produce("a", "bb", "a", "ccc")
    deployment.once("copies")
    deployment.once("counts")
    copies = outputs(deployment, "copies")
    where = ("--kafka", deployment.kafka, "--engine", "inprocess")
    stateful = ("words_flows:counts", *where, "--store", deployment.store)
    done = deployment.show("rewind", *stateful, "--to", "1970-01-01T00:00:00Z", "--republish")
    assert done.returncode == 0, done.stderr
    assert deployment.counted() == {}
    before = outputs(deployment, "totals")
    deployment.once("counts")
    assert deployment.counted() == {"a": 2, "bb": 1, "ccc": 1}
    assert outputs(deployment, "totals") == before, "receivers have newer states"
    arguments = ("announce", "words_flows:counts", "--kafka", deployment.kafka, "--store", deployment.store)
    assert deployment.show(*arguments).returncode == 0
    assert outputs(deployment, "totals") == before + 3
    refused = deployment.show("rewind", "words_flows:copies", *where, "--to", f"{deployment.name}.words[0]=0")
    assert refused.returncode != 0
    assert "--republish" in refused.stderr
    done = deployment.show(
        "rewind", "words_flows:copies", *where, "--to", f"{deployment.name}.words[0]=0", "--republish"
    )
    assert done.returncode == 0, done.stderr
    deployment.once("copies")
    assert outputs(deployment, "copies") == copies + 2
    deployment.once("counts")
    assert deployment.counted() == {"a": 2, "bb": 1, "ccc": 1}


LATEST = """
from pathlib import Path
from time import sleep

from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.flow import Flow

WEIGHT = int(Path("weight").read_text())
calls = 0


def add(total, word):
    total.value += WEIGHT


def held(total):
    global calls
    calls += 1
    while Path("hold").exists() and calls > int(Path("hold").read_text()):
        sleep(0.01)
    return total


latest = Flow("NAME-latest", state_partitions=2)
latest.source("NAME.words", StringValue).aggregate(
    "per-word", key=lambda word: word.value, state=Int64Value, fold=add
).changes().map(held).to("NAME.totals", partitions=1)
"""


def test_states_are_republished_once_although_the_command_is_killed(deployment: Deployment) -> None:
    """It is killed when it has published one of two state partitions."""
    words = [f"word-{number}" for number in range(20)]
    files = {name: deployment.directory / name for name in ("latest_flows.py", "weight", "hold")}
    files["latest_flows.py"].write_text(LATEST.replace("NAME", deployment.name), encoding="utf-8")
    files["weight"].write_text("1", encoding="utf-8")
    where = ("latest_flows:latest", "--kafka", deployment.kafka, "--store", deployment.store)
    service = ("run", *where, "--engine", "inprocess", "--once")
    deployment.produce(*words)
    assert deployment.show(*service).returncode == 0
    files["weight"].write_text("10", encoding="utf-8")
    assert deployment.show("rebuild", *where, "--engine", "inprocess").returncode == 0
    topic, log = f"{deployment.name}.totals", KafkaLog(deployment.kafka)
    first = sum(partition_of(word.encode(), 2) == 0 for word in words)
    files["hold"].write_text(str(len(words) + first), encoding="utf-8")  # all were looked at, then one part
    run = Run(("announce", *where, "--log-json"), deployment.directory)
    deployment.runs.append(run)
    end = len(words) + first
    assert wait_until(lambda: log.bounds([(topic, 0)])[topic, 0].stable_end >= end, PATIENCE_S), run.text
    assert run.end(signal.SIGKILL) == -signal.SIGKILL
    assert log.bounds([(topic, 0)])[topic, 0].stable_end == end
    files["hold"].unlink()
    done = deployment.show("announce", *where)
    assert done.returncode == 0, done.stderr
    assert "published before" in done.stderr
    deployment.produce(words[0])
    assert deployment.show(*service).returncode == 0
    info = log.describe([topic])[topic]
    bounds = log.bounds([(topic, 0)])[topic, 0]
    marks = PartitionMarks(topic, info.topic_id, 0)
    heard: dict[str, list[int]] = {}
    for message in (
        m for block in log.read(Range(topic, info.topic_id, 0, 0, bounds.stable_end)) for m in block
    ):
        if marks.accept(parse_head(message.value()), message.offset()):
            total = read(message.value()).payload_as(Int64Value).value
            heard.setdefault((message.key() or b"").decode(), []).append(total)
    assert heard == {word: [1, 10, *([20] if word == words[0] else [])] for word in words}


def test_states_move_to_another_store(deployment: Deployment, tmp_path: Path) -> None:
    deployment.produce("a", "bb", "a", "ccc")
    deployment.once("copies")
    deployment.once("counts")
    expected = deployment.counted()
    file = tmp_path / "counts.jsonl.gz"
    flow = ("words_flows:counts", str(file), "--kafka", deployment.kafka)
    done = deployment.show("export", *flow, "--store", deployment.store)
    assert done.returncode == 0, done.stderr
    assert "already exists" in deployment.show("export", *flow, "--store", deployment.store).stderr
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(file.read_bytes()[:-20])
    refused = deployment.show(
        "import", flow[0], str(cut), *flow[2:], "--store", f"sqlite://{tmp_path}/cut.db"
    )
    assert refused.returncode == 2, refused.stderr
    assert "cannot be read as an export" in refused.stderr
    old, deployment.store = deployment.store, f"sqlite://{tmp_path}/moved.db"
    done = deployment.show("import", *flow, "--store", deployment.store)
    assert done.returncode == 0, done.stderr
    assert deployment.counted() == expected
    deployment.produce("a", "dd")
    deployment.once("copies")
    deployment.once("counts")
    assert deployment.counted() == {"a": 3, "bb": 1, "ccc": 1, "dd": 1}
    deployment.store = old
    stopped = deployment.start("counts", "--once")
    assert stopped.process.wait(PATIENCE_S) == 3
    assert "StoreInconsistent" in stopped.text


# --- run ------------------------------------------------------------------------------------------


def test_two_services_once_then_state_and_peek(deployment: Deployment) -> None:
    deployment.produce("a", "bb", "a", "ccc")
    deployment.once("copies")
    counts = deployment.once("counts")
    assert deployment.counted() == {"a": 2, "bb": 1, "ccc": 1}
    assert [name for name in counts.names() if name != "notice"] == [
        *("starting", "claimed", "recovered", "sealed", "published", "persisted", "committed", "stopped")
    ]
    peeked = deployment.show("peek", f"{deployment.name}.totals", "--kafka", deployment.kafka, "--json")
    chains = [
        [link["topic"] for link in json.loads(line)["envelope"]["chain"]]
        for line in peeked.stdout.splitlines()
    ]
    assert chains == [[f"{deployment.name}.words", f"{deployment.name}.copies"]] * 3
    assert (
        "payload" in deployment.show("peek", f"{deployment.name}.totals", "--kafka", deployment.kafka).stdout
    )


def test_a_republisher_does_not_wait_for_its_interval(deployment: Deployment) -> None:
    run = deployment.start("copies", "--interval", "1h")
    run.wait_for("caught_up")
    deployment.produce("a")
    run.wait_until_taken(1)
    deployment.produce("b", "c")
    run.wait_until_taken(3)
    assert run.end() == 0
    assert run.lines()[-1]["reason"] == "SIGTERM"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_within_a_batch_lets_it_finish(deployment: Deployment, number: signal.Signals) -> None:
    run = deployment.start("counts", "--interval", "200ms")
    run.wait_for("caught_up")
    deployment.produce(*"abcdefgh" * 500, to="copies")
    sealed = run.wait_for("sealed")
    assert run.end(number) == 0
    run.wait_for("committed", plan=sealed["plan"])
    assert run.names()[-1] == "stopped"
    assert deployment.holder() == ""
    deployment.once("counts")
    assert deployment.counted() == dict.fromkeys("abcdefgh", 500)


def test_a_second_run_waits_and_takes_over_when_the_first_leaves(deployment: Deployment) -> None:
    first = deployment.start("counts", "--interval", "200ms")
    first.wait_for("caught_up")
    second = deployment.start("counts", "--interval", "200ms")
    second.wait_for("standby")
    deployment.produce("a", to="copies")
    first.wait_for("committed", inputs=1)
    assert "claimed" not in second.names()
    assert first.end() == 0
    second.wait_for("claimed")
    deployment.produce("a", to="copies")
    second.wait_for("committed", inputs=1)
    assert second.end() == 0
    assert deployment.counted() == {"a": 2}


def test_takeover_does_not_wait_and_ends_the_other_run(deployment: Deployment) -> None:
    first = deployment.start("counts", "--interval", "1h")
    first.wait_for("caught_up")
    second = deployment.start("counts", "--takeover")
    second.wait_for("caught_up")
    assert "standby" not in second.names()
    assert first.process.wait(PATIENCE_S) == 4
    assert first.lines()[-1]["error"] == "Superseded"


def test_a_run_that_was_killed_here_is_not_waited_for(deployment: Deployment) -> None:
    first = deployment.start("counts", "--interval", "200ms")
    first.wait_for("caught_up")
    first.end(signal.SIGKILL)
    assert deployment.holder() != ""
    assert "standby" not in deployment.once("counts").names()


def test_a_second_interrupt_ends_at_once(deploy: Callable[[str, str], Deployment], tmp_path: Path) -> None:
    deployment = deploy(f"127.0.0.1:{own_port()}", f"sqlite://{tmp_path}/a.db")
    run = deployment.start("counts")
    run.wait_for("waiting")
    run.process.send_signal(signal.SIGINT)
    assert run.end(signal.SIGINT) in {0, -signal.SIGINT}  # 0 when the first one was quicker


def test_without_a_broker_a_service_waits_and_can_be_stopped(
    deploy: Callable[[str, str], Deployment], tmp_path: Path
) -> None:
    deployment = deploy(f"127.0.0.1:{own_port()}", f"sqlite://{tmp_path}/a.db")
    run = deployment.start("counts")
    waiting = run.wait_for("waiting")
    assert "did not answer" in str(waiting["reason"])
    assert run.end() == 0
    assert run.names()[-1] == "stopped"


@pytest.mark.release
def test_a_broker_that_goes_away_is_waited_for_and_nothing_is_lost(
    broker: KafkaServer, deploy: Callable[[str, str], Deployment], redis_url: str
) -> None:
    deployment = deploy(broker.bootstrap, redis_url)
    deployment.create_topics()
    run = deployment.start("counts", "--interval", "200ms")
    run.wait_for("caught_up")
    broker.kill()
    run.wait_for("waiting")
    broker.restart()
    deployment.produce("a", "b", to="copies")

    run.wait_until_taken(2)
    assert run.end() == 0
    assert deployment.counted() == {"a": 1, "b": 1}


# --- Spark ----------------------------------------------------------------------------------------

SPARK = ("--master", "local[2]", "--spark-conf", "spark.driver.memory=512m")


def test_on_spark_once_and_again_after_a_kill(deployment: Deployment) -> None:
    deployment.produce(*"abab")
    copies = deployment.start("copies", *SPARK, engine="spark")
    copies.wait_until_taken(4)
    counts = deployment.start("counts", *SPARK, "--interval", "200ms", engine="spark")
    counts.wait_until_taken(4)
    copies.end(signal.SIGKILL)
    counts.end(signal.SIGKILL)
    deployment.produce(*"abc", to="copies")
    deployment.once("counts", *SPARK, engine="spark")
    assert deployment.counted() == {"a": 3, "b": 3, "c": 1}


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_on_spark_a_signal_within_a_batch_lets_it_finish(
    deployment: Deployment, number: signal.Signals
) -> None:
    deployment.produce(*"abcdefgh" * 500, to="copies")
    run = deployment.start("counts", *SPARK, engine="spark")
    sealed = run.wait_for("sealed")
    assert run.end(number) == 0
    run.wait_for("committed", plan=sealed["plan"])
    assert run.lines()[-1]["reason"] == number.name
    assert deployment.holder() == ""
    assert deployment.counted() == dict.fromkeys("abcdefgh", 500)


def test_without_java_the_error_of_spark_names_what_to_do(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/such/java")
    run = deployment.start("copies", "--once", engine="spark")
    assert run.process.wait(PATIENCE_S) == 2
    assert "Java 17" in str(run.lines()[-1]["text"])


# --- addresses ------------------------------------------------------------------------------------


def test_addresses_that_were_swapped_are_named_at_once(deployment: Deployment) -> None:
    redis = deployment.store.partition("://")[2].partition("/")[0]
    for kafka, store, text in [
        (redis, deployment.store, f"--kafka {redis}: Redis answers there"),
        (
            deployment.kafka,
            f"redis://{deployment.kafka}/0",
            f"redis://{deployment.kafka}: Kafka answers there",
        ),
        (deployment.kafka, f"cassandra://{redis}/keyspace", f"cassandra://{redis}: Redis answers there"),
    ]:
        where = ("--kafka", kafka, "--store", store, "--engine", "inprocess", "--log-json")
        done = deployment.show("run", "words_flows:counts", *where)
        assert done.returncode == 2, done.stderr
        assert text in done.stderr
        assert "waiting" not in done.stderr


# --- login ----------------------------------------------------------------------------------------


def test_a_login_by_file_and_environment(
    broker: KafkaServer,
    deploy: Callable[[str, str], Deployment],
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deployment = deploy(broker.sasl_bootstrap, redis_url)
    config = tmp_path / "kafka.properties"
    config.write_text(
        "# the password stands in the environment\n"
        "security.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.username={LOGIN[0]}\n"
        "sasl.password=${CLI_TEST_PASSWORD}\n",
        encoding="utf-8",
    )
    login = ("--kafka-config", str(config))
    monkeypatch.setenv("CLI_TEST_PASSWORD", LOGIN[1])
    deployment.once("copies", *login)
    deployment.produce("a", "b", kafka=broker.bootstrap)
    run = deployment.once("copies", *login)
    run.wait_for("committed", inputs=2)
    shown = deployment.show(
        "peek", f"{deployment.name}.copies", "--kafka", deployment.kafka, *login, "--json"
    )
    assert len(shown.stdout.splitlines()) == 2, shown.stderr
    assert LOGIN[1] not in run.text + shown.stdout + shown.stderr

    monkeypatch.setenv("CLI_TEST_PASSWORD", "a-wrong-guess")
    refused = deployment.start("copies", "--once", *login)
    assert refused.process.wait(PATIENCE_S) == 2, refused.text
    assert refused.lines()[-1]["error"] == "ConfigurationError"
    assert "a-wrong-guess" not in refused.text


# --- errors ---------------------------------------------------------------------------------------


def test_errors_have_one_line_and_a_status(
    deploy: Callable[[str, str], Deployment], kafka: str, redis_url: str, tmp_path: Path
) -> None:
    deployment = deploy(kafka, redis_url)
    where = ("--kafka", deployment.kafka, "--engine", "inprocess", "--once")
    missing_topic = deployment.show("run", "words_flows:copies", *where)
    assert missing_topic.returncode == 2
    assert re.fullmatch(
        r".*  starting   pid=\d+\nerror: .*input topic .* not found at the broker; .*\n", missing_topic.stderr
    )
    deployment.create_topics()
    deployment.once("counts")
    other_store = deployment.show(
        "run", "words_flows:counts", *where, "--store", f"sqlite://{tmp_path}/other.db"
    )
    assert other_store.returncode == 3
    assert "StoreEmpty" in other_store.stderr
    nowhere = deployment.show("peek", "no-such-topic", "--kafka", deployment.kafka)
    assert nowhere.returncode == 2
    for done in (missing_topic, other_store, nowhere):
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in done.stderr


def test_a_payload_of_another_type_is_poison_with_a_name(deployment: Deployment) -> None:
    producer = Producer({"bootstrap.servers": deployment.kafka})
    producer.produce(f"{deployment.name}.words", b"no envelope at all", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    run = deployment.start("copies", "--once")
    assert run.process.wait(PATIENCE_S) == 1
    last = run.lines()[-1]
    assert last["error"] == "PoisonError"
    assert f"{deployment.name}.words" in str(last["text"])


# --- dev ------------------------------------------------------------------------------------------


def test_servers_come_up_are_used_and_go_down(
    deploy: Callable[[str, str], Deployment], tmp_path: Path
) -> None:
    def dev(action: str) -> dict[str, dict[str, object]]:
        done = subprocess.run(
            [COMMAND, "dev", action, "--dir", str(tmp_path / "dev"), "--json"],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        states: dict[str, dict[str, object]] = json.loads(done.stdout)
        return states

    try:
        machine = dev("up")
        assert dev("status") == machine
        deployment = deploy(str(machine["kafka"]["address"]), str(machine["redis"]["address"]))
        deployment.once("copies")
        deployment.once("counts")
        assert dev("up")["kafka"]["pid"] == machine["kafka"]["pid"]
    finally:
        stopped = dev("down")
    assert [stopped[kind]["running"] for kind in ("kafka", "redis")] == [False, False]
    assert {stopped[kind]["address"] for kind in ("kafka", "redis")} == {
        machine[kind]["address"] for kind in ("kafka", "redis")
    }
