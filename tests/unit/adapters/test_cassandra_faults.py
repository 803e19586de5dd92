"""Every exception class of cassandra-driver has a meaning, decided on purpose."""

from __future__ import annotations

import inspect
import ssl

import cassandra
import pytest
from cassandra import cluster, connection, protocol

from sqe_chain.adapters.cassandra.faults import MEANINGS, error_for, meaning_of
from sqe_chain.adapters.store_rules import Meaning
from sqe_chain.errors import ConfigurationError, Unavailable

CLASSES = {
    found
    for module in (cassandra, cluster, connection, protocol)
    for _, found in inspect.getmembers(module, inspect.isclass)
    if issubclass(found, BaseException) and found.__module__ == module.__name__
}


@pytest.mark.parametrize("found", sorted(CLASSES, key=str))
def test_every_exception_class_has_a_meaning(found: type[BaseException]) -> None:
    """Fails when the driver gains a class: decide what it means, and add it to MEANINGS."""
    assert found in MEANINGS


def test_every_class_with_a_meaning_exists() -> None:
    assert set(MEANINGS) <= CLASSES


def no_host(*errors: Exception) -> cluster.NoHostAvailable:
    """What the driver raises when no node could be asked."""
    return cluster.NoHostAvailable("no host", {f"host{number}": error for number, error in enumerate(errors)})


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
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
    ],
)
def test_what_some_errors_mean(error: BaseException, meaning: Meaning) -> None:
    assert meaning_of(error) is meaning


@pytest.mark.parametrize(
    "said", ["keyspace k does not exist", "Undefined column name data in table k.sqe_chunks"]
)
def test_what_was_dropped_or_altered_is_to_be_restored(said: str) -> None:
    told = error_for(cassandra.InvalidRequest(said), "a")
    assert isinstance(told, ConfigurationError)
    assert said in str(told)
    assert "restore it from a snapshot" in str(told)


def test_our_errors_name_the_cluster_and_the_drivers_text() -> None:
    error = error_for(
        cassandra.WriteTimeout("late", write_type=cassandra.WriteType.CAS), "cassandra://host:1/ks"
    )
    assert isinstance(error, Unavailable)
    assert "cassandra://host:1/ks: WriteTimeout: " in str(error)
    too_large = error_for(cassandra.InvalidRequest("CQL Message of size 9 exceeds allowed maximum of 8"), "a")
    assert isinstance(too_large, ConfigurationError)
    assert "native_transport_max_message_size" in str(too_large)
    assert error_for(protocol.SyntaxException(0x2000, "line 1", None), "a") is None
