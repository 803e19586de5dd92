"""Addresses of stores: a URL and its options, parsed without ever showing a secret."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from sqe_chain.codecs.text import float_in
from sqe_chain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UNREADABLE: Final = (
    "the store's address cannot be read: a host, a port number and percent-encoded special characters in "
    "user, password and options are expected (/ ? # @ as %2F %3F %23 %40), as in redis://user:pass%23word@host:6379/0"
)
_AUTHORITY: Final = re.compile(r"(?P<before>(?:[^:/?#]+:)?//(?:[^/?#]*@)?)(?P<hosts>[^/?#]*)")


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address. Options are taken out one by one; `finish` refuses those that are left.

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
            raise ConfigurationError(
                _UNREADABLE
            )  # of a password with one of / ? # in it: what follows is a part of it
        location = unquote(authority["hosts"]) if authority else ""
        several = "," in location  # see `hosts`
        if authority and several:
            url = authority["before"] + url[authority.end() :]  # newer Pythons refuse brackets among several
        try:
            parts = urlsplit(url)
            port = 0 if several else parts.port or 0
        except ValueError:
            raise ConfigurationError(_UNREADABLE) from None
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
            options=dict(parse_qsl(parts.query, keep_blank_values=True)) | dict(options),
        )

    def hosts(self, port: int) -> tuple[tuple[str, int], ...]:
        """Every host of ``host[:port],host[:port],…``; none when the address has no host.

        >>> Address.parse("redis+cluster://one:7000,[::1],three", {}).hosts(6379)
        (('one', 7000), ('::1', 6379), ('three', 6379))

        Args:
            port: for hosts without one.

        Raises:
            ConfigurationError: one of them cannot be read.
        """
        found = []
        for written in self.location.split(",") if self.location else []:
            try:
                parts = urlsplit(f"//{written}")
                host, own = parts.hostname or "", parts.port or port
            except ValueError:
                raise ConfigurationError(_UNREADABLE) from None
            if not host and "," in self.location:
                raise ConfigurationError(_UNREADABLE)
            found.append((host or "localhost", own))
        return tuple(found)

    def text(self, name: str, default: str = "") -> str:
        """Take the option with this name."""
        return self.options.pop(name, default)

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """Take an option that is one of these words, in any case; the first is the default."""
        value = self.options.pop(name, allowed[0])
        for word in allowed:
            if value.upper() == word.upper():
                return word
        raise ConfigurationError(f"{self.scheme}://: option {name} must be one of {', '.join(allowed)}")

    def file(self, name: str) -> str:
        """Take an option that names a file.

        Raises:
            ConfigurationError: there is no such file.
        """
        path = self.text(name)
        if path and not Path(path).is_file():
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
        value = self.options.pop(name, str(default))
        if not (value.isascii() and value.isdigit() and int(value) > 0):
            raise ConfigurationError(f"{self.scheme}://: option {name} must be a whole number above 0")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        """Take an option that is a time in seconds, above 0 and at most an hour."""
        try:
            value = float_in(self.options.pop(name, str(default)))
        except ValueError:
            value = 0.0
        if not 0 < value <= 3600:  # noqa: PLR2004 - an hour; every wait is bounded
            raise ConfigurationError(f"{self.scheme}://: option {name} must be seconds, 0 < {name} <= 3600")
        return value

    def finish(self, *known: str) -> None:
        """Refuse options that nobody took.

        Raises:
            ConfigurationError: there are some; the text lists them and the known ones.
        """
        if self.options:
            raise ConfigurationError(
                f"{self.scheme}:// has no option {', '.join(sorted(self.options))}; "
                f"known: {', '.join(sorted(known))}"
            )
