"""How states are shown to other programs: JSON and hashes, written with the states, through crashes and chunks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from typer.testing import CliRunner

from services._proto.fastening_pb2 import RobotTotal
from sqe_chain import Flow
from sqe_chain.adapters import open_store
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.cli.commands import application
from sqe_chain.codecs.protobuf import as_dict, as_plain
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.errors import ConfigurationError, FlowError
from sqe_chain.flow.context import Context
from sqe_chain.ports import ViewKind
from sqe_chain.testing import Rehearsal


def add(total: RobotTotal, word: StringValue, context: Context) -> None:
    if word.value == "gone":
        context.delete_state()
    total.robot = (context.key or b"").decode()
    total.events += 1


def flow_of(view: str | None, name: str = "shows") -> Flow:
    flow = Flow(name, state_partitions=2)
    flow.source("words", StringValue).aggregate(
        "per-word", key=lambda word: word.value[:1], state=RobotTotal, fold=add, view=view
    )
    return flow


def views(store: MemoryStore) -> dict[bytes, object]:
    found: dict[bytes, object] = {}
    for part in range(2):
        found.update(store.copy_part("shows", "per-word", part).views)
    return found


ONE = {"robot": "a", "line": "", "events": "1", "fastened": "0"}


def fields(found: object) -> dict[str, object]:
    """What is shown of one state, whichever the form."""
    return dict(json.loads(found)) if isinstance(found, str) else dict(found)  # type: ignore[call-overload]


@pytest.mark.parametrize("view", ["json", "hash"])
def test_a_view_follows_its_state(view: ViewKind) -> None:
    store = MemoryStore(f"views-{view}", max_rows=1)
    store.restore_all()
    service = Rehearsal(flow_of(view), store=store)
    service.feed("words", StringValue(value="a"))
    service.run_until_caught_up()
    (found,) = views(store).values()
    assert isinstance(found, str) == (view == "json")
    assert {**fields(found), **ONE} == fields(found)
    for word in ("a", "b", "c", "d", "e"):
        service.feed("words", StringValue(value=word))
    service.run_until_caught_up()
    assert sorted(views(store)) == [b"a", b"b", b"c", b"d", b"e"]
    assert fields(views(store)[b"a"])["events"] == "2"
    service.feed("words", StringValue(value="gone"))
    service.feed("words", StringValue(value="g"))
    service.run_until_caught_up()
    assert b"g" in views(store)
    service.feed("words", StringValue(value="gone"))
    service.run_until_caught_up()
    assert b"g" not in views(store)


def test_without_the_option_nothing_is_shown() -> None:
    store = MemoryStore("views-none")
    store.restore_all()
    service = Rehearsal(flow_of(None), store=store)
    service.feed("words", StringValue(value="a"))
    service.run_until_caught_up()
    assert views(store) == {}
    assert partition_of(b"a", 2) in (0, 1)


def test_a_state_whose_json_is_no_object_is_shown_under_value() -> None:
    store = MemoryStore("views-wrapper")
    store.restore_all()
    flow = Flow("shows", state_partitions=2)

    def count(total: Int64Value, _: StringValue) -> None:
        total.value += 1

    flow.source("words", StringValue).aggregate(
        "per-word", key=lambda word: word.value, state=Int64Value, fold=count, view="hash"
    )
    service = Rehearsal(flow, store=store)
    service.feed("words", StringValue(value="a"))
    service.run_until_caught_up()
    assert views(store) == {b"a": {"value": "1"}}


def test_a_store_that_has_no_such_view_is_refused_before_anything_runs(tmp_path: object) -> None:
    service = Rehearsal(flow_of("hash"), store=open_store(f"sqlite://{tmp_path}/states.db"))
    with pytest.raises(ConfigurationError, match=r"test_views\.py:\d+: .*'hash'.*writes json"):
        service.run_until_caught_up()


shown = flow_of("shown")


STORES_WITHOUT_TABLES = (
    "memory://shows-no-table",
    "sqlite:///{}/states.db",
    "redis://127.0.0.1:1",
    "cassandra://127.0.0.1:1/k",
)


@pytest.mark.parametrize("url", STORES_WITHOUT_TABLES)
def test_a_table_of_states_is_refused_by_name_where_there_is_no_postgres(url: str, tmp_path: Path) -> None:
    """When it is run, and when its table is to be made; before anybody connects."""
    store = open_store(url.format(tmp_path))
    with pytest.raises(
        ConfigurationError,
        match=r"test_views\.py:\d+: .*table 'shown', which PostgreSQL has.*writes (hash|json)",
    ):
        Rehearsal(flow_of("shown"), store=store).run_until_caught_up()
    target = f"{__name__}:shown"
    made = CliRunner().invoke(application(), ["store", "init", url.format(tmp_path), "--flow", target])
    assert made.exit_code == 2
    assert "table 'shown', which PostgreSQL has" in made.output


def test_a_rehearsal_runs_a_flow_whose_states_have_a_table() -> None:
    service = Rehearsal(flow_of("shown"))
    service.feed("words", StringValue(value="a"))
    service.run_until_caught_up()
    assert service.states("per-word")[b"a"].events == 1


def test_a_view_of_another_kind_is_refused_where_it_is_declared() -> None:
    with pytest.raises(FlowError, match=r"test_views\.py:\d+: stage 'per-word': view='XML'"):
        flow_of("XML")


def beyond_all_dates(state: Timestamp, _: StringValue) -> None:
    state.seconds = 10**15


def no_number(state: Value, _: StringValue) -> None:
    state.number_value = float("nan")


def no_type(state: AnyMessage, _: StringValue) -> None:
    state.type_url, state.value = "type.googleapis.com/no.such.Type", b"x"


@pytest.mark.parametrize("view", ["json", "hash"])
@pytest.mark.parametrize(
    ("state", "fold"), [(Timestamp, beyond_all_dates), (Value, no_number), (AnyMessage, no_type)]
)
def test_a_state_that_cannot_be_shown_shows_why_and_stops_nothing(
    view: ViewKind, state: type[Message], fold: Callable[[Any, StringValue], None]
) -> None:
    """Views are written after the seal: a failure there would come again at every start."""
    store = MemoryStore(f"unshown-{view}-{state.DESCRIPTOR.name}")
    store.restore_all()
    flow = Flow("shows", state_partitions=2)
    flow.source("words", StringValue).aggregate(
        "per-word", key=lambda word: word.value[:1], state=state, fold=fold, view=view
    )
    service = Rehearsal(flow, store=store)
    service.feed("words", StringValue(value="a"))
    service.run_until_caught_up()
    assert list(service.states("per-word")) == [b"a"]
    (found,) = views(store).values()
    assert "cannot be shown" in str(fields(found)["error"])


def test_integers_are_numbers_wherever_they_are() -> None:
    """Within messages, lists and maps; what is no integer stays as protobuf's JSON has it."""
    file = FileDescriptorProto(name="views_numbers.proto", package="views", syntax="proto3")
    message = file.message_type.add(name="Numbers")
    entry = message.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    kinds = FieldDescriptorProto
    for number, (name, kind) in enumerate((("key", kinds.TYPE_INT64), ("value", kinds.TYPE_UINT64)), 1):
        entry.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    for number, (name, kind, label, type_name) in enumerate(
        (
            ("large", kinds.TYPE_UINT64, kinds.LABEL_OPTIONAL, ""),
            ("many", kinds.TYPE_SINT64, kinds.LABEL_REPEATED, ""),
            ("small", kinds.TYPE_INT32, kinds.LABEL_OPTIONAL, ""),
            ("text", kinds.TYPE_STRING, kinds.LABEL_OPTIONAL, ""),
            ("inner", kinds.TYPE_MESSAGE, kinds.LABEL_OPTIONAL, ".views.Numbers"),
            ("counts", kinds.TYPE_MESSAGE, kinds.LABEL_REPEATED, ".views.Numbers.CountsEntry"),
            ("ratio", kinds.TYPE_DOUBLE, kinds.LABEL_OPTIONAL, ""),
        ),
        1,
    ):
        message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    pool = DescriptorPool()
    pool.Add(file)
    numbers = GetMessageClass(pool.FindMessageTypeByName("views.Numbers"))
    made: Any = numbers(large=2**64 - 1, many=[-(2**63), 5], small=7, text="12", ratio=float("nan"))
    made.counts[3] = 4
    made.inner.large = 9
    inner = {"large": 9, "many": [], "small": 0, "text": "", "counts": {}, "ratio": 0.0}
    assert as_plain(made) == {
        "large": 2**64 - 1,
        "many": [-(2**63), 5],
        "small": 7,
        "text": "12",
        "ratio": "NaN",
        "counts": {"3": 4},
        "inner": inner,
    }
    assert as_dict(made)["large"] == str(2**64 - 1)  # as stores and other programs know it
    assert as_plain(Int64Value(value=5)) == 5
    assert as_plain(StringValue(value="5")) == "5"
    packed = AnyMessage()
    packed.Pack(Int64Value(value=5))
    assert as_plain(packed) == as_dict(packed)


