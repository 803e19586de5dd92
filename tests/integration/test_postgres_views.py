"""Views that are tables in PostgreSQL: what plain SQL reads there is what the states are, whatever changes them."""

from __future__ import annotations

import contextlib
import enum
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any, Literal

import msgspec
import psycopg
import pytest

from services._proto.fastening_pb2 import RobotTotal
from sqe_chain.adapters import open_store
from sqe_chain.adapters.postgres import PostgresStore
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.explain.views import AuditedView, audit_view
from sqe_chain.flow import Flow, count, mean, sum_
from sqe_chain.flow.context import Context
from sqe_chain.operations.forget import ForgetFlow
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of


class Color(enum.Enum):
    RED = "red"


class Inner(msgspec.Struct):
    sizes: list[int] = msgspec.field(default_factory=list)


class Everything(msgspec.Struct):
    whole: int = 0
    text: str = ""
    yes: bool = False
    real: float = 0.0
    exact: Decimal = Decimal(0)
    at: datetime = datetime(1, 1, 1)  # noqa: DTZ001 - states may have such times
    day: date = date(1, 1, 1)
    raw: bytes = b""
    color: Color = Color.RED
    size: Literal["s", "m"] = "s"
    maybe: int | None = None
    either: int | float = 0
    inner: Inner = msgspec.field(default_factory=Inner)
    id: uuid.UUID = uuid.UUID(int=0)


class Update(msgspec.Struct):
    """What a record changes of a state: its fields as JSON; or it deletes the state."""

    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    delete: bool = False


class Size(msgspec.Struct):
    size: int = 0


def put(state: Any, update: Update, context: Context) -> None:
    if update.delete:
        context.delete_state()
        return
    whole = msgspec.to_builtins(state) | update.fields
    changed = msgspec.convert(whole, type(state))
    for name in type(state).__annotations__:
        setattr(state, name, getattr(changed, name))


