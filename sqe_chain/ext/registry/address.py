"""Addresses of schema registries: parsed where the service starts, and sent to its workers with their login."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sqe_chain.adapters.address import Address, host_port_text, server_options
from sqe_chain.errors import ConfigurationError

_PORT: Final = 8081
SCHEMES: Final = ("registry", "registries", "memory")


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """Where a schema registry is, and how to log in.

    Attributes:
        url: of its API, without a login: ``http://host:8081``; for one in memory ``memory://name``.
        username: empty for none.
        password: empty for none; never shown.
        token: of a bearer login, instead of both; never shown.
        ca_file: certificates to trust; empty for the usual ones.
        cert_file: the client's own certificate; empty for none.
        key_file: its key.
        timeout_s: longest wait for an answer, in seconds.
    """

    url: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    timeout_s: float = 10.0


def parse_registry(text: str) -> RegistryAddress:
    """Read the address of a schema registry.

    >>> parse_registry("registry://localhost/apis/ccompat/v7").url
    'http://localhost:8081/apis/ccompat/v7'
    >>> parse_registry("registries://one.example,two.example:443?timeout_s=5").url
    'https://one.example:8081,https://two.example:443'

    Args:
        text: ``registry://host[:port][,host[:port]…][/path]``, ``registries://`` with TLS, or ``memory://name`` for tests. Options:
            ``user``, ``password_env`` or ``password_file``; ``token_env`` instead; ``ca_file``, ``cert_file``, ``key_file``,
            ``timeout_s``.

    Raises:
        ConfigurationError: it is no such address, or a secret or file is missing.
    """
    address = Address.parse(text, {})
    if address.scheme not in SCHEMES:
        raise ConfigurationError(
            f"schema registry: an address of kind {address.scheme or 'unknown'}. Expected registry://HOST:PORT, or registries://HOST:PORT "
            "with TLS. Give that, also for a registry whose documentation shows http:// or https://"
        )
    if address.scheme == "memory":
        address.finish()
        return RegistryAddress(f"memory://{address.location}")
    hosts = address.hosts(_PORT)
    if not hosts:
        raise ConfigurationError("schema registry: no host. Expected registry://HOST:PORT. Name its host")
    begin = "https" if address.scheme == "registries" else "http"
    path = address.path.rstrip("/")
    user = address.text("user")
    options = server_options(address)
    token = _token(address)
    options.pop("connect_timeout_s")
    options["username"] = user or options["username"]
    if options["username"] and token:
        raise ConfigurationError("schema registry: a user and a token. Expected one login. Give one of them")
    if options["password"] and not options["username"]:
        raise ConfigurationError("schema registry: a password without a user. Expected user=NAME. Give it")
    address.finish()
    url = ",".join(f"{begin}://{host_port_text(host)}{path}" for host in hosts)
    return RegistryAddress(url, token=token, **options)


def _token(address: Address) -> str:
    variable = address.text("token_env")
    if not variable:
        return ""
    # As a password: the name of the variable is shown, its content never.
    held = Address.parse(f"{address.scheme}://", {"password_env": variable})
    return held.secret()
