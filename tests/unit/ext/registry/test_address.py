"""Goal: an address is read once, where the service starts; what it means is clear, and no secret is shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.registry.address import RegistryAddress, parse_registry


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("registry://one", "http://one:8081"),
        ("registry://one:80/apis/ccompat/v7/", "http://one:80/apis/ccompat/v7"),
        ("registries://one,two:444", "https://one:8081,https://two:444"),
        ("registry://[::1]:9", "http://[::1]:9"),
        ("memory://tests", "memory://tests"),
    ],
)
def test_addresses_become_urls(text: str, url: str) -> None:
    assert parse_registry(text).url == url


def test_the_login_is_sent_to_workers_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD_OF_TESTS", "pa:ss")
    address = parse_registry("registry://one?user=ann&password_env=PASSWORD_OF_TESTS&timeout_s=2")
    monkeypatch.delenv("PASSWORD_OF_TESTS")
    there: RegistryAddress = pickle.loads(pickle.dumps(address))  # noqa: S301 - written above
    assert (there.username, there.password, there.timeout_s) == ("ann", "pa:ss", 2.0)
    assert "pa:ss" not in repr(there)


def test_a_token_is_a_login_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_TESTS", "t0k")
    assert parse_registry("registries://one?token_env=TOKEN_OF_TESTS").token == "t0k"  # noqa: S105 - of this test


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://one:8081", "Expected registry://HOST:PORT, or registries://HOST:PORT with TLS"),
        ("one:8081", "Expected registry://HOST:PORT"),
        ("registry://", "no host"),
        ("registry://one?usr=x", "no option usr"),
        ("registry://one?password_env=NO_SUCH_VARIABLE", "there is no environment variable NO_SUCH_VARIABLE"),
        ("registry://ann:x@one?token_env=PATH", "a user and a token"),
        ("registry://one?password_file=/dev/null&user=", ""),
        ("registry://one?ca_file=/no/such/file", "does not exist"),
    ],
)
def test_what_cannot_work_is_refused_by_name(text: str, expected: str) -> None:
    if not expected:
        assert parse_registry(text).password == ""
        return
    with pytest.raises(ConfigurationError, match=expected):
        parse_registry(text)


def test_a_password_without_a_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("x")
    with pytest.raises(ConfigurationError, match="a password without a user"):
        parse_registry(f"registry://one?password_file={file}")
