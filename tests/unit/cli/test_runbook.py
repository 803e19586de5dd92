"""Goal: each entry of the runbook names an error that happens, and its commands fix it.

Method: the fault is made on a broker and a store in memory, and the service stops with the error of the entry. The page's
own commands run. Then the totals are those of the records that must count.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from typer.testing import CliRunner, Result

from sqe_chain import errors, wrap
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory._broker import BROKERS
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.cli import peek as peek_command
from sqe_chain.cli import run as run_command
from sqe_chain.cli.commands import application
from sqe_chain.cli.loading import load_module
from sqe_chain.flow import Flow
from sqe_chain.plans.events import CaughtUp, Event, Observer
from sqe_chain.plans.settings import Settings
from sqe_chain.runtime import connecting
from sqe_chain.runtime.launching import launch
from sqe_chain.testing import Rehearsal

PAGE = Path(__file__).parents[3] / "docs" / "runbook.md"
FLOWS = """
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain import Flow


def add(total, word):
    total.value += 1


def add_long(total, word):
    total.value += 1
    return [StringValue(value="x" * 1_500_000)]


def add_text(total, word):
    total.value += "1"


def key(word):
    return word.value[0]


def check(word):
    if word.value.startswith("bad"):
        raise ValueError("bad word")
    return word


def declare(name="orders", check=None, fold=add, state=Int64Value, partitions=2, output=False, **settings):
    flow = Flow(name, state_partitions=partitions, **settings)
    words = flow.source("orders", StringValue)
    if check:
        words = words.map(check)
    stage = words.aggregate("per-letter", key=key, state=state, fold=fold)
    if output:
        stage.to("totals", partitions=1)
    else:
        stage.changes().to("totals", partitions=1)
    return flow


plain = orders = declare()
orders_2 = declare("orders-2")
strict = declare(check=check)
skipping = declare(check=check, poison="skip")
parking = declare(check=check, poison="park")
parking_fixed = declare(poison="park")
few_lanes = declare(max_lanes=1)
many_lanes = declare(max_lanes=100)
compacted = declare(allow_compacted=True)
more_partitions = declare(partitions=4)
typed = declare(state=StringValue, fold=add_text)
long = declare(fold=add_long, output=True)
with_another = Flow("orders", state_partitions=2)
_words = with_another.source("orders", StringValue)
_words.aggregate("per-letter", key=key, state=Int64Value, fold=add).changes().to("totals", partitions=1)
_words.aggregate("per-customer", key=key, state=Int64Value, fold=add)

ids = Flow("ids", state_partitions=2)
ids.source("orders", StringValue).drop_replays("fresh").to("totals", partitions=1)
"""
MADE_ELSEWHERE = {
    "RepeatedPosition": "needs a stage of one's own; tests/protocol/task/test_one_position.py",
    "OutputRefused": "has no commands; tests/protocol/task/test_outputs_refused.py",
    "Superseded": "has no commands; tests/protocol/test_claims.py",
    "ReadersOverlap": "tests/protocol/operations/test_readers.py",
    "ChangedFile": "tests/integration/test_files.py",
    "UnreadableFile": "tests/integration/test_files.py",
    "TableAltered": "tests/contract/test_table_intruders.py",
    "TableInconsistent": "tests/protocol/ext/tables/test_tables.py",
    "OverwriteUnderWay": "tests/protocol/ext/tables/test_overwrites_that_stop.py",
    "GroupInUse": "has no commands; tests/protocol/test_group_commits.py",
    "ConfigurationError": "has no commands",
    "FlowError": "has no commands",
    "DeadLettersLost": "tests/protocol/test_begun_batches.py",
    "MarkersLost": "tests/protocol/test_transactions.py",
    "UnknownRevision": "tests/unit/envelope/test_revisions.py",
    "EngineLost": "tests/contract/test_lost_workers.py",
}
"""Entries whose faults other tests make, and where."""


def entries() -> dict[str, list[str]]:
    """Error -> the commands of its entry."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        commands = [line[2:] for line in part.splitlines() if line.startswith("$ ")]
        for name in re.findall(r"`(\w+)`", part.splitlines()[0]):
            found[name] = commands
    return found


CHECK = MemoryStore.check


