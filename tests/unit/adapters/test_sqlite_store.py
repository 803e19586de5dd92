"""What is particular to SQLite: its file, its locks, its errors, its settings."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sqe_chain.adapters import open_store
from sqe_chain.adapters.sqlite import SqliteStore, file
from sqe_chain.adapters.sqlite.file import SqliteFile, error_for
from sqe_chain.errors import ConfigurationError, StoreInconsistent, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.ports import Header, Home, Location, Locations, Views
from sqe_chain.testing import Rehearsal

if TYPE_CHECKING:
    from collections.abc import Iterator

BORN = Header(1, "run-a", 0, "p0")
NEXT = Header(1, "run-a", 1, "p1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "states.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(str(path), timeout_s=0.2)
    made.write("f", "s", 0, None, BORN, [(b"k", b"0")])
    yield made
    made.close()


def test_its_settings_survive_a_power_failure(store: SqliteStore) -> None:
    assert store.check() == []
    with SqliteFile.of_this_process(store.path, store.timeout_s).transaction() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_the_documented_schema(store: SqliteStore, path: Path) -> None:
    """docs/stores.md names these tables and columns for readers in other languages."""
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT stage, part, key, state FROM states").fetchall() == [
            ("s", 0, b"k", b"0")
        ]
        assert other.execute(
            "SELECT epoch, run_id, number, plan_id, begun_id, cursor FROM headers"
        ).fetchall() == [(1, "run-a", 0, "p0", "", None)]
        assert other.execute("SELECT * FROM homes").fetchall() == []
        assert other.execute("SELECT flow, number, plan FROM plans").fetchall() == []
        assert other.execute("PRAGMA user_version").fetchone() == (1,)
    other.close()


def test_another_processs_lock_is_waited_for_and_then_reported(store: SqliteStore, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="SQLITE_BUSY"):
        store.write("f", "s", 0, BORN, NEXT, [(b"k", b"1")])
    assert store.read("f", "s", 0, [b"k"]) == (BORN, [b"0"], BORN)
    other.execute("ROLLBACK")
    other.close()
    assert store.write("f", "s", 0, BORN, NEXT, [(b"k", b"1")]) == NEXT


def test_a_full_disk_refuses_the_whole_step(store: SqliteStore) -> None:
    with SqliteFile.of_this_process(store.path, store.timeout_s).transaction() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Unavailable, match="full"):
        store.write("f", "s", 0, BORN, NEXT, [(b"a", b"1"), (b"k", b"x" * 100_000)])
    assert store.read("f", "s", 0, [b"a", b"k"]) == (BORN, [None, b"0"], BORN)


def test_an_error_in_the_middle_of_a_step_undoes_it(store: SqliteStore) -> None:
    rows = [(b"a", b"1"), (b"k", "text where bytes belong")]
    with pytest.raises(sqlite3.IntegrityError):
        store.write("f", "s", 0, BORN, NEXT, rows)  # type: ignore[arg-type]  # on purpose
    assert store.read("f", "s", 0, [b"a", b"k"]) == (BORN, [None, b"0"], BORN)


def test_a_file_that_is_no_database_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("something else, and long enough to be looked at\n" * 100)
    before = file.read_bytes()
    with pytest.raises(ConfigurationError, match="not a database"):
        SqliteStore(str(file)).check()
    assert file.read_bytes() == before


def test_another_programs_database_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    other = sqlite3.connect(file)
    other.execute("CREATE TABLE homes (street TEXT)")
    other.close()
    before = file.read_bytes()
    with pytest.raises(ConfigurationError, match="another program"):
        SqliteStore(str(file)).check()
    assert file.read_bytes() == before


def test_a_newer_schema_is_refused(store: SqliteStore, path: Path) -> None:
    store.close()
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 2")
    other.close()
    with pytest.raises(ConfigurationError, match="schema 2"):
        store.check()


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_replaced_or_deleted_while_it_is_open_is_noticed(
    store: SqliteStore, path: Path, *, replaced: bool
) -> None:
    """SQLite would go on writing into a file that has no name any more, and lose everything at the end."""
    path.rename(path.with_suffix(".old"))
    if replaced:
        path.write_bytes(b"")
    with pytest.raises(StoreInconsistent, match="deleted or replaced"):
        store.write("f", "s", 0, BORN, NEXT, [])


def test_a_damaged_file_is_named(store: SqliteStore, path: Path) -> None:
    with SqliteFile.of_this_process(store.path, store.timeout_s).transaction() as connection:
        names = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'states'").fetchone()
    store.close()
    with path.open("r+b") as file:
        file.seek((names[0] - 1) * 4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(StoreInconsistent, match="damaged"):
        store.read("f", "s", 0, [b"k"])


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_BUSY_SNAPSHOT, Unavailable),
        (sqlite3.SQLITE_LOCKED, Unavailable),
        (sqlite3.SQLITE_FULL, Unavailable),
        (sqlite3.SQLITE_IOERR_FSYNC, Unavailable),
        (sqlite3.SQLITE_NOTADB, ConfigurationError),
        (sqlite3.SQLITE_READONLY_DBMOVED, ConfigurationError),
        (sqlite3.SQLITE_CANTOPEN_ISDIR, ConfigurationError),
        (sqlite3.SQLITE_CORRUPT_INDEX, StoreInconsistent),
        (sqlite3.SQLITE_CONSTRAINT_NOTNULL, type(None)),
        (sqlite3.SQLITE_ERROR, type(None)),
    ],
)
def test_what_extended_result_codes_mean(code: int, kind: type) -> None:
    error = sqlite3.OperationalError("text")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "NAME"
    assert isinstance(error_for(error, "path"), kind)


def test_many_processes_may_open_a_new_file_at_once(path: Path) -> None:
    program = (
        "import sys; from sqe_chain.adapters.sqlite import SqliteStore; SqliteStore(sys.argv[1]).check()"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(6)]
    assert [process.wait(timeout=30) for process in processes] == [0] * 6


class Overtaken:
    """A connection while another process makes the tables, between two questions."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self._path = str(path)
        self._overtaken = False

    def execute(self, statement: str) -> sqlite3.Cursor:
        if "application_id" in statement and not self._overtaken:
            self._overtaken = True
            with contextlib.suppress(Unavailable):
                SqliteStore(self._path, timeout_s=0.1).check()
        return self.connection.execute(statement)


