"""Goal: each entry of the runbook names an error that happens, and its commands fix it.

Method: the fault is made on a broker and a store in memory, and the service stops with the error of the entry. The page's
own commands run. Then the totals are those of the records that must count.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from typer.testing import CliRunner, Result

from sqe_chain import errors, wrap
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.cli.commands import application
from sqe_chain.cli.loading import load_module
from sqe_chain.flow import Flow
from sqe_chain.runtime import connecting
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


orders = declare()
orders_2 = declare("orders-2")
orders_strict = declare(check=check)
orders_fixed = declare()
orders_skipping = declare(check=check, poison="skip")
orders_changed = declare(check=check, poison="skip")
orders_few_lanes = declare(max_lanes=1)
orders_many_lanes = declare(max_lanes=100)
orders_compacted = declare(allow_compacted=True)
orders_more_partitions = declare(partitions=4)
orders_typed = declare(state=StringValue, fold=add_text)
orders_long = declare(fold=add_long, output=True)
with_another = Flow("orders", state_partitions=2)
_words = with_another.source("orders", StringValue)
_words.aggregate("per-letter", key=key, state=Int64Value, fold=add).changes().to("totals", partitions=1)
_words.aggregate("per-customer", key=key, state=Int64Value, fold=add)

ids = Flow("ids", state_partitions=2)
ids.source("orders", StringValue).drop_replays("fresh").to("totals", partitions=1)
"""
MADE_ELSEWHERE = {
    "RepeatedPosition": "needs a stage of one's own; tests/protocol/test_one_position.py",
    "OutputRefused": "has no commands; tests/protocol/test_outputs_refused.py",
    "Superseded": "has no commands; tests/protocol/test_claims.py",
    "ReadersOverlap": "tests/protocol/test_readers.py",
    "ChangedFile": "tests/integration/test_files.py",
    "UnreadableFile": "tests/integration/test_files.py",
    "TableAltered": "tests/contract/test_table_intruders.py",
    "TableInconsistent": "tests/protocol/test_tables.py",
    "OverwriteUnderWay": "tests/protocol/test_overwrites_that_stop.py",
    "ConfigurationError": "has no commands",
    "FlowError": "has no commands",
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


@dataclass
class Shop:
    """A broker and a store in memory, and the command in front of them."""

    log: MemoryLog
    store: MemoryStore
    counts: list[str] = field(default_factory=list)
    flow: str = "orders"

    def feed(self, *words: str, partition: int = 0) -> None:
        for word in words:
            value = wrap(StringValue(value=word), key=word, timestamp_ms=len(self.counts))
            self.log.append("orders", partition, value, key=word.encode(), timestamp_ms=len(self.counts))
            self.counts.append(word)

    def command(self, line: str) -> Result:
        words = shlex.split(line)[1:]
        arguments = [f"memory://{self.store.name}" if word.startswith("redis://") else word for word in words]
        if words[0] == "run":
            arguments += ["--engine", "inprocess", *([] if "--once" in words else ["--once"])]
        if words[0] in {"rebuild", "announce"}:
            arguments += ["--takeover"]
        if "--allow-weak-durability" not in words:
            arguments += ["--allow-weak-durability"]
        if words[0] == "rebuild":
            arguments += ["--engine", "inprocess"]
        return CliRunner().invoke(application(words[0]), arguments)

    def run(self, flow: str = "orders", *options: str) -> Result:
        return self.command(
            f"sqe-chain run shop:{flow} --kafka broker:9092 --store redis://store:6379 {' '.join(options)}"
        )

    def fix(self, line: str) -> None:
        """Run a command of the page."""
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
        result = CliRunner().invoke(
            application("state"),
            ["state", f"shop:{flow}", "per-letter", "--store", f"memory://{self.store.name}", "--json"],
        )
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
    monkeypatch.setattr(connecting, "open_log", lambda _bootstrap, _config: broker)
    yield Shop(broker, MemoryStore(re.sub("[^a-z]", "-", request.node.name.lower())))
    broker.clear()
    del sys.modules["shop"]


def count_initials(*words: str) -> dict[str, int]:
    """The totals of words."""
    return {word[0]: sum(other[0] == word[0] for other in words) for word in words}


Fault = Callable[[Shop], "tuple[Result, str, dict[str, int]]"]
"""Makes a fault: the run that stops, the flow whose totals count afterwards, and these totals."""


def republished(shop: Shop, outputs: int, words: tuple[str, ...]) -> None:
    """A republisher that makes some records of each input, and is killed before it commits."""
    flow = Flow("up")
    flow.source("raw", StringValue).flat_map(
        lambda word: [StringValue(value=f"{word.value}{number}") for number in range(outputs)]
    ).to("orders", key=lambda word: word.value, partitions=2)
    service = Rehearsal(flow, log=shop.log)
    if not shop.log.records("raw"):
        for number, word in enumerate(words):
            shop.log.append("raw", 0, wrap(StringValue(value=word), key=None, timestamp_ms=number))
    service.crash(step=7, when="before")
    service.run_until_crash()


def lose_a_record(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    """Of four records that a republisher has written, the third never reaches the topic."""
    republished(shop, 1, ("a", "a", "a", "a"))
    written = shop.log.records("orders")
    shop.log.delete("orders")
    shop.log.create_topic("orders", 2)
    for number in (0, 1, 3):
        message = written[number]
        shop.log.append("orders", message.partition(), message.value(), message.key(), message.headers())
    return shop.run(), "orders_2", {}


def change_a_republisher(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    republished(shop, 2, ("a",))
    assert shop.run().exit_code == 0
    republished(shop, 3, ())
    return shop.run(), "orders_2", {}


def come_by_many_ways(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    republished(shop, 1, ("a",))
    shop.feed("a", "b", partition=0)
    shop.feed("b", partition=1)
    return shop.run("orders_few_lanes"), "orders_many_lanes", count_initials("a", "a", "b", "b")


def recreate(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a", "b")
    assert shop.run().exit_code == 0
    shop.log.delete("orders", keep_commits=True)
    shop.log.create_topic("orders", 2)
    shop.feed("c")
    return shop.run(), "orders_2", count_initials("c")


def truncate(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a", "b", "c")
    assert shop.run().exit_code == 0
    shop.log.truncate_after("orders", 0, 1)
    return shop.run(), "orders_2", count_initials("a")


def lose_offsets(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a")
    assert shop.run().exit_code == 0
    shop.feed("b", "c", "d")
    shop.log.truncate_before("orders", 0, 3)
    return shop.run(), "orders_2", count_initials("d")


def begin_late(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a", "b")
    shop.log.truncate_before("orders", 0, 1)
    return shop.run(), "orders", count_initials("b")


def compact(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a", "b")
    shop.log.configure("orders", compacted=True)
    return shop.run(), "orders_compacted", count_initials("a", "b")


def drop_a_stage(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a", "b")
    assert shop.run("with_another").exit_code == 0
    shop.feed("c")
    return shop.run(), "orders", count_initials("a", "b", "c")


def fail(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a", "bad", "c")
    return shop.run("orders_strict"), "orders_fixed", count_initials("a", "bad", "c")


def fail_often(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a", *["bad"] * 150)
    return shop.run("orders_skipping"), "orders_skipping", count_initials("a")


def change_the_code_in_a_plan(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a", "bad")
    flow = sys.modules["shop"].orders
    service = Rehearsal(flow, log=shop.log, store=shop.store)
    service.crash(step=4, when="after")
    service.run_until_crash()
    return shop.run("orders_changed", "--takeover"), "orders", count_initials("a", "bad")


def declare_more_partitions(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a", "b")
    assert shop.run().exit_code == 0
    return shop.run("orders_more_partitions"), "orders", count_initials("a", "b")


def change_the_type(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a", "a", "b")
    assert shop.run().exit_code == 0
    return shop.run("orders_typed"), "orders_typed", {"a": 11, "b": 1}


def give_long_outputs(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a")
    return shop.run("orders_long"), "orders_long", count_initials("a")


def use_a_weak_store(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a")
    line = "sqe-chain run shop:orders --kafka broker:9092 --store redis://store:6379".replace(
        "redis://store:6379", f"memory://{shop.store.name}"
    )
    arguments = [*shlex.split(line)[1:], "--engine", "inprocess", "--once"]
    return CliRunner().invoke(application("run"), arguments), "orders", count_initials("a")


def go_back(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a")
    assert shop.run().exit_code == 0
    copy = shop.store.copy_all()
    shop.feed("b", "c")
    assert shop.run().exit_code == 0
    shop.store.restore_all(copy)
    return shop.run(), "orders", count_initials("a", "b", "c")


def lose_the_store(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    empty = shop.store.copy_all()
    shop.feed("a", "b")
    assert shop.run().exit_code == 0
    shop.store.restore_all(empty)
    return shop.run(), "orders", count_initials("a", "b")


def republish_states_too_early(shop: Shop) -> tuple[Result, str, dict[str, int]]:
    shop.feed("a", "b")
    assert shop.run().exit_code == 0
    rewound = shop.command(
        "sqe-chain rewind shop:orders --kafka broker:9092 --store redis://store:6379 --to orders[0]=1 --engine inprocess"
    )
    assert rewound.exit_code == 0, rewound.stderr
    early = shop.command("sqe-chain announce shop:orders --kafka broker:9092 --store redis://store:6379")
    return early, "orders", count_initials("a", "b")


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
    "PlanMismatch": change_the_code_in_a_plan,
    "PartitionsMismatch": declare_more_partitions,
    "ChangedType": change_the_type,
    "OutputTooLarge": give_long_outputs,
    "WeakDurability": use_a_weak_store,
    "StoreInconsistent": go_back,
    "StoreEmpty": lose_the_store,
    "NotCaughtUp": republish_states_too_early,
}


@pytest.mark.parametrize("error", FAULTS)
def test_an_entry_is_made_and_fixed_by_its_commands(shop: Shop, error: str) -> None:
    commands = entries()[error]
    assert commands
    stopped, flow, totals = FAULTS[error](shop)
    assert f"({error})" in stopped.stderr, stopped.stderr
    assert stopped.exit_code == getattr(errors, error).exit_status
    for line in commands:
        shop.fix(line)
    if totals:
        assert shop.totals(flow) == totals


def test_every_error_that_stops_a_service_has_an_entry() -> None:
    names = {name for name, _ in errors._tree(errors.ServiceStopped).items()} | {
        name for name, _ in errors._tree(errors.PoisonError).items()
    }
    rows = {"RowWithoutKey", "RowOfAnotherType", "RowTooLarge"}  # poison like any other
    assert names - rows <= entries().keys()
    assert entries().keys() == FAULTS.keys() | MADE_ELSEWHERE.keys() | {"Unavailable"}
