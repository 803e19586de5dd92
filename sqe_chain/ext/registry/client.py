"""Asks a schema registry over HTTP, by Confluent's client. A server that does not answer as one is an outage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ext.registry.address import RegistryAddress
from sqe_chain.ext.registry.memory import memory_registry
from sqe_chain.ext.registry.schemas import (
    Incompatible,
    Kind,
    Reference,
    Registry,
    SchemaId,
    UnknownSchema,
    WrittenSchema,
)
from sqe_chain.wings import needing

_UNKNOWN: Final = (40401, 40402, 40403)
"""Codes with which a registry answers that it has no such subject, version or schema."""
_REFUSED: Final = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)
_HTTP_MODULES: Final = ("httpx", "httpx2", "httpcore", "httpcore2", "ssl")


class LoginRefused(Unavailable):
    """The registry refuses the login, or one of both the other's certificate.

    A start ends by that; a running service waits, since a login may be changed meanwhile.
    """


_opened: dict[RegistryAddress, Registry] = {}


def open_registry(address: RegistryAddress) -> Registry:
    """The registry at an address; one client for each process.

    Raises:
        ConfigurationError: a package is missing, or a file of the address cannot be used.
    """
    opened = _opened.get(address)
    if opened is None:
        if address.url.startswith("memory:"):
            return memory_registry(address.url)
        with needing("A schema registry", "registry"):
            opened = _opened.setdefault(address, HttpRegistry(address))
    return opened


def forget_registries() -> None:
    """Close the clients of this process, and forget what they have looked up. The next call opens them again."""
    for address in list(_opened):
        opened = _opened.pop(address)
        if isinstance(opened, HttpRegistry):
            opened.close()


class HttpRegistry:
    """A registry with Confluent's API."""

    def __init__(self, address: RegistryAddress) -> None:
        from confluent_kafka import schema_registry  # noqa: PLC0415 - when it is asked for: it loads an HTTP client

        self._driver = schema_registry
        self._url = address.url
        try:
            self._client = schema_registry.SchemaRegistryClient(_configuration(address))
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"schema registry {address.url}: its settings cannot be used: {error}"
            ) from error

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def by_number(self, number: int) -> WrittenSchema:
        """See `Registry`."""
        with self._asking(f"schema id {number}"):
            return _written(self._client.get_schema(number))

    def by_guid(self, guid: str) -> WrittenSchema:
        """See `Registry`."""
        with self._asking(f"schema GUID {guid}"):
            return _written(self._client.get_schema_by_guid(guid))

    def version(self, subject: str, version: int) -> WrittenSchema:
        """See `Registry`."""
        with self._asking(f"version {version} of subject {subject!r}"):
            return _written(self._client.get_version(subject, version).schema)

    def find(self, subject: str, schema: WrittenSchema) -> SchemaId:
        """See `Registry`."""
        with self._asking(f"this schema in subject {subject!r}"):
            registered = self._client.lookup_schema(subject, self._given(schema), normalize_schemas=True)
            return _id_of(registered)

    def register(self, subject: str, schema: WrittenSchema) -> SchemaId:
        """See `Registry`."""
        with self._asking(f"subject {subject!r}"):
            made = self._client.register_schema_full_response(
                subject, self._given(schema), normalize_schemas=True
            )
            return _id_of(made)

    def why_incompatible(self, subject: str, schema: WrittenSchema) -> str:
        """See `Registry`."""
        try:
            with self._asking(f"subject {subject!r}"):
                fits = self._client.test_compatibility(subject, self._given(schema))
        except UnknownSchema:
            return ""
        except Incompatible as error:
            return str(error)
        return "" if fits else "its rule of compatibility does not allow the changes"

    def ping(self) -> None:
        """See `Registry`."""
        try:
            with self._asking("which subjects it has"):
                self._client.get_subjects("a prefix that no subject has:")
        except LoginRefused as error:
            raise ConfigurationError(
                f"{error}. Expected a login and certificates that both take. Correct --registry"
            ) from None

    def _given(self, schema: WrittenSchema) -> Any:  # noqa: ANN401 - the driver's class
        named = [
            self._driver.SchemaReference(known.name, known.subject, known.version)
            for known in schema.references
        ]
        return self._driver.Schema(schema.text, schema.kind, named)

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._driver.SchemaRegistryError as error:
            raise _meaning(error, f"schema registry {self._url}: {what}: {error}") from error
        except Exception as error:
            # The driver passes on what its HTTP client raises, and what JSON does of an answer by another server.
            outage = (
                isinstance(error, OSError | ValueError)
                or type(error).__module__.partition(".")[0] in _HTTP_MODULES
            )
            if not outage:
                raise
            text = f"schema registry {self._url}: {what}: {type(error).__name__}: {error}"
            # Of TLS: one side does not take the other's certificate.
            refused = "certificate" in str(error).lower()
            raise (LoginRefused if refused else Unavailable)(text) from error


def _meaning(error: Any, text: str) -> Exception:  # noqa: ANN401 - the driver's class
    status, code = error.http_status_code, error.error_code
    if status == HTTPStatus.NOT_FOUND and code in _UNKNOWN:
        return UnknownSchema(text)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return LoginRefused(text)
    if status in _REFUSED:
        return Incompatible(text)
    # Also 404 without such a code: that is another server, or a wrong path.
    return Unavailable(text)


def _configuration(address: RegistryAddress) -> dict[str, Any]:
    known: dict[str, Any] = {
        "url": address.url,
        "timeout": address.timeout_s,
        "max.retries": 0,  # the service waits by itself, and reports for what
    }
    if address.username:
        known["basic.auth.user.info"] = f"{address.username}:{address.password}"
    if address.token:
        known |= {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": address.token}
        known |= {"bearer.auth.logical.cluster": "", "bearer.auth.identity.pool.id": ""}
    files = {
        "ssl.ca.location": address.ca_file,
        "ssl.certificate.location": address.cert_file,
        "ssl.key.location": address.key_file,
    }
    return known | {name: path for name, path in files.items() if path}


def _id_of(registered: Any) -> SchemaId:  # noqa: ANN401 - the driver's class
    return SchemaId(registered.schema_id, registered.guid or "")


def _written(schema: Any) -> WrittenSchema:  # noqa: ANN401 - the driver's class
    kind: Kind = schema.schema_type or "AVRO"  # registries leave it out for Avro
    references = tuple(
        Reference(known.name, known.subject, known.version) for known in schema.references or ()
    )
    return WrittenSchema(kind, schema.schema_str, references)