class Shop:
    """One flow of a test, whose code changes from run to run."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = open_store(url)
        self.name = f"shop-{uuid.uuid4().hex[:12]}"
        self.view = f"shop_{uuid.uuid4().hex[:12]}"
        self.service: Any = None

    def deploy(
        self,
        state: type,
        view: str | None = "",
        *,
        make: bool = True,
        partitions: int = 3,
        start: bool = True,
    ) -> None:
        """Run other code from now on; `view` is "" for the one of this test."""
        flow = Flow(self.name, state_partitions=partitions)
        view = self.view if view == "" else view
        flow.source("updates", Update, raw=True).aggregate("per-key", state=state, fold=put, view=view)
        assert isinstance(self.store, PostgresStore)
        for stage in flow.compile().stages:
            if make and stage.table is not None:
                self.store.make_view_table(self.name, stage.name, stage.table)
        if self.service is None:
            self.service = Rehearsal(flow, store=self.store)
        else:
            self.service.flow = flow
            self.service.service = None
            if start:
                self.service.start()

    def feed(self, key: str | bytes, *, delete: bool = False, **fields: Any) -> None:
        self.service.feed("updates", Update(fields, delete), key=key)
        self.service.run_until_caught_up()

    def rows(self, columns: str = "*", table: str = "") -> list[tuple[Any, ...]]:
        with contextlib.closing(psycopg.connect(self.url.partition("?")[0], autocommit=True)) as connection:
            return connection.execute(
                f"SELECT {columns} FROM sqe_chain.{table or self.view} ORDER BY 1"  # noqa: S608 - of this test
            ).fetchall()


@pytest.fixture
def shop(postgres_url: str) -> Iterator[Shop]:
    shop = Shop(postgres_url)
    yield shop
    shop.store.close()


def test_each_field_is_a_column_of_its_type(shop: Shop) -> None:
    shop.deploy(Everything)
    zone = timezone(timedelta(hours=2))
    shop.feed(
        "a", whole=-(2**63), text='"ü\\', yes=True, real=0.1, exact="1.10", at=datetime(2026, 1, 2, 3, 4, 5, 6, zone).isoformat(),
        day="2026-01-02", raw="AP8=", size="m", maybe=7, either=0.25, inner={"sizes": [1, 2]}, id=str(uuid.UUID(int=5)),
    )  # fmt: skip
    ((key, error, *values),) = shop.rows()
    assert (key, error) == ("a", None)
    assert values == [
        -(2**63), '"ü\\', True, 0.1, Decimal("1.10"), datetime(2026, 1, 2, 1, 4, 5, 6, UTC), date(2026, 1, 2), b"\x00\xff",
        "red", "m", 7, Decimal("0.25"), {"sizes": [1, 2]}, uuid.UUID(int=5),
    ]  # fmt: skip
    assert str(values[4]) == "1.10"


def test_what_postgres_cannot_hold_is_named_in_its_row_and_stops_nothing(shop: Shop) -> None:
    shop.deploy(Everything)
    shop.feed("fine", text="x")
    shop.feed("large", whole=2**63)
    shop.feed("nul", text="a\0b")
    shop.feed("deep", inner={"sizes": []}, text="\\u0000")  # a backslash, and no escape
    shop.feed("long", exact="1E+200000")
    shop.feed(b"\xff", text="y")
    found = {key: (error or "").rpartition(": ")[2] for key, error in shop.rows("key, sqe_error")}
    assert found == {
        "fine": "", "deep": "", "large": f"{2**63} is beyond 64 bits", "nul": "a text with U+0000, which PostgreSQL cannot hold",
        "long": "a number with more digits than numeric has", None: found[None],
    }  # fmt: skip
    assert "cannot be shown" in dict(shop.rows("key, sqe_error"))[None]
    shop.feed("large", whole=1)
    assert ("large", None, 1) in shop.rows("key, sqe_error, whole")


def test_deleted_states_and_rebuilds(shop: Shop) -> None:
    shop.deploy(Everything)
    for key in ("a", "b", "c"):
        shop.feed(key, whole=1)
    shop.feed("b", delete=True)
    for _ in range(2):
        assert shop.rows("key, whole") == [("a", 1), ("c", 1)]
        assert len(shop.rows("sqe_flow", f"{shop.view}_rows")) == 2
        shop.service.rebuild()
        shop.feed("a", text="again")
    shop.deploy(Everything, partitions=5, start=False)
    shop.service.rebuild()
    assert shop.rows("key, whole, text") == [("a", 1, "again"), ("c", 1, "")]


class Fewer(msgspec.Struct):
    whole: int = 0


class More(msgspec.Struct):
    whole: int = 0
    text: str = "new"


class Other(msgspec.Struct):
    whole: int | str = 0


def test_a_view_that_comes_later_goes_and_comes_back_shows_all_states(shop: Shop) -> None:
    """Also those that no record changes meanwhile, and none that was deleted while nothing kept the table."""
    shop.deploy(Fewer, None)
    shop.feed("a", whole=1)
    shop.feed("b", whole=1)
    shop.deploy(Fewer)
    shop.service.run_until_caught_up()
    assert shop.rows("key, whole") == [("a", 1), ("b", 1)]
    shop.deploy(Fewer, None)
    shop.feed("a", delete=True)
    assert shop.rows() == []  # rather than what is no longer so
    shop.feed("b", whole=2)
    shop.deploy(Fewer)
    shop.service.run_until_caught_up()
    assert shop.rows("key, whole") == [("b", 2)]


def test_a_new_column_is_filled_and_anything_else_is_refused(shop: Shop) -> None:
    shop.deploy(Fewer)
    shop.feed("a", whole=1)
    with pytest.raises(
        ConfigurationError,
        match=r"lacks text\. Make it with: sqe-chain store init postgres://\S+ --flow MODULE:FLOW, where the module declares flow 'shop-",
    ):
        shop.deploy(More, make=False)
    shop.deploy(More)
    shop.feed("b", whole=1)
    assert shop.rows("key, whole, text") == [("a", 1, "new"), ("b", 1, "new")]
    with pytest.raises(ConfigurationError, match="has column text, and the state has no such field any more"):
        shop.deploy(Fewer)
    with pytest.raises(ConfigurationError, match="column whole is bigint, and the field is jsonb now"):
        shop.deploy(Other)


def test_a_name_belongs_to_one_stage(shop: Shop) -> None:
    shop.deploy(Fewer)
    other = Shop(shop.url)
    other.view = shop.view
    with pytest.raises(ConfigurationError, match=f"shows stage 'per-key' of flow '{shop.name}'"):
        other.deploy(Fewer)


def forget(shop: Shop) -> None:
    if shop.service.service is not None:
        shop.service.service.leave()
    ForgetFlow(
        shop.name,
        {"": shop.store},
        shop.service.log,
        topics=False,
        run_id="forgets",
        is_dead=lambda _: True,
        wait=lambda _: None,
    ).run()


def test_forgotten_flows_leave_no_rows(shop: Shop) -> None:
    shop.deploy(Fewer)
    shop.feed("a", whole=1)
    shop.service.rebuild()
    shop.feed("a", whole=2)
    forget(shop)
    assert shop.rows("sqe_flow", f"{shop.view}_rows") == []


@dataclass
class Plain:
    count: int = 0


TRIGGER = (
    "CREATE FUNCTION sqe_chain.{0}_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';"
    " CREATE TRIGGER t BEFORE INSERT ON sqe_chain.{0}_rows FOR EACH ROW EXECUTE FUNCTION sqe_chain.{0}_f()"
)


@pytest.mark.parametrize(
    "refusing",
    [
        "ALTER TABLE sqe_chain.{0}_rows ADD CHECK (whole < 5)",
        "CREATE UNIQUE INDEX ON sqe_chain.{0}_rows (whole)",
        TRIGGER,
    ],
)
def test_a_constraint_of_the_user_that_refuses_a_row_is_named(shop: Shop, refusing: str) -> None:
    shop.deploy(Fewer)
    shop.feed("a", whole=1)
    with contextlib.closing(psycopg.connect(shop.url, autocommit=True)) as server:
        server.execute(refusing.format(shop.view))
        for key in ("b", "c"):
            shop.service.feed("updates", Update({"whole": 7}), key=key)
        with pytest.raises(ConfigurationError, match="of your own refuses a row of a table of states"):
            shop.service.run_until_caught_up()


def test_messages_and_declared_aggregates_have_columns(shop: Shop) -> None:
    def total(state: RobotTotal, update: Update) -> None:
        state.robot, state.events = update.fields["robot"], 2**63 + state.events

    flow = Flow(shop.name, state_partitions=2)
    updates = flow.source("updates", Update, raw=True)
    updates.aggregate("messages", state=RobotTotal, fold=total, view=shop.view)
    sizes = flow.source("sizes", Size, raw=True)
    sizes.aggregate("sizes", number=count(), total=sum_("size"), middle=mean("size"), view=f"{shop.view}_2")
    assert isinstance(shop.store, PostgresStore)
    for stage in flow.compile().stages:
        assert stage.table is not None
        shop.store.make_view_table(shop.name, stage.name, stage.table)
    service = Rehearsal(flow, store=shop.store)
    service.feed("updates", Update({"robot": "r"}), key="a")
    for size in (1, 2):
        service.feed("sizes", Size(size), key="a")
    service.run_until_caught_up()
    assert shop.rows("key, robot, events, sqe_error") == [("a", "r", 2**63, None)]
    assert shop.rows("key, number, total, middle, sqe_error", f"{shop.view}_2") == [("a", 2, 3, 1.5, None)]


def test_an_import_is_shown_from_the_next_start_on(shop: Shop) -> None:
    shop.deploy(Fewer)
    for key in ("a", "b"):
        shop.feed(key, whole=1)
    lines = shop.service.exported()
    forget(shop)
    shop.deploy(Fewer, start=False)
    shop.service.imported(lines)
    shop.service.run_until_caught_up()
    assert shop.rows("key, whole") == [("a", 1), ("b", 1)]


class Reading(msgspec.Struct):
    at: int
    size: int = 1


class Summed(msgspec.Struct):
    sum: int = 0


def add(summed: Summed, reading: Reading) -> None:
    summed.sum += reading.size


class Windows(Shop):
    """A flow of windows of a second, whose code shows them or not."""

    def use(self, view: str | None) -> None:
        """Run other code from now on."""
        flow = Flow(self.name, state_partitions=2)
        readings = flow.source("readings", Reading, raw=True, timestamp=lambda reading: reading.at)
        readings.windowed("sums", Tumbling(1000), state=Summed, fold=add, retention_ms=3000, view=view)
        assert isinstance(self.store, PostgresStore)
        for stage in flow.compile().stages:
            if stage.table is not None:
                self.store.make_view_table(self.name, stage.name, stage.table)
        if self.service is None:
            self.service = Rehearsal(flow, store=self.store)
        else:
            self.service.flow, self.service.service = flow, None
            self.service.start()

    def read(self, key: str, at: int) -> None:
        self.service.feed("readings", Reading(at), key=key)
        self.service.run_until_caught_up()

    def shown(self) -> list[tuple[Any, ...]]:
        """Key, beginning in ms, whether it is final, sum; in this order."""
        moment = "(extract(epoch FROM window_start) * 1000)::int"
        return sorted(self.rows(f"key, {moment}, window_final, sum"))


def test_windows_are_rows_until_they_are_no_longer_retained(postgres_url: str) -> None:
    shop = Windows(postgres_url)
    shop.use(shop.view)
    for key, at in (("a", 100), ("a", 900), ("b", 200), ("a", 1100)):
        shop.read(key, at)
    assert shop.shown() == [("a", 0, True, 2), ("a", 1000, False, 1), ("b", 0, True, 1)]
    ((start, end),) = set(shop.rows("window_start, window_end", f"{shop.view} WHERE NOT window_final"))
    assert (start.timestamp(), end.timestamp()) == (1, 2)
    shop.service.rebuild()
    assert shop.shown() == [("a", 0, True, 2), ("a", 1000, False, 1), ("b", 0, True, 1)]
    shop.read("a", 4500)
    assert shop.shown() == [("a", 1000, True, 1), ("a", 4000, False, 1)]
    shop.store.close()


def test_a_view_of_windows_that_comes_later_goes_and_comes_back_shows_all_of_them(postgres_url: str) -> None:
    """Also windows that were opened, changed and closed by code that kept no rows for them."""
    shop = Windows(postgres_url)
    shop.use(None)
    for key, at in (("a", 100), ("b", 200), ("a", 1100)):
        shop.read(key, at)
    shop.use(shop.view)
    shop.service.run_until_caught_up()
    assert shop.shown() == [("a", 0, True, 1), ("a", 1000, False, 1), ("b", 0, True, 1)]
    shop.use(None)
    for key, at in (("a", 1200), ("b", 2500), ("b", 4100)):
        shop.read(key, at)
    assert shop.shown() == []  # rather than what is no longer so
    shop.use(shop.view)
    shop.service.run_until_caught_up()
    assert shop.shown() == [("a", 1000, True, 2), ("b", 2000, True, 1), ("b", 4000, False, 1)]
    shop.read("b", 4200)
    assert shop.shown() == [("a", 1000, True, 2), ("b", 2000, True, 1), ("b", 4000, False, 2)]
    shop.store.close()


# --- audits --------------------------------------------------------------------------------------------------


def audited(shop: Shop, sample: int = 100) -> AuditedView | None:
    """What an audit finds of the view."""
    env = environment_of(shop.service)
    return audit_view(env, env.flow.stages[0], sample, Random(1))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("UPDATE {rows} SET size = 7 WHERE key = 'b'", [b"b"]),
        ("UPDATE {rows} SET key = 'x' WHERE key = 'b'", [b"b"]),
        ("DELETE FROM {rows} WHERE key = 'c'", [b"c"]),
        ("UPDATE {rows} SET sqe_place = '\\x7a' WHERE key = 'a'", [b"a", b"z"]),
    ],
)
def test_an_audit_names_rows_that_others_have_changed(shop: Shop, change: str, named: list[bytes]) -> None:
    shop.deploy(Size)
    for size, key in enumerate("abc"):
        shop.feed(key, size=size)
    shop.feed("d", size=1)
    shop.feed("d", delete=True)
    assert audited(shop) == AuditedView(shop.view, rows=3)
    with contextlib.closing(psycopg.connect(shop.url.partition("?")[0], autocommit=True)) as connection:
        connection.execute(change.format(rows=f"sqe_chain.{shop.view}_rows"))
    found = audited(shop)
    assert found is not None
    assert list(found.different) == named


def test_an_audit_reports_where_it_has_compared_nothing(shop: Shop) -> None:
    shop.deploy(Size, view=None)
    shop.feed("a", size=1)
    assert audited(shop) is None
    shop.deploy(Size, start=False)
    found = audited(shop)
    assert found is not None
    assert "does not show all states yet" in found.not_compared
    shop.deploy(Size, view="json")
    found = audited(shop)
    assert found is not None
    assert (found.rows, found.not_compared) == (0, "a view as 'json' is not")
