"""Parses values of options: topics, times, stores, properties."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqe_chain.errors import ConfigurationError, FlowError
from sqe_chain.flow.declaration import TOPIC_LENGTH, check_name

_PAIRS = re.compile("([0-9a-fA-F]{2})*")
_NAMED = re.compile(r"([A-Za-z0-9._-]+)=(.*)", re.DOTALL)
_MILLIS = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLACE = re.compile(r"([A-Za-z0-9._-]+)\[([0-9]{1,10})\][@=]([0-9]{1,19})")


def topic_name(text: str) -> str:
    """A valid topic name.

    >>> topic_name("robot.raw")
    'robot.raw'

    Raises:
        ConfigurationError: Kafka does not allow this name.
    """
    return _name("topic", text)


def flow_name(text: str) -> str:
    """A valid name of a flow, of its readers or of an attempt to rebuild it.

    Raises:
        ConfigurationError: no store takes this name.
    """
    return _name("flow", text)


def _name(what: str, text: str) -> str:
    try:
        check_name(what, text, "the command line", TOPIC_LENGTH)
    except FlowError as error:
        raise ConfigurationError(str(error)) from None
    return text


def place_named(text: str) -> tuple[str, int, int]:
    """Topic, partition and offset of TOPIC[PARTITION]@OFFSET.

    Raises:
        ConfigurationError: it is something else.
    """
    named = _PLACE.fullmatch(text)
    if named is None:
        raise ConfigurationError(
            f"{text!r} names no record. Expected TOPIC[PARTITION]@OFFSET, as in orders[2]@417"
        )
    return named[1], int(named[2]), int(named[3])


def _offsets_named(option: str, texts: Sequence[str]) -> dict[tuple[str, int], int]:
    """Partition -> offset of several TOPIC[PARTITION]=OFFSET.

    >>> _offsets_named("--to", ["robot.raw[0]=17", "robot.raw[2]=0"])
    {('robot.raw', 0): 17, ('robot.raw', 2): 0}

    Raises:
        ConfigurationError: one is something else, or a partition is given twice.
    """
    offsets: dict[tuple[str, int], int] = {}
    for topic, partition, offset in map(place_named, texts):
        if (topic_name(topic), partition) in offsets:
            raise ConfigurationError(
                f"{option} {topic}[{partition}] is given twice. Expected one offset for each partition"
            )
        offsets[topic, partition] = offset
    return offsets


def key_named(text: str) -> bytes:
    """A key as it is written on the command line: text, or 0x and hexadecimal digits.

    Raises:
        ConfigurationError: what follows 0x is not hexadecimal, or the text is not UTF-8.
    """
    if not text.startswith("0x"):
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(
                f"key {text!r}: not UTF-8. Expected text, or 0x and hexadecimal digits. Give its bytes after 0x"
            ) from None
    if not _PAIRS.fullmatch(text, 2):
        raise ConfigurationError(f"key {text!r}. Expected hexadecimal digits in pairs after 0x")
    return bytes.fromhex(text[2:])


def target(texts: Sequence[str]) -> dict[tuple[str, int], int] | int:
    """The target of a rewind: a time in milliseconds since 1970, or an offset per partition.

    >>> target(["2026-11-20T10:00:00Z"])
    1795168800000
    >>> target(["robot.raw[0]=17"])
    {('robot.raw', 0): 17}

    Raises:
        ConfigurationError: it is neither, times and offsets are mixed, or a partition is given twice.
    """
    for text in texts:
        if not _PLACE.fullmatch(text):
            moment = _moment("--to", text, "TOPIC[PARTITION]=OFFSET")
            if len(texts) > 1:
                raise ConfigurationError("--to with times and offsets. Expected one time, or offsets")
            return moment
    return _offsets_named("--to", texts)


def moment_ms(option: str, text: str | None) -> int | None:
    """A point in time: milliseconds since 1970, or RFC 3339 with a time zone; None stays None.

    >>> moment_ms("--from", "2026-11-20T10:00:00+01:00"), moment_ms("--from", "-5")
    (1795165200000, -5)

    Raises:
        ConfigurationError: it is neither.
    """
    if text is None:
        return None
    if _MILLIS.fullmatch(text):
        return int(text)
    return _moment(option, text, "milliseconds since 1970")


def paths_of(texts: Sequence[str]) -> dict[str, list[str]]:
    """Source of files -> paths.

    >>> paths_of(["readings=a.csv", "readings=b/*.csv"])
    {'readings': ['a.csv', 'b/*.csv']}

    Raises:
        ConfigurationError: it is no SOURCE=PATH.
    """
    paths: dict[str, list[str]] = {}
    for text in texts:
        named = _NAMED.fullmatch(text)
        if named is None or not named.group(2):
            raise ConfigurationError(f"--files {text!r}. Expected SOURCE=PATH, as in readings=/data/*.csv")
        paths.setdefault(named.group(1), []).append(named.group(2))
    return paths


def _moment(option: str, text: str, other: str) -> int:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{option} {text!r}. Expected a time with its zone, such as 2026-11-20T10:00:00Z, or {other}"
        ) from None
    if when.tzinfo is None:
        raise ConfigurationError(
            f"{option} {text!r}: the time zone is missing. Expected one at the end. Add Z or +01:00"
        )
    return (when - _EPOCH) // timedelta(milliseconds=1)


def store_urls(texts: Sequence[str]) -> dict[str, str]:
    """Store name -> address; "" is the default, which holds the metadata.

    >>> store_urls(["sqlite:///tmp/a.db", "fast=redis://localhost?max_rows=10"])
    {'': 'sqlite:///tmp/a.db', 'fast': 'redis://localhost?max_rows=10'}

    Raises:
        ConfigurationError: a name is given twice. The text does not contain addresses: they hold passwords.
    """
    urls: dict[str, str] = {}
    for text in texts:
        named = _NAMED.fullmatch(text)
        name, url = named.groups() if named else ("", text)
        if name in urls:
            which = f"{name!r}" if name else "without a name"
            raise ConfigurationError(
                f"--store {which} is given twice. Expected one address for each name: --store URL --store NAME=URL"
            )
        urls[name] = url
    return urls


def properties(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Name -> value of options given as NAME=VALUE.

    Raises:
        ConfigurationError: one is not of that form, or a name is given twice.
    """
    properties_by_name: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not (name and equals):
            raise ConfigurationError(f"{option} {name!r}. Expected NAME=VALUE")
        if name in properties_by_name:
            raise ConfigurationError(f"{option} {name!r} is given twice. Expected one value for it")
        properties_by_name[name] = value
    return properties_by_name