class Tabled:
    """A flow whose code has, from run to run, a view that is a table, or none."""

    def __init__(self, name: str) -> None:
        self.store = MemoryStore(name)
        self.store.restore_all()
        self.service = Rehearsal(self._flow(None), store=self.store)

    @staticmethod
    def _flow(view: str | None) -> Flow:
        flow = Flow("shows", state_partitions=2)
        flow.source("words", StringValue).aggregate(
            "per-word", key=lambda word: word.value[:1], state=RobotTotal, fold=add, view=view
        )
        return flow

    def deploy(self, view: str | None, *words: str) -> None:
        self.service.flow, self.service.service = self._flow(view).compile(), None
        for word in words:
            self.service.feed("words", StringValue(value=word))

    def run(self, view: str | None, *words: str) -> dict[bytes, int] | None:
        """What the table `totals` shows then to its readers; None: they are not led to it."""
        self.deploy(view, *words)
        self.service.run_until_caught_up()
        return self.shown()

    def crash(self, at: int, view: str | None, *words: str) -> bool:
        """Whether there was a write with this number, right after which the run was killed."""
        self.deploy(view, *words)
        self.service.script.writes.clear()
        crashes = self.service.crashes
        self.service.crash_at_write(at, "after")
        self.service.run_until_crash()
        self.service.script.writes.clear()
        return self.service.crashes > crashes

    def shown(self) -> dict[bytes, int] | None:
        locations = self.store.locations("shows")
        if locations is None or not (locations.stages["per-word"].view or "").startswith("totals:"):
            return None
        return {key: int(json.loads(str(row))["events"]) for key, row in views(self.store).items()}


