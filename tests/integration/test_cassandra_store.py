"""What only a real Cassandra can show: lost answers, large states, its layout, other processes."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import Session
from cassandra.query import BatchStatement, BatchType

from sqe_chain.adapters import open_store
from sqe_chain.adapters.cassandra import CassandraStore, client
from sqe_chain.adapters.cassandra.client import CassandraClient
from sqe_chain.errors import ConfigurationError, StoreInconsistent, Unavailable
from sqe_chain.ext.dev import CassandraServer
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.ports import Header, Home, Location, Locations, Views, WithSchema
from tests.support.lossy_proxy import LossyProxy
from tests.support.ports import own_port
from tests.support.waiting import PATIENCE_S, PATIENT, retry_until_available

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqe_chain.ports import StateStore

CLAIM = Home(1, "run-a", "", -1, "")
BORN = Header(1, "run-a", 0, "plan-0")
NEXT = replace(BORN, number=1, plan_id="plan-1")


@pytest.fixture
def store(cassandra_url: str) -> Iterator[CassandraStore]:
    """The shared server's store."""
    found = open_store(cassandra_url)
    assert isinstance(found, CassandraStore)
    yield found
    found.close()


@pytest.fixture
def flow() -> str:
    """A flow that no other test uses."""
    return f"flow-{uuid.uuid4().hex}"


def session_of(store: CassandraStore) -> Session:
    """The driver's session behind a store."""
    return CassandraClient.of_this_process(store.settings)._session


def answers(store: StateStore) -> bool:
    """Whether the store can be asked."""
    try:
        store.home("any")
    except Unavailable:
        return False
    return True


# --- kills and lost answers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mortal() -> Iterator[CassandraServer]:
    """A server with tables that these tests may kill and pause; it runs when a test begins."""
    with CassandraServer() as server:
        made = open_store(server.url)
        assert isinstance(made, WithSchema)
        made.make_schema({"": 1})
        made.close()
        yield server


@pytest.fixture
def wire(cassandra_url: str) -> Iterator[LossyProxy]:
    """A proxy to the shared server that can lose requests and answers."""
    with LossyProxy(int(cassandra_url.rpartition(":")[2].partition("/")[0])) as made:
        yield made


@pytest.fixture
def lossy(wire: LossyProxy, flow: str) -> Iterator[StateStore]:
    """A store that uses the proxy, with short timeouts, connected and warmed up. Only requests about the flow are dropped."""
    made = open_store(f"cassandra://127.0.0.1:{wire.port}/sqe_chain?timeout_s=2")
    warm = f"warm-{uuid.uuid4().hex}"
    retry_until_available(lambda: made.write(warm, "s", 0, None, BORN, [(b"k", b"1")]))
    retry_until_available(lambda: made.set_home(warm, None, replace(CLAIM, number=0), b"plan"))
    retry_until_available(lambda: made.home(warm))
    wire.only = flow.encode()
    yield made
    made.close()


def test_a_lost_answer_is_resolved_by_a_serial_read(lossy: StateStore, wire: LossyProxy, flow: str) -> None:
    lossy.write(flow, "s", 0, None, BORN, [])
    wire.responses_to_drop = 1
    assert lossy.write(flow, "s", 0, BORN, NEXT, [(b"k", b"2")]) == NEXT
    assert wire.responses_to_drop == 0
    wire.responses_to_drop = 1
    sealed = replace(CLAIM, number=0)
    assert lossy.set_home(flow, None, sealed, b"plan") == sealed
    assert wire.responses_to_drop == 0
    assert lossy.read(flow, "s", 0, [b"k"]) == (NEXT, [b"2"], NEXT)
    assert lossy.plan(flow, 0) == b"plan"


def test_a_lost_request_was_not_done_and_may_be_sent_again(
    lossy: StateStore, wire: LossyProxy, flow: str
) -> None:
    lossy.write(flow, "s", 0, None, BORN, [])
    wire.requests_to_drop = 1
    with pytest.raises(Unavailable):
        lossy.write(flow, "s", 0, BORN, NEXT, [(b"k", b"2")])
    assert wire.requests_to_drop == 0
    assert lossy.headers(flow, "s", [0]) == [BORN]
    assert lossy.write(flow, "s", 0, BORN, NEXT, [(b"k", b"2")]) == NEXT
    wire.requests_to_drop = 1
    with pytest.raises(Unavailable):
        lossy.set_home(flow, None, CLAIM)
    assert lossy.home(flow) == (None, 0)
    assert lossy.set_home(flow, None, CLAIM) == CLAIM


