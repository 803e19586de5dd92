"""Every exception class of the drivers of stores has a meaning, decided on purpose."""

from __future__ import annotations

import inspect
import ssl
from types import ModuleType

import cassandra
import psycopg
import pytest
from cassandra import cluster, connection, protocol
from psycopg import errors as codes
from redis import exceptions

from sqe_chain.adapters.cassandra import faults as cassandra_faults
from sqe_chain.adapters.postgres import faults as postgres_faults
from sqe_chain.adapters.redis import connections as redis_faults
from sqe_chain.adapters.store_rules import Meaning
from sqe_chain.errors import ConfigurationError, StoreInconsistent, Unavailable

CASSANDRA = (cassandra, cluster, connection, protocol)


def classes_of(*modules: ModuleType) -> set[type[BaseException]]:
    return {
        found
        for module in modules
        for _, found in inspect.getmembers(module, inspect.isclass)
        if issubclass(found, BaseException) and found.__module__ == module.__name__
    }


@pytest.mark.parametrize(
    ("meanings", "modules"),
    [(redis_faults.MEANINGS, (exceptions,)), (cassandra_faults.MEANINGS, CASSANDRA)],
    ids=["redis", "cassandra"],
)
def test_every_exception_class_has_a_meaning_and_none_is_gone(
    meanings: dict[type[BaseException], Meaning], modules: tuple[ModuleType, ...]
) -> None:
    """Fails when a driver gains a class: decide what it means, and add it to MEANINGS."""
    assert set(meanings) == classes_of(*modules)


def no_host(*errors: Exception) -> cluster.NoHostAvailable:
    """What the driver raises when no node could be asked."""
    return cluster.NoHostAvailable("no host", {f"host{number}": error for number, error in enumerate(errors)})


class Newer(exceptions.AuthenticationError):
    """A class that is unknown counts as its parent."""


