"""A broker of another make may omit any setting of a topic, or write it in another form."""

from __future__ import annotations

import pytest

from sqe_chain.adapters.kafka._admin import topic_info
from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import TopicInfo

SETTINGS: dict[str, str | None] = {
    "cleanup.policy": "compact,delete",
    "max.message.bytes": "100",
    "segment.bytes": "90",
    "min.insync.replicas": "2",
    "message.timestamp.difference.max.ms": "7",
    "message.timestamp.before.max.ms": "5",
    "message.timestamp.after.max.ms": "6",
    "message.timestamp.type": "LogAppendTime",
    "write.caching": "true",
    "retention.ms": "8",
    "retention.bytes": "9",
}
ALL = TopicInfo(
    "t",
    b"id",
    2,
    compacted=True,
    max_message_bytes=90,
    replicas=2,
    min_insync_replicas=2,
    before_max_ms=5,
    after_max_ms=6,
    append_time=True,
    write_caching=True,
    retention_ms=8,
    retention_bytes=9,
)


class Asked(dict[str, str | None]):
    """Settings that know which of them were asked for."""

    names: set[str]

    def get(self, name: str, default: object = None) -> str | None:
        self.names.add(name)
        return super().get(name)


def info(settings: dict[str, str | None]) -> TopicInfo:
    return topic_info("t", b"id", [3, 2], settings)


def test_every_setting_that_is_read_is_among_those_that_may_be_missing() -> None:
    asked = Asked(SETTINGS)
    asked.names = set()
    assert info(asked) == ALL
    assert asked.names == set(SETTINGS)


@pytest.mark.parametrize("untold", ["missing", None, ""])
@pytest.mark.parametrize("name", SETTINGS)
def test_any_setting_may_be_missing(name: str, untold: str | None) -> None:
    settings = {**SETTINGS, name: untold}
    if untold == "missing":
        del settings[name]
    found = info(settings)
    changed = [
        field for field in TopicInfo.__dataclass_fields__ if getattr(found, field) != getattr(ALL, field)
    ]
    assert len(changed) <= 1


def test_all_settings_may_be_missing() -> None:
    assert info({}) == TopicInfo("t", b"id", 2, replicas=2, min_insync_replicas=0)


@pytest.mark.parametrize("name", [name for name, value in SETTINGS.items() if (value or "").isdigit()])
def test_a_number_that_is_none_is_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"Topic t: the broker gives {name}=many"):
        info({**SETTINGS, name: "many"})


def test_a_topic_that_is_compacted_alone_deletes_nothing_by_time_or_size() -> None:
    kept = info({**SETTINGS, "cleanup.policy": "compact"})
    assert (kept.compacted, kept.retention_ms, kept.retention_bytes) == (True, -1, -1)
