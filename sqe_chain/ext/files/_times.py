"""Times of Arrow that Python cannot hold as they are: nanoseconds become text with all their digits, old offsets with seconds UTC."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def in_microseconds(schema: Any, pa: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The schema with microseconds for nanoseconds."""
    return pa.schema([field.with_type(_without_ns(field.type, pa, numbers=False)) for field in schema])


def in_numbers(schema: Any, pa: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The schema with plain integers for times of nanoseconds; `spelled` takes them."""
    return pa.schema([field.with_type(_without_ns(field.type, pa, numbers=True)) for field in schema])


def has_zones(kind: Any, pa: Any) -> bool:  # noqa: ANN401 - pyarrow has no types
    """Whether there are times of a zone with a name, whose offset may have had seconds once."""
    if pa.types.is_timestamp(kind):
        return kind.tz not in (None, "UTC") and kind.tz[0] not in "+-"
    if pa.types.is_map(kind):
        return has_zones(kind.item_type, pa)
    return any(has_zones(kind.field(number).type, pa) for number in range(kind.num_fields))


def sayable(value: Any) -> Any:  # noqa: ANN401 - any value of Python
    """A value in which times whose offset has seconds, for which ISO 8601 has no form, are in UTC."""
    if isinstance(value, datetime):
        offset = value.utcoffset()
        return value.astimezone(UTC) if offset is not None and offset.seconds % 60 else value
    if isinstance(value, dict):
        return {name: sayable(one) for name, one in value.items()}
    return [sayable(one) for one in value] if isinstance(value, list) else value


def spelled(kind: Any, value: Any, pa: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """A value of a type of Arrow whose nanoseconds are plain integers: text for those that are no whole microseconds."""
    if value is None:
        return None
    if getattr(kind, "unit", "") == "ns":
        return _time(kind, value, pa)
    if isinstance(value, Mapping):
        types = (
            dict.fromkeys(value, kind.item_type)
            if pa.types.is_map(kind)
            else {field.name: field.type for field in kind}
        )
        return {name: spelled(types[name], one, pa) for name, one in value.items()}
    if isinstance(value, list):
        return [spelled(kind.value_type, one, pa) for one in value]
    return value


def _time(kind: Any, value: int, pa: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    micros, rest = divmod(value, 1_000)
    if pa.types.is_duration(kind):
        if not rest:
            return timedelta(microseconds=micros)
        seconds, nanos = divmod(abs(value), 1_000_000_000)
        return f"{'-' if value < 0 else ''}PT{seconds}.{nanos:09}S"
    moment = _EPOCH + timedelta(microseconds=micros)
    if pa.types.is_time(kind):
        found = moment.time()
        return f"{found.isoformat('microseconds')}{rest:03}" if rest else found
    if kind.tz is None:
        moment = moment.replace(tzinfo=None)
    else:
        moment = sayable(moment.astimezone(pa.scalar(0, kind).as_py().tzinfo))
    if not rest:
        return moment
    text = moment.isoformat(timespec="microseconds")
    return f"{text[:26]}{rest:03}{text[26:].replace('+00:00', 'Z')}"


def _micros(kind: Any, pa: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")


def _without_ns(kind: Any, pa: Any, *, numbers: bool) -> Any:  # noqa: ANN401 - pyarrow has no types
    if getattr(kind, "unit", "") == "ns":
        return pa.int64() if numbers else _micros(kind, pa)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_ns(field.type, pa, numbers=numbers)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _without_ns(kind.item_type, pa, numbers=numbers))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        made = pa.large_list if pa.types.is_large_list(kind) else pa.list_
        return made(kind.value_field.with_type(_without_ns(kind.value_type, pa, numbers=numbers)))
    return kind
