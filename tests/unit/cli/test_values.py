"""Goal: options are parsed correctly, and errors never contain a secret. Method: values in, values or errors out."""

from __future__ import annotations

import doctest
from types import ModuleType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.adapters import open_store
from sqe_chain.cli import console, values
from sqe_chain.cli.console import key_as_json
from sqe_chain.cli.failed_records import shown_record
from sqe_chain.cli.selection import line_of, selection
from sqe_chain.cli.values import key_named, properties, store_urls, target, topic_name
from sqe_chain.codecs import codec_for
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.explain.recording import Contribution
from sqe_chain.ext.explain.report import unit_as_object
from sqe_chain.flow.stored import StoredState, readable_key
from sqe_chain.operations.failed import FailedRecord
from sqe_chain.runtime.connecting import open_stores
from sqe_chain.runtime.durations import duration_ms


class Robot(msgspec.Struct):
    events: int = 0
    torque: float = 0.0


@given(st.one_of(st.binary(max_size=6), st.text("0x4aZ*\n", max_size=6).map(str.encode)))
def test_a_key_as_it_is_shown_names_this_key(key: bytes) -> None:
    named = key_as_json(key)
    assert key_named(readable_key(key)) == key
    assert key_named(f"0x{named['hex']}" if isinstance(named, dict) else str(named)) == key


def test_lines_and_traces_show_keys_so() -> None:
    key = {"hex": b"0x41".hex()}
    unit = Contribution("s", b"0x41", ("t", 0, 1), ("t", 0, 1), "(origin)", 1, b"", 0, 0)
    failed = FailedRecord("t", bytes(16), 0, 1, 1, b"", "open", "ValueError", "no", b"0x41", 0)
    assert line_of(StoredState(b"0x41", {}), codec_for(dict))["key"] == key
    assert unit_as_object(unit)["key"] == key
    assert shown_record(failed)["key"] == key


@pytest.mark.parametrize("module", [console, values])
def test_examples_run(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_key_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        values.key_named("\udcff")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0s", 0),
        ("500ms", 500),
        ("5s", 5_000),
        ("0.5s", 500),
        ("1m", 60_000),
        ("2 m", 120_000),
        ("1h", 3_600_000),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert duration_ms(text, "--interval") == milliseconds


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "5 sec", "1e3s", "25h", "\u0665s"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--interval: (duration )?.* (is no duration|is too long)"):
        duration_ms(text, "--interval")


def test_an_address_with_an_option_is_not_taken_for_a_name() -> None:
    found = store_urls(["redis://h:1/0?max_rows=5", "slow=sqlite:///a.db?timeout_s=3", "x.y-z=memory://a"])
    assert found == {
        "": "redis://h:1/0?max_rows=5",
        "slow": "sqlite:///a.db?timeout_s=3",
        "x.y-z": "memory://a",
    }


def test_a_store_given_twice_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigurationError, match="given twice") as caught:
        store_urls(["redis://:hush@a", "redis://:hush@b"])
    assert "hush" not in str(caught.value)


def test_a_value_may_hold_equals_signs_and_spaces() -> None:
    assert properties("--spark-conf", ["spark.a=-Dx=1 -Dy=2", "spark.b="]) == {
        "spark.a": "-Dx=1 -Dy=2",
        "spark.b": "",
    }


@pytest.mark.parametrize("texts", [["spark.a"], ["=1"], ["spark.a=1", "spark.a=2"]])
def test_half_a_property_is_refused(texts: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="--spark-conf"):
        properties("--spark-conf", texts)


def test_a_flow_with_stages_names_the_store_that_it_lacks(flows: ModuleType) -> None:
    with pytest.raises(ConfigurationError, match="--store URL"):
        open_stores(flows.counts.compile(), {}).__enter__()
    with pytest.raises(ConfigurationError, match="--store slow=URL"):
        open_stores(flows.two_stores.compile(), {"": "memory://a"}).__enter__()
    with open_stores(flows.two_stores.compile(), {"": "memory://a", "slow": "memory://b"}) as stores:
        assert sorted(stores) == ["", "slow"]


def test_a_republisher_needs_no_store_and_opens_none(flows: ModuleType) -> None:
    with open_stores(flows.copies.compile(), {"": "redis://nowhere"}) as stores:
        assert stores == {}


@pytest.mark.parametrize("name", [".", "..", "", "a b", "w" * 250])
def test_an_invalid_topic_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"topic"):
        topic_name(name)


def test_a_rewind_to_an_invalid_topic_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"topic name '\.\.'"):
        target(["..[0]=1"])


@pytest.mark.parametrize("texts", [["a[0]=1", "a[0]=2"], ["a[0]=1", "a[1]=1", "a[0]=1"]])
def test_a_partition_has_one_offset(texts: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"--to a\[0\] is given twice"):
        target(texts)


def test_times_and_offsets_are_not_mixed() -> None:
    with pytest.raises(ConfigurationError, match="Expected one time, or offsets"):
        target(["a[0]=1", "2026-11-20T10:00:00Z"])


@pytest.mark.parametrize("text", ["2_0", "+20", "２０", "nan", "1e999", "0x1"])  # noqa: RUF001 - that is it
def test_numbers_of_options_are_not_guessed(text: str) -> None:
    for condition in (f"events={text}", f"torque={text}"):
        with pytest.raises(ConfigurationError, match="Expected one of field"):
            selection(None, [condition], codec_for(Robot))
    with pytest.raises(ConfigurationError, match="timeout_s"):
        open_store("redis://localhost", timeout_s=text)


def test_durations_are_not_rounded() -> None:
    assert duration_ms("1.5s", "--interval") == 1_500
    with pytest.raises(ConfigurationError, match="would be rounded"):
        duration_ms("0.4ms", "--interval")
