"""Goal: a user who types the commands of a page sees what the page shows. Method: its commands, on real servers.

The pages name fixed ports, so that they can be typed; here they are replaced by ports that no other test is given.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy
from confluent_kafka import Producer
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import Flow, wrap
from sqe_chain.adapters import open_store
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.dev.apicurio import newest_java
from sqe_chain.testing import Rehearsal
from tests.support import docs_examples
from tests.support.docs_examples import ROOT
from tests.support.ports import own_port
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.release

PAGES = [page for page in docs_examples.pages() if docs_examples.RUN_MARK in page.read_text(encoding="utf-8")]
PORTS = ("19092", "16379", "15432", "18081")
CHECKED_ELSEWHERE = ("make ", "pip ", "git ", "cd ")
"""Prefixes of commands that only tests/unit/test_docs.py checks: they would run these tests, or install."""
END = "--end-of-command--"


class Shell:
    """One bash that runs a page's commands one after another, like a terminal."""

    def __init__(self, directory: Path) -> None:
        programs = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "SQE_CHAIN_DEV_DIR": str(directory / "servers"),
            "PYTHONUNBUFFERED": "1",
        }
        self.directory = directory
        self.ports = {port: str(own_port()) for port in PORTS}
        self._process = subprocess.Popen(
            ["/bin/bash"],
            cwd=directory,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[int, str]:
        """Exit status and output."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        for port, free in self.ports.items():
            command = command.replace(port, free)
        stdin.write(f"{command}\nprintf '\\n%s %s\\n' {END} $?\n")
        stdin.flush()
        shown: list[str] = []
        for line in stdout:
            if line.startswith(END):
                return int(line.split()[1]), "".join(shown)
            shown.append(line)
        raise AssertionError(f"the shell ended: {''.join(shown)}")

    def close(self) -> None:
        """End the shell and all processes that it has started."""
        try:
            subprocess.run(
                [Path(sys.executable).with_name("sqe-chain"), "dev", "down"],
                env=self.environment,
                capture_output=True,
                check=False,
            )
        finally:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened = Shell(tmp_path)
    yield opened
    opened.close()


def function_of(page: str, name: str) -> Any:
    """A function that a page shows, as it is written there."""
    (block,) = [b for b in docs_examples.blocks(ROOT / "docs" / page) if f"def {name}(" in b.text]
    found: dict[str, Any] = {}
    exec(block.text, found)  # noqa: S102 - our own page
    return found[name]


def summed(store: str) -> str:
    """A flow that has added 3 and 4 in that store, in two batches; its name."""
    flow = Flow("docs-stores", state_partitions=1)
    flow.source("numbers", Int64Value).aggregate("sum", key=lambda _: "all", state=Int64Value, fold=_add)
    service = Rehearsal(flow, store=open_store(store))
    for number in (3, 4):
        service.feed("numbers", Int64Value(value=number))
        service.run_until_caught_up()
    return flow.name


def test_the_reader_of_redis_on_the_stores_page_reads(redis_url: str) -> None:
    consistent, flow = function_of("stores.md", "consistent"), summed(redis_url)
    with closing(redis.Redis.from_url(redis_url)) as client:
        number, (found, missing) = consistent(client, flow, "sum", 0, ["all", "nobody"])
    assert (number, Int64Value.FromString(found).value, missing) == (2, 7, None)


def test_the_reader_of_cassandra_on_the_stores_page_reads(cassandra_url: str) -> None:
    consistent_rows, flow = function_of("stores.md", "consistent_rows"), summed(cassandra_url)
    address = urlsplit(cassandra_url)
    profile = ExecutionProfile(RoundRobinPolicy(), request_timeout=PATIENCE_S)
    with Cluster(
        [address.hostname],
        port=address.port,
        protocol_version=5,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        connect_timeout=PATIENCE_S,
        control_connection_timeout=PATIENCE_S,
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
    ) as cluster:
        number, (found, missing) = consistent_rows(cluster.connect(), flow, "sum", 0, [b"all", b"nobody"])
    assert (number, Int64Value.FromString(found).value, missing) == (2, 7, None)


def test_programs_of_the_page_on_plain_consumers_end_behind_transactions(kafka: str, tmp_path: Path) -> None:
    """Markers and what was aborted have offsets and are never given."""
    names = {"robot.raw": "plain.transactions.raw", "robot.screws": "plain.transactions.screws"}
    docs_examples.write_files(ROOT / "docs" / "plain-consumers.md", tmp_path)
    for file in tmp_path.iterdir():
        text = re.sub("|".join(names), lambda found: names[found[0]], file.read_text(encoding="utf-8"))
        file.write_text(text, encoding="utf-8")

    def run(name: str) -> str:
        command = [sys.executable, name, kafka]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        return done.stdout

    run("topics.py")
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": "plain.transactions"})
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(60):
            robot = f"robot-{number % 3}"
            value = wrap(Int64Value(value=1), key=robot, timestamp_ms=1_700_000_000_000 + number)
            producer.produce(names["robot.raw"], value, key=robot)
        end()
    run("relay.py")
    assert run("count.py").splitlines()[1:] == [f"robot-{robot} 40" for robot in range(3)]


def _add(total: Int64Value, number: Int64Value) -> None:
    total.value += number.value


@pytest.mark.timeout(1800)  # four starts of Spark, on a machine that may be busy
@pytest.mark.parametrize("page", PAGES, ids=docs_examples.name_of)
def test_commands_do_what_the_page_promises(page: Path, shell: Shell) -> None:
    if "apicurio=" in page.read_text(encoding="utf-8"):
        try:
            newest_java()
        except ConfigurationError as error:
            pytest.skip(str(error))
    for block in docs_examples.blocks(page):
        if block.file:
            text = block.text
            for port, free in shell.ports.items():
                text = text.replace(port, free)
            (shell.directory / block.file).write_text(text, encoding="utf-8")
    for command in docs_examples.commands(page):
        if command.text.startswith(CHECKED_ELSEWHERE):
            continue
        status, shown = shell.run(command.text)
        for port, free in shell.ports.items():
            shown = re.sub(rf"\b{free}\b", port, shown)
        where = f"{page}:{command.line}: {command.text}\n{shown}"
        assert status == 0, where
        if command.shown:
            assert docs_examples.matches(shown, command.shown), f"{where}\nthe page says\n{command.shown}"
