"""Goal: no text that a person or a log sees has a password, however it is written into an address, and whatever reads that."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest
import typer

from sqe_chain.adapters import SCHEMES, open_store
from sqe_chain.cli import console
from sqe_chain.errors import ConfigurationError
from sqe_chain.errors.safe_text import without_secrets
from sqe_chain.ext.tables import open_table
from sqe_chain.ext.tables.opening import storage_at
from sqe_chain.flow import Flow
from sqe_chain.runtime.neighbours import check_stores

SECRET = "s3cr3t"  # noqa: S105 - of nobody
BETWEEN = [
    "",
    "12/",
    "12?",
    "12#",
    "12@",
    "12?ca_file=",
    "12?max_rows=",
    "12?username=",
    "x:y?",
    "12%23",
    "[",
    "12/3?",
]
ENDS = ["localhost:1/0", "localhost:x/0", "[::1", "a,b/ks", ""]
SERVERS = sorted(SCHEMES.keys() - {"memory", "sqlite"})


def declared(address: object) -> object:
    flow = Flow("f", state_partitions=1)
    values = flow.source("t", dict, raw=True)
    at: Any = address
    values.ingest("x", partition_key="k", row_key="at", columns={"k": "string", "at": "int64"}, at=at)
    return flow, flow.nodes, flow.to_text()


WAYS: dict[str, Callable[[str], object]] = {
    "a store": open_store,
    "a store of another scheme": lambda address: open_store(f"x{address}"),
    "a table": storage_at,
    "a table, opened": lambda address: open_table(PurePosixPath(address)),
    "a declaration": declared,
    "a declaration with a path": lambda address: declared(PurePosixPath(address)),
    "a look at the server": lambda address: check_stores([address]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scheme", SERVERS)
def test_no_way_of_reading_an_address_shows_its_password(scheme: str, way: str) -> None:
    for between, end in itertools.product(BETWEEN, ENDS):
        address = f"{scheme}://ann:{between}{SECRET}@{end}"
        if way == "a look at the server" and between != "":
            continue
        try:
            shown = repr(WAYS[way](address))
        except Exception as error:  # noqa: BLE001 - whatever it raises is shown to somebody
            shown = f"{error!r} {error.__cause__!r}"
        assert SECRET not in shown, address


def test_options_of_a_table_are_named_without_their_values() -> None:
    flow = Flow("f", state_partitions=1)
    options: Any = {"AWS_SECRET_ACCESS_KEY": SECRET, "timeout": 5}
    with pytest.raises(Exception, match="AWS_SECRET_ACCESS_KEY") as raised:
        flow.source("t", dict, raw=True).ingest(
            "x", partition_key="k", row_key="k", columns={"k": "string"}, options=options
        )
    assert SECRET not in str(raised.value)


def test_the_text_of_a_driver_is_shown_without_passwords(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (True, False):
        with pytest.raises(typer.Exit), console.report_errors(traceback=True, as_json=as_json):
            raise ConfigurationError(
                f"s3://key:{SECRET}@bucket/x: no answer; redis://:{SECRET}@h?sentinel_password={SECRET}"
            )
    assert SECRET not in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "redis://host:6379 robot[0]@5",
        "sqlite:///a@b.db",
        "abfss://container@account/x",
        "cassandra://h/ks?password_file=/a",
    ],
)
def test_what_has_no_secret_stays_as_it_is(text: str) -> None:
    assert without_secrets(text) == text