def settings() -> dict[str, str]:
    """The environment that the page sets before its first command."""
    line = re.search(r"^\$ export (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert line
    return dict(setting.split("=", 1) for setting in line[1].split())


class Operator(Observer):
    """Stops a service with SIGTERM when it has read everything."""

    def event(self, event: Event) -> None:
        if isinstance(event, CaughtUp):
            signal.raise_signal(signal.SIGTERM)


def run_until_caught_up(*arguments: Any, observers: list[Observer], **others: Any) -> None:
    """`launch`, with an operator."""
    launch(*arguments, observers=[*observers, Operator()], **others)


@dataclass
class Shop:
    """A broker and a store in memory, and the command in front of them."""

    log: MemoryLog
    store: MemoryStore
    counts: list[str] = field(default_factory=list)

    def feed(self, *words: str, partition: int = 0) -> None:
        for word in words:
            value = wrap(StringValue(value=word), key=word, timestamp_ms=len(self.counts))
            self.log.append("orders", partition, value, key=word.encode(), timestamp_ms=len(self.counts))
            self.counts.append(word)

    def edit(self, declaration: str) -> None:
        """Change the code: `shop:orders` is declared like this from now on."""
        vars(sys.modules["shop"])["orders"] = getattr(sys.modules["shop"], declaration)

    def command(self, line: str) -> Result:
        words = shlex.split(line)[1:]  # the program's name is not needed
        return CliRunner().invoke(application(words[0]), words)

    def run(self, declaration: str = "", options: str = "") -> Result:
        if declaration:
            self.edit(declaration)
        return self.command(f"sqe-chain run shop:orders {options}")

    def fix(self, line: str) -> None:
        """Run a command of the page, as it is."""
        if line.startswith("kafka-configs.sh"):
            topic = re.search(r"--entity-name (\S+)", line)
            setting = re.search(r"max.message.bytes=(\d+)", line)
            assert topic
            assert setting
            self.log.configure(topic[1], max_message_bytes=int(setting[1]))
            return
        result = self.command(line)
        assert result.exit_code == 0, result.stderr

    def totals(self, flow: str) -> dict[str, int]:
        """Initial -> total, as a table of `sqe-chain state` has it."""
        result = self.command(f"sqe-chain state shop:{flow} per-letter --json")
        assert result.exit_code == 0, result.stderr
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        return {line["key"]: int(line["state"] or 0) for line in lines}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Shop]:
    (tmp_path / "shop.py").write_text(FLOWS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    load_module("shop")
    broker = MemoryLog(request.node.nodeid)
    broker.create_topic("orders", 2)
    broker.create_topic("totals", 1)
    store = MemoryStore(re.sub("[^a-z]", "-", request.node.name.lower()))
    for name, value in settings().items():
        monkeypatch.setenv(name, value.replace("redis://store:6379", f"memory://{store.name}"))
    monkeypatch.setenv("SQE_CHAIN_INTERVAL", "0s")
    monkeypatch.setattr(connecting, "open_log", lambda _bootstrap, _config: broker)
    monkeypatch.setattr(peek_command, "open_log", lambda _bootstrap, _config: broker)
    monkeypatch.setattr(run_command, "launch", run_until_caught_up)
    monkeypatch.setattr(MemoryStore, "check", lambda _store: [])  # it stands for a durable one
    yield Shop(broker, store)
    broker.clear()
    del sys.modules["shop"]


def count_initials(*words: str) -> dict[str, int]:
    """The totals of words."""
    return {word[0]: sum(other[0] == word[0] for other in words) for word in words}


@dataclass
class Stop:
    """A service that has stopped.

    Attributes:
        result: of the run that stopped.
        totals: those that count after the commands.
        flow: whose totals these are.
        code: declarations of `shop:orders` after the stop: one for each command, or one for all.
    """

    result: Result
    totals: dict[str, int]
    flow: str = "orders"
    code: tuple[str, ...] = ("plain",)


Fault = Callable[[Shop], Stop]
"""Makes a fault."""


def republished(shop: Shop, outputs: int, words: tuple[str, ...]) -> None:
    """A republisher that makes some records of each input, and is killed before it commits."""
    flow = Flow("up")
    flow.source("raw", StringValue).flat_map(
        lambda word: [StringValue(value=f"{word.value}{number}") for number in range(outputs)]
    ).to("orders", key=lambda word: word.value, partitions=2)
    service = Rehearsal(flow, log=shop.log, settings=Settings().asking(accept_changed_batch=True))
    again = bool(shop.log.records("orders"))
    if not shop.log.records("raw"):
        for number, word in enumerate(words):
            shop.log.append("raw", 0, wrap(StringValue(value=word), key=None, timestamp_ms=number))
    service.crash(step=2 if again else 7, when="after" if again else "before")
    service.run_until_crash()


def lose_a_record(shop: Shop) -> Stop:
    """Of four records that a republisher has written, the third never reaches the topic."""
    republished(shop, 1, ("a", "a", "a", "a"))
    written = shop.log.records("orders")
    shop.log.delete("orders")
    shop.log.create_topic("orders", 2)
    for number in (0, 1, 3):
        message = written[number]
        shop.log.append("orders", message.partition(), message.value(), message.key(), message.headers())
    return Stop(shop.run(), {}, "orders_2")


def change_a_republisher(shop: Shop) -> Stop:
    republished(shop, 2, ("a",))
    assert shop.run().exit_code == 0
    republished(shop, 3, ())
    return Stop(shop.run(), {}, "orders_2")


def come_by_many_ways(shop: Shop) -> Stop:
    republished(shop, 1, ("a",))
    shop.feed("a", "b", partition=0)
    shop.feed("b", partition=1)
    return Stop(shop.run("few_lanes"), count_initials("a", "a", "b", "b"), code=("many_lanes",))


def recreate(shop: Shop) -> Stop:
    shop.feed("a", "b")
    assert shop.run().exit_code == 0
    shop.log.delete("orders", keep_commits=True)
    shop.log.create_topic("orders", 2)
    shop.feed("c")
    return Stop(shop.run(), count_initials("c"), "orders_2")


def truncate(shop: Shop) -> Stop:
    shop.feed("a", "b", "c")
    assert shop.run().exit_code == 0
    shop.log.truncate_after("orders", 0, 1)
    return Stop(shop.run(), count_initials("a"), "orders_2")


def lose_offsets(shop: Shop) -> Stop:
    shop.feed("a")
    assert shop.run().exit_code == 0
    shop.feed("b", "c", "d")
    shop.log.truncate_before("orders", 0, 3)
    return Stop(shop.run(), count_initials("d"), "orders_2")


def begin_late(shop: Shop) -> Stop:
    shop.feed("a", "b")
    shop.log.truncate_before("orders", 0, 1)
    return Stop(shop.run(), count_initials("b"))


def compact(shop: Shop) -> Stop:
    shop.feed("a", "b")
    shop.log.configure("orders", compacted=True)
    return Stop(shop.run(), count_initials("a", "b"), code=("compacted",))


def drop_a_stage(shop: Shop) -> Stop:
    shop.feed("a", "b")
    assert shop.run("with_another").exit_code == 0
    shop.feed("c")
    return Stop(shop.run("plain"), count_initials("a", "b", "c"))


def fail(shop: Shop) -> Stop:
    shop.feed("a", "bad", "c")
    return Stop(shop.run("strict"), count_initials("a", "bad", "c"))


def fail_often(shop: Shop) -> Stop:
    shop.feed("a", *["bad"] * 150)
    return Stop(shop.run("skipping"), count_initials("a"), code=("skipping",))


def change_the_code_in_a_plan(shop: Shop) -> Stop:
    shop.feed("a", "bad")
    service = Rehearsal(sys.modules["shop"].orders, log=shop.log, store=shop.store)
    service.crash(step=4, when="after")
    service.run_until_crash()
    return Stop(shop.run("skipping", "--takeover"), count_initials("a", "bad"), code=("plain", "skipping"))


def declare_more_partitions(shop: Shop) -> Stop:
    shop.feed("a", "b")
    assert shop.run().exit_code == 0
    return Stop(shop.run("more_partitions"), count_initials("a", "b"))


def change_the_type(shop: Shop) -> Stop:
    shop.feed("a", "a", "b")
    assert shop.run().exit_code == 0
    return Stop(shop.run("typed"), {"a": 11, "b": 1}, code=("typed",))


def give_long_outputs(shop: Shop) -> Stop:
    shop.feed("a")
    return Stop(shop.run("long"), count_initials("a"), code=("long",))


def use_a_weak_store(shop: Shop) -> Stop:
    shop.feed("a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryStore, "check", CHECK)
        return Stop(shop.run(), count_initials("a"))


def go_back(shop: Shop) -> Stop:
    shop.feed("a")
    assert shop.run().exit_code == 0
    copy = shop.store.copy_all()
    shop.feed("b", "c")
    assert shop.run().exit_code == 0
    shop.store.restore_all(copy)
    return Stop(shop.run(), count_initials("a", "b", "c"))


def lose_the_store(shop: Shop) -> Stop:
    empty = shop.store.copy_all()
    shop.feed("a", "b")
    assert shop.run().exit_code == 0
    shop.store.restore_all(empty)
    return Stop(shop.run(), count_initials("a", "b"))


def give_another_cluster(shop: Shop) -> Stop:
    shop.feed("a", "b")
    assert shop.run().exit_code == 0
    topics, cluster = BROKERS[shop.log.name].topics, shop.log.name
    mine = dict(topics)
    shop.log.recreate("orders")
    topics["orders"].info = replace(topics["orders"].info, cluster="staging")
    shop.log.append("orders", 0, b"{}", key=b"c")
    stopped = shop.run()
    assert cluster in stopped.stderr
    topics.update(mine)
    return Stop(stopped, count_initials("a", "b"))


def republish_states_too_early(shop: Shop) -> Stop:
    shop.feed("a", "b")
    assert shop.run().exit_code == 0
    rewound = shop.command("sqe-chain rewind shop:orders --to orders[0]=1")
    assert rewound.exit_code == 0, rewound.stderr
    return Stop(shop.command("sqe-chain announce shop:orders"), count_initials("a", "b"))


def park_too_many(shop: Shop) -> Stop:
    shop.feed(*["bad"] * 600)
    assert shop.run("parking").exit_code == 0
    shop.feed("c", *["bad"] * 401)
    return Stop(shop.run("parking"), {"b": 1_001, "c": 1}, code=("parking", "parking_fixed", "parking_fixed"))


FAULTS: dict[str, Fault] = {
    "GapError": lose_a_record,
    "ChangedRepublisher": change_a_republisher,
    "TooManyLanes": come_by_many_ways,
    "RecreatedTopic": recreate,
    "TruncatedInput": truncate,
    "LostOffsets": lose_offsets,
    "NoCommittedOffset": begin_late,
    "CompactedInput": compact,
    "ServiceStopped": drop_a_stage,
    "PoisonError": fail,
    "TooManyExcluded": fail_often,
    "TooManyParked": park_too_many,
    "PlanMismatch": change_the_code_in_a_plan,
    "PartitionsMismatch": declare_more_partitions,
    "ChangedType": change_the_type,
    "OutputTooLarge": give_long_outputs,
    "WeakDurability": use_a_weak_store,
    "StoreInconsistent": go_back,
    "StoreEmpty": lose_the_store,
    "AnotherCluster": give_another_cluster,
    "NotCaughtUp": republish_states_too_early,
}


@pytest.mark.parametrize("error", FAULTS)
def test_an_entry_is_made_and_fixed_by_its_commands(shop: Shop, error: str) -> None:
    commands = entries()[error]
    assert commands
    stop = FAULTS[error](shop)
    assert f"({error})" in stop.result.stderr, stop.result.stderr
    assert stop.result.exit_code == getattr(errors, error).exit_status
    for number, line in enumerate(commands):
        shop.edit(stop.code[min(number, len(stop.code) - 1)])
        shop.fix(line)
    assert shop.totals(stop.flow) == stop.totals
    if stop.flow != "orders":  # it counts what comes after its start
        shop.feed("z")
        shop.fix("sqe-chain run shop:orders_2")
        assert shop.totals("orders_2") == {**stop.totals, "z": 1}


def test_a_gap_stays_for_a_flow_that_starts_at_the_earliest_offset(shop: Shop) -> None:
    """It begins at the gap where the records before it were deleted."""
    stop = lose_a_record(shop)
    assert "(GapError)" in stop.result.stderr
    assert "--start latest" in stop.result.stderr
    peeked = shop.command(entries()["GapError"][0])
    assert "raw[0]@3" in peeked.stdout, peeked
    again = shop.command("sqe-chain run shop:orders_2 --start earliest")
    assert "(GapError)" in again.stderr, again.stderr
    shop.log.truncate_before("orders", 0, 2)
    vars(sys.modules["shop"])["orders_3"] = sys.modules["shop"].declare("orders-3")
    shop.fix("sqe-chain run shop:orders_3 --start earliest")
    assert shop.totals("orders_3") == {"a": 1}


def test_every_error_that_stops_a_service_has_an_entry() -> None:
    names = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.ServiceStopped | errors.PoisonError)
    }
    rows = {"RowWithoutKey", "RowOfAnotherType", "RowTooLarge"}  # poison like any other
    assert names - rows <= entries().keys()
    assert entries().keys() == FAULTS.keys() | MADE_ELSEWHERE.keys() | {"Unavailable"}