REDIS_ERRORS = [
    (exceptions.ConnectionError("refused"), Meaning.TRY_AGAIN),
    (exceptions.TimeoutError("late"), Meaning.TRY_AGAIN),
    (exceptions.BusyLoadingError("loading"), Meaning.TRY_AGAIN),
    (exceptions.ReadOnlyError("replica"), Meaning.TRY_AGAIN),
    (exceptions.OutOfMemoryError("full"), Meaning.TRY_AGAIN),
    (exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left"), Meaning.TRY_AGAIN),
    (exceptions.ResponseError("BUSY Redis is busy running a script."), Meaning.TRY_AGAIN),
    (exceptions.ResponseError("WRONGTYPE Operation against a key"), Meaning.SETTINGS),
    (exceptions.ResponseError("unknown command 'EVALSHA'"), Meaning.SETTINGS),
    (exceptions.AuthenticationError("invalid username-password pair"), Meaning.SETTINGS),
    (exceptions.NoPermissionError("no permissions"), Meaning.SETTINGS),
    (exceptions.ConnectionError("SSL: CERTIFICATE_VERIFY_FAILED"), Meaning.SETTINGS),
    (Newer("x"), Meaning.SETTINGS),
    (exceptions.DataError("Invalid input"), Meaning.PROGRAM),
    (ValueError("ours"), Meaning.PROGRAM),
]
CASSANDRA_ERRORS = [
    (cassandra.WriteTimeout("late", write_type=cassandra.WriteType.CAS), Meaning.TRY_AGAIN),
    (cassandra.ReadTimeout("late"), Meaning.TRY_AGAIN),
    (cassandra.Unavailable("too few"), Meaning.TRY_AGAIN),
    (cassandra.OperationTimedOut(), Meaning.TRY_AGAIN),
    (connection.ConnectionShutdown("gone"), Meaning.TRY_AGAIN),
    (OSError(111, "refused"), Meaning.TRY_AGAIN),
    (no_host(), Meaning.TRY_AGAIN),
    (no_host(OSError(111, "refused"), cassandra.OperationTimedOut()), Meaning.TRY_AGAIN),
    (no_host(OSError(111, "refused"), cassandra.AuthenticationFailed("no")), Meaning.SETTINGS),
    (no_host(ssl.SSLCertVerificationError("unknown authority")), Meaning.SETTINGS),
    (no_host(connection.ProtocolVersionUnsupported("host", 5)), Meaning.SETTINGS),
    (cassandra.InvalidRequest("table does not exist"), Meaning.SETTINGS),
    (cassandra.Unauthorized("no MODIFY permission"), Meaning.SETTINGS),
    (protocol.SyntaxException(0x2000, "line 1", None), Meaning.PROGRAM),
    (ValueError("ours"), Meaning.PROGRAM),
]


@pytest.mark.parametrize(("error", "meaning"), REDIS_ERRORS)
def test_what_errors_of_redis_mean(error: BaseException, meaning: Meaning) -> None:
    assert redis_faults.meaning_of(error) is meaning


@pytest.mark.parametrize(("error", "meaning"), CASSANDRA_ERRORS)
def test_what_errors_of_cassandra_mean(error: BaseException, meaning: Meaning) -> None:
    assert cassandra_faults.meaning_of(error) is meaning


@pytest.mark.parametrize(
    "said", ["keyspace k does not exist", "Undefined column name data in table k.sqe_chunks"]
)
def test_what_was_dropped_or_altered_is_to_be_restored(said: str) -> None:
    told = cassandra_faults.error_for(cassandra.InvalidRequest(said), "a")
    assert isinstance(told, ConfigurationError)
    assert said in str(told)
    assert "restore it from a snapshot" in str(told)


def test_our_errors_name_the_cluster_and_the_drivers_text() -> None:
    error = cassandra_faults.error_for(
        cassandra.WriteTimeout("late", write_type=cassandra.WriteType.CAS), "cassandra://host:1/ks"
    )
    assert isinstance(error, Unavailable)
    assert "cassandra://host:1/ks: WriteTimeout: " in str(error)
    too_large = cassandra_faults.error_for(
        cassandra.InvalidRequest("CQL Message of size 9 exceeds allowed maximum of 8"), "a"
    )
    assert isinstance(too_large, ConfigurationError)
    assert "native_transport_max_message_size" in str(too_large)
    assert cassandra_faults.error_for(protocol.SyntaxException(0x2000, "line 1", None), "a") is None


def test_our_errors_name_the_server_and_the_drivers_text() -> None:
    error = redis_faults.error_for(exceptions.TimeoutError("late"), "redis://host:1/0")
    assert isinstance(error, Unavailable)
    assert str(error) == "redis://host:1/0: TimeoutError: late"
    assert isinstance(redis_faults.error_for(exceptions.MovedError("1 host:2"), "a"), ConfigurationError)
    assert redis_faults.error_for(exceptions.DataError("x"), "a") is None


POSTGRES_ERRORS = [
    (psycopg.OperationalError("connection timeout expired"), Meaning.TRY_AGAIN),
    (psycopg.OperationalError("server closed the connection unexpectedly"), Meaning.TRY_AGAIN),
    (psycopg.OperationalError("session is read-only"), Meaning.TRY_AGAIN),
    (psycopg.OperationalError('FATAL:  password authentication failed for user "u"'), Meaning.SETTINGS),
    (psycopg.OperationalError('FATAL:  database "d" does not exist'), Meaning.SETTINGS),
    (psycopg.OperationalError("SSL error: certificate verify failed"), Meaning.SETTINGS),
    (codes.AdminShutdown("terminating connection"), Meaning.TRY_AGAIN),
    (codes.CannotConnectNow("starting up"), Meaning.TRY_AGAIN),
    (codes.TooManyConnections("too many clients"), Meaning.TRY_AGAIN),
    (codes.DiskFull("No space left on device"), Meaning.TRY_AGAIN),
    (codes.DeadlockDetected("deadlock"), Meaning.TRY_AGAIN),
    (codes.SerializationFailure("concurrent update"), Meaning.TRY_AGAIN),
    (codes.QueryCanceled("statement timeout"), Meaning.TRY_AGAIN),
    (codes.ReadOnlySqlTransaction("read-only transaction"), Meaning.TRY_AGAIN),
    (codes.InsufficientPrivilege("permission denied"), Meaning.SETTINGS),
    (codes.UndefinedTable("sqe_homes"), Meaning.SETTINGS),
    (codes.ProgramLimitExceeded("index row size"), Meaning.SETTINGS),
    (codes.SyntaxError("near"), Meaning.PROGRAM),
    (codes.UniqueViolation("duplicate"), Meaning.PROGRAM),
    (psycopg.DataError("cannot be sent"), Meaning.PROGRAM),
    (psycopg.InterfaceError("the connection is closed"), Meaning.PROGRAM),
    (ValueError("ours"), Meaning.PROGRAM),
]


@pytest.mark.parametrize(("error", "meaning"), POSTGRES_ERRORS)
def test_what_errors_of_postgres_mean(error: BaseException, meaning: Meaning) -> None:
    assert postgres_faults.meaning_of(error) is meaning


def test_every_class_of_psycopg_has_a_meaning_and_none_is_gone() -> None:
    """Those of single codes are derived from these, and decided by their code."""
    found = {error for _, error in inspect.getmembers(psycopg, inspect.isclass)}
    assert set(postgres_faults.MEANINGS) == {error for error in found if issubclass(error, BaseException)}


def test_our_errors_name_the_database_and_what_to_do() -> None:
    replica = postgres_faults.error_for(codes.ReadOnlySqlTransaction("no"), "postgres://h:1/d")
    assert isinstance(replica, Unavailable)
    assert str(replica).startswith("postgres://h:1/d: ReadOnlySqlTransaction: no; the server is a replica")
    dropped = postgres_faults.error_for(codes.UndefinedTable("sqe_homes"), "a")
    assert isinstance(dropped, ConfigurationError)
    assert "sqe-chain store init" in str(dropped)
    assert isinstance(postgres_faults.error_for(codes.DataCorrupted("page"), "a"), StoreInconsistent)
    assert postgres_faults.error_for(codes.SyntaxError("near"), "a") is None
