"""Goal: a deployment sees, checks and registers the schemas of a flow's outputs before the service starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sqe_chain.cli.commands import application
from tests.support.schema_registry import TestRegistry, serving

MODULE = """
from dataclasses import dataclass

from sqe_chain.ext.registry import Avro
from sqe_chain.flow import Flow


@dataclass
class Order:
    shop: str
    amount: float{default}


flow = Flow("shops")
orders = flow.source("orders", Avro(Order), raw=True)
orders.to("copies", partitions=1, codec=Avro(Order, namespace="shops"), carrier="headers")
none = Flow("none")
none.source("orders", Avro(Order), raw=True).map(lambda order: order.shop).to("names", partitions=1)
"""


@pytest.fixture
def registry() -> Iterator[TestRegistry]:
    with serving() as served:
        yield served


def called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str, default: str = " = 0.0"
) -> Result:
    name = f"shops_{abs(hash((str(tmp_path), default))):x}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(default=default))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    given = [argument.replace("MODULE", name) for argument in arguments]
    return CliRunner().invoke(application("schemas"), ["schemas", *given])


def test_schemas_are_shown_checked_and_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: TestRegistry
) -> None:
    where = ("MODULE:flow", "--registry", registry.address)
    before = called(tmp_path, monkeypatch, "show", *where)
    assert (before.exit_code, "not registered" in before.stdout) == (1, True)
    check = called(tmp_path, monkeypatch, "check", *where)
    assert (check.exit_code, "refused" in check.stdout) == (0, False)
    assert not registry.schemas
    done = called(tmp_path, monkeypatch, "register", *where, "--json")
    assert (done.exit_code, json.loads(done.stdout)["id"], len(registry.schemas)) == (0, 1, 1)
    shown = called(tmp_path, monkeypatch, "show", *where, "--json")
    row = json.loads(shown.stdout)
    assert (shown.exit_code, row["topic"], row["subject"], row["id"]) == (0, "copies", "copies-value", 1)
    assert json.loads(row["schema"])["namespace"] == "shops"


def test_a_schema_that_its_subject_would_not_take_ends_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: TestRegistry
) -> None:
    """A new field has no default, so readers of old records could not use it."""
    old = {
        "type": "record",
        "name": "Order",
        "namespace": "shops",
        "fields": [{"name": "shop", "type": "string"}],
    }
    registry.register("copies-value", old)
    monkeypatch.setenv("SQE_CHAIN_REGISTRY", registry.address)
    check = called(tmp_path, monkeypatch, "check", "MODULE:flow", default="")
    assert check.exit_code == 1
    assert "its rule of compatibility does not allow" in " ".join(check.stdout.split())
    register = called(tmp_path, monkeypatch, "register", "MODULE:flow", default="")
    assert register.exit_code == 2
    assert "incompatible" in register.stderr
    assert called(tmp_path, monkeypatch, "check", "MODULE:flow").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("show", "MODULE:flow"), "Give --registry"),
        (("show", "MODULE:flow", "--registry", "http://one"), "Expected registry://HOST:PORT"),
        (("show", "MODULE:none", "--registry", "memory://x"), "publishes nothing with a schema"),
        (
            ("check", "MODULE:flow", "--registry", "registry://127.0.0.1:1"),
            "schema registry http://127.0.0.1:1",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: str
) -> None:
    monkeypatch.delenv("SQE_CHAIN_REGISTRY", raising=False)
    refused = called(tmp_path, monkeypatch, *arguments)
    assert refused.exit_code == (5 if "127.0.0.1:1" in expected else 2)
    assert expected in " ".join(refused.stderr.split())