def test_a_table_shows_all_states_or_none_whichever_code_ran_before() -> None:
    """Rows of states that no record changes are written at a start; while other code runs, no reader is led to the table."""
    tabled = Tabled("views-tables")
    assert tabled.run(None, "a", "b") is None
    assert tabled.run("totals") == {b"a": 1, b"b": 1}
    assert tabled.run("totals", "a") == {b"a": 2, b"b": 1}
    assert tabled.run(None, "b") is None
    assert tabled.run("totals") == {b"a": 2, b"b": 2}
    assert tabled.run("others") is None


@pytest.mark.parametrize("first", ["totals", None])
def test_kills_of_code_with_and_without_the_view_leave_no_row_behind(first: str | None) -> None:
    """Also of code without it that finishes a batch of code that had it, and then is killed."""
    second, at, more = None if first else "totals", 1, True
    while more:
        again, more = 1, False
        while True:
            tabled = Tabled("views-killed")
            tabled.run(first, "a", "b")
            more |= tabled.crash(at, first, "a", "c")
            if not tabled.crash(again, second):
                break
            shown = tabled.shown()
            assert shown is None or set(shown.values()) <= {1, 2}
            assert tabled.run("totals") == {b"a": 2, b"b": 1, b"c": 1}
            again += 1
        at += 1
    assert at > 5