def test_an_answer_lost_to_a_step_that_another_run_made_pointless(
    lossy: StateStore, wire: LossyProxy, flow: str
) -> None:
    lossy.write(flow, "s", 0, None, BORN, [])
    other = replace(BORN, epoch=2, run_id="run-b")
    lossy.write(flow, "s", 0, BORN, other, [])
    wire.responses_to_drop = 1
    assert lossy.write(flow, "s", 0, BORN, NEXT, [(b"k", b"2")]) == other
    assert lossy.read(flow, "s", 0, [b"k"]) == (other, [None], other)


@pytest.mark.release
def test_when_all_nodes_are_gone_names_are_looked_up_again(
    mortal: CassandraServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that comes back under the same name may have another address."""
    monkeypatch.setattr(client, "_LOST_S", 0.0)
    store = open_store(mortal.url)
    assert isinstance(store, CassandraStore)
    assert store.set_home("gone", None, CLAIM) == CLAIM
    first = CassandraClient.of_this_process(store.settings)
    mortal.kill()
    assert wait_until(lambda: not answers(store), PATIENCE_S)
    assert first.lost
    with pytest.raises(Unavailable):
        store.home("gone")
    mortal.start()
    assert retry_until_available(lambda: store.home("gone")) == (CLAIM, 0)
    assert CassandraClient.of_this_process(store.settings) is not first
    store.close()


def test_a_server_that_is_away_is_noticed_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        open_store(f"cassandra://127.0.0.1:{own_port()}/sqe_chain?{PATIENT}").check()
    assert time.monotonic() - started < PATIENCE_S / 3
    with pytest.raises(Unavailable, match="no-such-host"):
        open_store("cassandra://no-such-host.invalid/sqe_chain").check()


# --- sizes ---------------------------------------------------------------------------------------------


def test_a_large_state_is_one_conditional_update(
    store: CassandraStore, flow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    compare_and_set = CassandraClient.compare_and_set

    def spy(own: CassandraClient, statements: list[object]) -> bool:
        batches.append(len(statements))
        return compare_and_set(own, statements)  # type: ignore[arg-type]

    monkeypatch.setattr(CassandraClient, "compare_and_set", spy)
    state = os.urandom(1 << 20)
    store.write(flow, "s", 0, None, BORN, [])
    assert store.write(flow, "s", 0, BORN, NEXT, [(b"large", state)]) == NEXT
    assert batches == [2, 1]  # header and anchor; one statement
    assert store.read(flow, "s", 0, [b"large"]) == (NEXT, [state], NEXT)
    late = replace(NEXT, number=2)
    assert store.write(flow, "s", 0, BORN, late, [(b"large", bytes(1 << 20))]) == NEXT
    assert store.read(flow, "s", 0, [b"large"])[1] == [state]


def test_a_state_or_a_plan_that_no_server_takes_names_the_setting(store: CassandraStore, flow: str) -> None:
    store.write(flow, "s", 0, None, BORN, [])
    with pytest.raises(ConfigurationError, match="native_transport_max_message_size"):
        store.write(flow, "s", 0, BORN, NEXT, [(b"k", bytes(20 << 20))])
    with pytest.raises(ConfigurationError, match="max_mutation_size"):
        store.set_home(flow, None, replace(CLAIM, number=0), bytes(20 << 20))
    assert store.headers(flow, "s", [0]) == [BORN]
    assert store.home(flow) == (None, 0)


def test_it_takes_the_sizes_that_it_promises(store: CassandraStore, flow: str) -> None:
    """A state with its view and a long key, and a plan: each to the limit, and not beyond."""
    most, key = store.max_state_bytes, b"k" * store.max_key_bytes
    assert 4 << 20 < most == store.max_plan_bytes < 16 << 20  # by default it depends on the heap
    shown = "v" * 1_000
    state = os.urandom(most - len(key) - len(shown))
    views = Views("json", {key: shown})
    assert store.write(flow, "s", 0, None, BORN, [(key, state)], views) == BORN
    assert store.read(flow, "s", 0, [key])[1] == [state]
    with pytest.raises(ConfigurationError, match=f"at most {most}"):
        store.write(flow, "s", 0, BORN, replace(BORN, number=9), [(key, state + b"!")], views)
    plan, sealed = os.urandom(most), replace(CLAIM, number=0)
    with pytest.raises(ConfigurationError, match=f"at most {most}"):
        store.set_home(flow, None, sealed, plan + b"!")
    assert store.set_home(flow, None, sealed, plan) == sealed
    assert store.plan(flow, 0) == plan


def test_a_plan_of_four_megabytes(store: CassandraStore, flow: str) -> None:
    plan = os.urandom(4 << 20)
    sealed = replace(CLAIM, number=0)
    assert store.set_home(flow, None, sealed, plan) == sealed
    assert store.plan(flow, 0) == plan


def test_a_key_that_no_server_takes_is_refused_before_anything_is_sent(
    store: CassandraStore, flow: str
) -> None:
    with pytest.raises(ConfigurationError, match="65535"):
        store.write(flow, "s", 0, None, BORN, [(bytes(65_536), b"1")])
    with pytest.raises(ConfigurationError, match="65535"):
        store.read(flow, "s", 0, [bytes(65_536)])
    longest = b"k" * 65_535
    assert store.write(flow, "s", 0, None, BORN, [(longest, b"1")]) == BORN
    assert store.read(flow, "s", 0, [longest])[1] == [b"1"]


def test_large_states_are_read_in_small_rounds(store: CassandraStore, flow: str) -> None:
    header: Header | None = None
    for number in range(40):
        after = replace(BORN, number=number)
        store.write(flow, "s", 0, header, after, [(b"%02d" % number, bytes([number]) * 700_000)])
        header = after
    keys = [b"%02d" % number for number in range(40)]
    expected = [bytes([number]) * 700_000 for number in range(40)]
    assert store.read(flow, "s", 0, keys) == (header, expected, header)
    assert dict(store.scan(flow, "s", 0)) == dict(zip(keys, expected, strict=True))


# --- which requests decide -------------------------------------------------------------------------------


class Requests:
    """The requests of a session, in their order; something may be done before one of them is sent."""

    def __init__(self, session: Session) -> None:
        self._session, self.sent = session, list[Any]()
        self.before: Callable[[str], None] = lambda _text: None

    def __enter__(self) -> Self:
        self._session.add_request_init_listener(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._session.remove_request_init_listener(self._note)

    def _note(self, future: Any) -> None:
        self.before(self.text_of(future))
        self.sent.append(future)

    @staticmethod
    def text_of(future: Any) -> str:
        """The statement; of a batch, how many they are."""
        query = future.query
        if isinstance(query, BatchStatement):
            return f"batch of {len(query._statements_and_parameters)}"
        return str(getattr(query, "prepared_statement", query).query_string)


@pytest.mark.parametrize(
    ("query", "level", "serial"),
    [("", "LOCAL_QUORUM", "LOCAL_SERIAL"), ("?serial_consistency=serial", "QUORUM", "SERIAL")],
)
def test_what_decides_is_read_and_written_at_serial_consistency(
    cassandra_url: str, flow: str, query: str, level: str, serial: str
) -> None:
    """Homes, headers and locations decide; states count between two headers that are equal. One node cannot show the difference."""
    store = open_store(cassandra_url + query)
    assert isinstance(store, CassandraStore)
    assert store.max_state_bytes > 0  # what is asked once is asked here
    store.home(flow)
    with Requests(session_of(store)) as requests:
        store.set_home(flow, None, replace(CLAIM, number=0), b"plan")
        store.write(flow, "s", 0, None, BORN, [(b"k", b"1")])
        store.set_locations(flow, Locations(1, 0, {"s": Location(flow, 1, 1, "aggregate", "", None, "")}))
        writes = [one for one in requests.sent if isinstance(one.query, BatchStatement)]
        requests.sent.clear()
        store.home(flow)
        store.headers(flow, "s", [0])
        store.locations(flow)
        deciding = requests.sent.copy()
        requests.sent.clear()
        store.read(flow, "s", 0, [b"k"])
        states = [one for one in requests.sent if "key IN" in requests.text_of(one)]
    store.close()
    levels = ConsistencyLevel.name_to_value
    assert len(writes) == len(deciding) == 3
    assert len(states) == 1
    assert {one.message.consistency_level for one in deciding} == {levels[serial]}
    assert {one.message.consistency_level for one in states + writes} == {levels[level]}
    assert {write.message.serial_consistency_level for write in writes} == {levels[serial]}
    assert {write.query.batch_type for write in writes} == {BatchType.UNLOGGED}, "one partition, one mutation"


@pytest.mark.parametrize("when", ["before the states", "after the states"])
def test_a_write_between_the_reads_of_a_header_is_seen(
    store: CassandraStore, cassandra_url: str, flow: str, when: str
) -> None:
    """So states are never taken for those of another moment."""
    store.write(flow, "s", 0, None, BORN, [(b"k", b"1")])
    other = open_store(f"{cassandra_url}?timeout_s=9")
    asked: list[str] = []

    def written_between(text: str) -> None:
        asked.append(text)
        states = [index for index, known in enumerate(asked) if "key IN" in known]
        if states and len(asked) - states[0] == (1 if when == "before the states" else 2):
            assert other.write(flow, "s", 0, BORN, NEXT, [(b"k", b"2")]) == NEXT

    with Requests(session_of(store)) as requests:
        requests.before = written_between
        found = store.read(flow, "s", 0, [b"k"])
    other.close()
    assert found == (BORN, [b"2" if when == "before the states" else b"1"], NEXT)


# --- the layout, other processes -------------------------------------------------------------------------


def test_the_documented_layout(store: CassandraStore, flow: str) -> None:
    """docs/stores.md names these tables and columns for readers in other languages."""
    store.set_home(flow, None, CLAIM)
    store.set_home(flow, CLAIM, Home(2, "run-b", "{}", 0, "p0"), b"plan")
    store.beat(flow, 2, "run-b")
    store.write(flow, "s", 7, None, Header(2, "run-b", 0, "p0", "p1", b"\xff"), [(b"k", b"state")])
    session = session_of(store)
    home = session.execute("SELECT * FROM sqe_chain.sqe_flows WHERE flow = %s", (flow,))
    assert home.column_names == [
        "flow", "plan_number", "beat", "epoch", "number", "owner", "plan_id", "run_id", "plan",
    ]  # fmt: skip
    assert list(home) == [(flow, 0, 1, 2, 0, "{}", "p0", "run-b", b"plan")]
    states = session.execute(
        "SELECT * FROM sqe_chain.sqe_states WHERE flow = %s AND stage = 's' AND part = 7", (flow,)
    )
    assert states.column_names == [
        "flow", "stage", "part", "key", "begun_id", "cursor", "epoch", "number", "plan_id", "run_id", "shown", "state",
    ]  # fmt: skip
    header = ("p1", b"\xff", 2, 0, "p0", "run-b")
    assert list(states) == [
        (flow, "s", 7, b"", *header, None, None),
        (flow, "s", 7, b"k", *header, None, b"state"),
    ]


def test_the_row_beside_the_states_is_no_state(store: CassandraStore, flow: str) -> None:
    store.write(flow, "s", 0, None, BORN, [])
    assert list(store.scan(flow, "s", 0)) == []
    assert store.read(flow, "s", 0, [b""])[1] == [None]
    store.write(flow, "s", 0, BORN, NEXT, [(b"", b"of the empty key")])
    assert list(store.scan(flow, "s", 0)) == [(b"", b"of the empty key")]
    store.write(flow, "s", 0, NEXT, replace(NEXT, number=2), [(b"", None)])
    assert list(store.scan(flow, "s", 0)) == []
    rows = session_of(store).execute(
        "SELECT key FROM sqe_chain.sqe_states WHERE flow = %s ALLOW FILTERING", (flow,)
    )
    assert list(rows) == [(b"",)]


def test_rows_of_another_program_are_not_taken_for_ours(store: CassandraStore, flow: str) -> None:
    store.home(flow)
    session = session_of(store)
    session.execute(
        "UPDATE sqe_chain.sqe_states SET epoch = 1 WHERE flow = %s AND stage = 's' AND part = 0", (flow,)
    )
    with pytest.raises(StoreInconsistent, match=rf"{flow}/s/0"):
        store.headers(flow, "s", [0])
    session.execute("UPDATE sqe_chain.sqe_flows SET epoch = 1 WHERE flow = %s", (flow,))
    with pytest.raises(StoreInconsistent, match=flow):
        store.home(flow)


def test_a_forked_child_has_connections_of_its_own(store: CassandraStore, flow: str) -> None:
    """Spark's workers are forks of a daemon; they cannot use connections of their parent."""
    store.set_home(flow, None, CLAIM)
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            ok = store.home(flow)[0] == CLAIM and store.beat(flow, 1, "run-a")
        except BaseException:  # noqa: BLE001 - it must not run the parent's tests
            ok = False
        os._exit(0 if ok else 1)
    ended: list[int] = []

    def gone() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        ended.extend([status] if pid else [])
        return bool(pid)

    assert wait_until(gone, PATIENCE_S)
    assert ended == [0]
    assert store.home(flow) == (CLAIM, 1)