def test_a_file_is_looked_at_in_one_moment(path: Path) -> None:
    overtaken = Overtaken(path)
    with contextlib.closing(overtaken.connection):
        file._prepare(overtaken, str(path), 0.2)  # type: ignore[arg-type]
    SqliteFile.forget(str(path), 0.1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_opens_a_connection_of_its_own(store: SqliteStore) -> None:
    here = SqliteFile.of_this_process(store.path, store.timeout_s)
    child = os.fork()
    if child == 0:
        try:
            own = SqliteFile.of_this_process(store.path, store.timeout_s) is not here
            written = store.write("f", "s", 0, BORN, NEXT, [(b"k", b"1")]) == NEXT
            store.close()
        finally:
            os._exit(0 if own and written else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.read("f", "s", 0, [b"k"]) == (NEXT, [b"1"], NEXT)


def test_it_takes_the_sizes_that_it_promises(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a library that was built for small blobs: the real one takes a gigabyte."""
    connect = sqlite3.connect

    def connect_small(*where: Any, **how: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*where, **how)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_small)
    store.close()
    most = store.max_state_bytes
    assert (store.max_key_bytes, most, store.max_plan_bytes) == (90_000, 90_000, 90_000)
    rows = [(b"k", bytes(most - 1 - 1_000))]
    assert store.write("f", "s", 0, BORN, NEXT, rows, Views("json", {b"k": "v" * 1_000})) == NEXT
    assert store.write("f", "s", 0, NEXT, BORN, [(bytes(most), b"")]) == BORN
    for too_large in ([(b"k", bytes(most))], [(bytes(most + 1), None)]):
        with pytest.raises(ConfigurationError, match="at most 90000"):
            store.write("f", "s", 0, BORN, NEXT, too_large)
    home = Home(1, "run-a", "", 0, "p0")
    with pytest.raises(ConfigurationError, match=r"90001 bytes\. Expected at most 90000"):
        store.set_home("g", None, home, bytes(most + 1))
    assert store.set_home("g", None, home, bytes(most)) == home


def rebuilt_counts(url: str, rebuilds: int) -> None:
    """A flow that counts under two names, rebuilt so often."""

    def add(total: dict[str, int], number: int) -> None:
        total["sum"] = total.get("sum", 0) + number

    flow = Flow("counts", state_partitions=4)
    source = flow.source("numbers", int, raw=True)
    source.aggregate("per-key", state=dict, fold=add, view="json", buckets=2)
    source.aggregate("other", state=dict, fold=add)
    service = Rehearsal(flow, store=open_store(url))
    for number in range(6):
        service.feed("numbers", number, key=f"key-{number % 3}", partition=0)
    service.run_until_caught_up()
    for _ in range(rebuilds):
        service.rebuild()


@pytest.mark.parametrize("rebuilds", [0, 2])
def test_plain_sql_finds_states_under_permanent_names(tmp_path: Path, rebuilds: int) -> None:
    rebuilt_counts(f"sqlite://{tmp_path}/states.db", rebuilds)
    with closing(sqlite3.connect(f"file:{tmp_path}/states.db?mode=ro", uri=True)) as reader:
        select = (
            "SELECT CAST(key AS TEXT), json_extract(CAST(state AS TEXT), '$.sum'), json_extract(shown, '$.sum')"
            " FROM results WHERE flow = 'counts' AND stage = ?"
        )
        for stage in ("per-key", "other"):
            shown = stage == "per-key"
            assert sorted(reader.execute(select, (stage,))) == [
                (f"key-{number}", 2 * number + 3, 2 * number + 3 if shown else None) for number in range(3)
            ]
        (one,) = reader.execute(f"{select} AND key = CAST('key-1' AS BLOB)", ("per-key",))
        assert one == ("key-1", 5, 5)


def test_a_single_state_is_found_by_its_key(tmp_path: Path) -> None:
    """Not by walking over all states of the stage."""
    rebuilt_counts(f"sqlite://{tmp_path}/states.db", 1)
    with closing(sqlite3.connect(f"{tmp_path}/states.db")) as reader:
        steps = reader.execute(
            "EXPLAIN QUERY PLAN SELECT state FROM results WHERE flow = 'f' AND stage = 's' AND key = x'61'"
        )
        plan = [step[3] for step in steps]
    assert [text.partition("(")[2] for text in plan] == [
        *("flow=? AND stage=?)", "flow=? AND stage=?)", "flow=? AND stage=? AND part=? AND key=?)"),
    ]


def test_a_file_of_an_older_version_is_taken_over_and_stays_readable_to_it(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/states.db"
    rebuilt_counts(url, 0)
    store = open_store(url)
    with closing(sqlite3.connect(f"{tmp_path}/states.db", isolation_level=None)) as older:
        older.execute("DROP VIEW results")
        older.execute("DROP TABLE locations")
        assert store.locations("counts") is None
        found = Locations(9, 1, {"per-key": Location("counts", 4, 2, "aggregate")})
        assert store.forget_locations("counts", found) is None
        assert store.set_locations("counts", found) == store.locations("counts") == found
        assert older.execute("PRAGMA user_version").fetchone() == (1,)
        assert older.execute("SELECT count(*) FROM results").fetchone() == (3,)
    store.close()


def test_a_new_file_that_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    # SQLite's own waiting does not cover the change to write-ahead logging.
    path = tmp_path / "new.db"
    maker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    maker.execute("BEGIN IMMEDIATE")
    done = threading.Timer(0.3, maker.execute, ["COMMIT"])
    done.start()
    try:
        with closing(SqliteStore(str(path), timeout_s=10)) as opened:
            assert opened.home("flow") == (None, 0)
    finally:
        done.join()
        maker.close()


# --- attempts of the doctor ------------------------------------------------------------------------------


def content_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [*connection.iterdump()]


def test_an_attempt_to_write_leaves_nothing(store: SqliteStore, path: Path) -> None:
    before = content_of(path)
    assert store.try_writes("f", [("s", 0)]) == []
    assert content_of(path) == before


def test_an_attempt_creates_no_file(path: Path) -> None:
    assert SqliteStore(str(path)).try_writes("f", []) == []
    assert not path.exists()


def test_an_attempt_finds_a_file_that_another_program_has_locked(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            store.try_writes("f", [])
        other.execute("ROLLBACK")
    assert store.try_writes("f", []) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("what", ["directory", "file"])
def test_an_attempt_finds_a_right_that_is_missing(what: str) -> None:
    """In a process of another user, who may read everything."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "states.db")
        if what == "file":
            made = SqliteStore(str(path))
            made.write("f", "s", 0, None, BORN, [(b"k", b"0")])
            made.close()
        Path(directory).chmod(0o777 if what == "file" else 0o755)
        child = os.fork()
        if child == 0:
            os.setgid(65_534)
            os.setuid(65_534)
            try:
                SqliteStore(str(path), timeout_s=0.2).try_writes("f", [])
            except ConfigurationError:
                os._exit(2)
            except BaseException:  # noqa: BLE001 - whatever it is, the child ends here
                os._exit(3)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
