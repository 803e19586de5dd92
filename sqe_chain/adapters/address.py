"""Addresses of stores: a URL and its options, parsed without ever showing a secret."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from sqe_chain.errors import ConfigurationError

_UNREADABLE: Final = (
    "the store's address cannot be read: a host, a port number and percent-encoded special characters in "
    "user, password and options are expected (/ ? # @ as %2F %3F %23 %40), as in redis://user:pass%23word@host:6379/0"
)
_AUTHORITY: Final = re.compile(r"(?P<before>(?:[^:/?#]+:)?//(?:[^/?#]*@)?)(?P<hosts>[^/?#]*)")

_DECIMAL: Final = re.compile(r"[0-9]+(\.[0-9]+)?(e-?[0-9]+)?", re.IGNORECASE)

_MOST_DIGITS: Final = 18

HostPort = tuple[str, int]
"""Host and port of a server."""


def is_number(text: str) -> bool:
    """Whether a text is a whole number of at most 18 digits, as 64 bits hold it."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address. Options are taken one by one; `finish` refuses those that are left.

    Attributes:
        scheme: in lower case; empty when there is none.
        username: percent-decoded, empty when absent.
        password: percent-decoded, empty when absent; never shown.
        host: host name or address, empty when absent or when there are several.
        port: port number; 0 when absent or when there are several.
        location: host and port as written, in their own case.
        path: percent-decoded path, with its leading slash.
        options: settings not yet taken.
    """

    scheme: str
    username: str
    password: str = field(repr=False)
    host: str
    port: int
    location: str
    path: str
    options: dict[str, str] = field(repr=False)
    _known: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def parse(cls, url: str, options: Mapping[str, str]) -> Address:
        """Split a URL.

        Args:
            url: the address.
            options: more options; they override those in the URL.

        Raises:
            ConfigurationError: it cannot be split. The text does not repeat the address: a password
                with an unescaped special character can end up anywhere in its parts.
        """
        authority = _AUTHORITY.match(url)
        if authority and authority["hosts"] and "@" in url[authority.end() :]:
            # A password has one of / ? # in it, and what follows is a part of the password.
            raise ConfigurationError(_UNREADABLE)
        location = unquote(authority["hosts"]) if authority else ""
        several = "," in location  # see `hosts`
        if authority and several:
            url = authority["before"] + url[authority.end() :]  # newer Pythons refuse brackets among several
        try:
            parts = urlsplit(url)
            port = 0 if several else parts.port or 0
        except ValueError:
            raise ConfigurationError(_UNREADABLE) from None
        decoded = dict(parse_qsl(parts.query, keep_blank_values=True)) | dict(options)
        if "\0" in unquote(url) or any("\0" in text for text in decoded.values()):
            raise ConfigurationError(
                "the store's address has a character NUL, which no name or path has: remove it"
            )
        if parts.fragment:
            raise ConfigurationError("the store's address has a '#': write it as %23")
        return cls(
            scheme=parts.scheme,
            username=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            host="" if several else unquote(parts.hostname or ""),
            port=port,
            location=location,
            path=unquote(parts.path),
            options=decoded,
        )

    def hosts(self, port: int) -> tuple[HostPort, ...]:
        """Every host of ``host[:port],host[:port],…``; none when the address has no host.

        >>> Address.parse("redis+cluster://one:7000,[::1],three", {}).hosts(6379)
        (('one', 7000), ('::1', 6379), ('three', 6379))

        Args:
            port: for hosts without one.

        Raises:
            ConfigurationError: one of them cannot be read.
        """
        hosts = []
        for written in self.location.split(",") if self.location else []:
            try:
                parts = urlsplit(f"//{written}")
                host, own = parts.hostname or "", parts.port or port
            except ValueError:
                raise ConfigurationError(_UNREADABLE) from None
            if not host and "," in self.location:
                raise ConfigurationError(_UNREADABLE)
            hosts.append((host or "localhost", own))
        return tuple(hosts)

    def text(self, name: str, default: str = "") -> str:
        """Take the option with this name."""
        self._known.add(name)
        return self.options.pop(name, default)

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """Take an option that is one of these words, in any case; the first is the default."""
        value = self.text(name, allowed[0])
        for word in allowed:
            if value.upper() == word.upper():
                return word
        raise self._wrong(name, f"one of {', '.join(allowed)}")

    def file(self, name: str) -> str:
        """Take an option that names a file.

        Raises:
            ConfigurationError: there is no such file.
        """
        path = self.text(name)
        if path and not os.path.isfile(path):  # noqa: PTH113 - unlike Path's it never raises
            raise ConfigurationError(f"{name} {path} does not exist")
        return path

    def secret(self, prefix: str = "") -> str:
        """A password: from the address, or from the options `password_file` or `password_env`.

        Args:
            prefix: of the options' names, for a second password, which is never in the address.

        Raises:
            ConfigurationError: it is given twice, or cannot be read.
        """
        file, environment = f"{prefix}password_file", f"{prefix}password_env"
        written = "" if prefix else self.password
        path, variable = self.text(file), self.text(environment)
        if bool(written) + bool(path) + bool(variable) > 1:
            raise ConfigurationError(
                f"{self.scheme}://: give the password once: in the address, {file} or {environment}"
            )
        if path:
            try:
                return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"{file} {path} cannot be read: {type(error).__name__}") from None
        if variable:
            if variable not in os.environ:
                raise ConfigurationError(f"{environment}: there is no environment variable {variable}")
            return os.environ[variable]
        return written

    def whole(self, name: str, default: int) -> int:
        """Take an option that is a whole number above 0."""
        self._known.add(name)
        value = self.options.pop(name, None)
        if value is None:
            return default
        if not (is_number(value) and int(value)):
            raise self._wrong(name, "a whole number above 0")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        """Take an option that is a time in seconds, above 0 and at most an hour."""
        text = self.text(name, str(default))
        value = float(text) if _DECIMAL.fullmatch(text) else 0.0
        if not 0 < value <= 3600:  # noqa: PLR2004 - an hour; every wait is bounded
            raise self._wrong(name, f"seconds, 0 < {name} <= 3600")
        return value

    def _wrong(self, name: str, expected: str) -> ConfigurationError:
        return ConfigurationError(f"{self.scheme}://: option {name} must be {expected}")

    def finish(self) -> None:
        """Refuse options that nobody took.

        Raises:
            ConfigurationError: there are some; the text lists them and the known ones.
        """
        if self.options:
            raise ConfigurationError(
                f"{self.scheme}:// has no option {', '.join(sorted(self.options))}; "
                f"known: {', '.join(sorted(self._known))}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How to log in to servers, and how long to wait. Pickled with a store, password included, so that tasks can log in.

    Attributes:
        username: empty for none, or for the default user.
        password: empty for none; never shown.
        tls: encrypt, and verify the servers' certificates.
        ca_file: certificates to trust; empty for the system's.
        cert_file: the client's own certificate; empty for none.
        key_file: its key.
        timeout_s: longest wait for an answer, in seconds.
        connect_timeout_s: longest wait for a connection, in seconds.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    timeout_s: float = 10.0
    connect_timeout_s: float = 5.0


def server_options(address: Address) -> dict[str, Any]:
    """The fields of `ServerSettings`, taken from an address. The files must exist on each machine that runs tasks."""
    return {
        "username": address.text("username", address.username),
        "password": address.secret(),
        "ca_file": address.file("ca_file"),
        "cert_file": address.file("cert_file"),
        "key_file": address.file("key_file"),
        "timeout_s": address.seconds("timeout_s", ServerSettings().timeout_s),
        "connect_timeout_s": address.seconds("connect_timeout_s", ServerSettings().connect_timeout_s),
    }


def host_port_text(host_port: HostPort) -> str:
    """Host and port as written in an address.

    >>> host_port_text(("::1", 7000))
    '[::1]:7000'
    """
    host, port = host_port
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
