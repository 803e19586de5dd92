"""Filters as stages of a flow: what goes on, what is dropped and why, exact through crashes, chunks and replays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain import Flow
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope.message import read
from sqe_chain.envelope.sqe_key import process_id, read_sqe_key
from sqe_chain.errors import ConfigurationError, FlowError, PoisonError, TooManyLanes
from sqe_chain.flow import Filter, Stream
from sqe_chain.flow.context import Context
from sqe_chain.protocol import committed
from sqe_chain.protocol.without_plans import Republisher
from sqe_chain.stages import Dropped, Sessions, SqeKey, Tumbling, WindowResult
from sqe_chain.testing import Rehearsal
from tests.support.number_flows import count
from tests.support.receiving import received
from tests.support.typed_results import payloads_of, states_as

Declare = Callable[[Stream[StringValue]], Filter[StringValue]]


def word(text: str) -> StringValue:
    return StringValue(value=text)


def service_of(declare: Declare, name: str, max_rows: int = 5_000, **options: object) -> Rehearsal:
    """Words -> the filter -> counts by word; what is dropped goes to a topic."""
    flow = Flow(name, state_partitions=2, **options)  # type: ignore[arg-type]
    kept = declare(flow.source("words", StringValue))
    kept.dropped().to("dropped", partitions=1)
    kept.aggregate("per-word", key=lambda text: text.value, state=Int64Value, fold=count)
    store = MemoryStore(name, max_rows=max_rows)
    store.restore_all()
    return Rehearsal(flow, store=store, partitions={"words": 2})


def counted(service: Rehearsal) -> dict[str, int]:
    return {key.decode(): state.value for key, state in states_as(Int64Value, service, "per-word").items()}


def dropped(service: Rehearsal) -> list[Dropped]:
    return [
        payload
        for message in service.log.records("dropped")
        for payload in payloads_of(Dropped, read(message.value()))
    ]


def test_duplicates_by_key_within_the_interval() -> None:
    service = service_of(lambda words: words.deduplicate_by_key("once", 10_000), "dedup-key")
    for text, key, at_ms in (("a", "k", 1_000), ("b", "k", 5_000), ("c", "other", 5_000), ("d", "k", 11_001)):
        service.feed("words", word(text), key=key, timestamp_ms=at_ms)
    service.feed("words", word("e"), timestamp_ms=11_001)
    service.run_until_caught_up()
    assert counted(service) == {"a": 1, "c": 1, "d": 1, "e": 1}
    (out,) = dropped(service)
    assert (out.stage, out.reason, out.key, out.timestamp_ms) == ("once", "duplicate", b"k", 5_000)
    assert StringValue.FromString(out.payload).value == "b"
    assert out.HasField("original_position")
    (event,) = service.events("filtered")
    assert event["counts"] == {"once/duplicate": 1}


def test_duplicates_by_an_id_whatever_their_keys() -> None:
    service = service_of(lambda words: words.deduplicate("once", lambda text: text.value, 10_000), "dedup-id")
    for number, text in enumerate(["a", "b", "a", "c", "b", "a"]):
        service.feed("words", word(text), key=f"key-{number}", partition=number % 2, timestamp_ms=1_000)
    service.run_until_caught_up()
    assert counted(service) == {"a": 1, "b": 1, "c": 1}
    assert sorted(StringValue.FromString(out.payload).value for out in dropped(service)) == ["a", "a", "b"]


def test_duplicates_by_key_and_id() -> None:
    service = service_of(
        lambda words: words.deduplicate_by_key_value("once", lambda text, _: text.value, 10_000), "dedup-both"
    )
    for text, key in (("a", "k"), ("a", "l"), ("a", "k"), ("b", "k")):
        service.feed("words", word(text), key=key, timestamp_ms=1_000)
    service.run_until_caught_up()
    assert counted(service) == {"a": 2, "b": 1}


def sequence(_: StringValue, context: Context) -> int:
    return int(dict(context.headers or [])["seq"] or b"")


def test_stale_numbers_of_an_input_partition() -> None:
    service = service_of(lambda words: words.drop_stale("rising", sequence=sequence), "stale")
    for text, number, partition in (
        ("a", 1, 0),
        ("b", 2, 0),
        ("c", 1, 1),
        ("b", 2, 0),
        ("a", 1, 0),
        ("d", 5, 0),
    ):
        headers = [("seq", str(number).encode())]
        service.feed("words", word(text), partition=partition, headers=headers)  # type: ignore[arg-type]
    service.run_until_caught_up()
    assert counted(service) == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert [out.reason for out in dropped(service)] == ["stale", "stale", "gap"]
    (event,) = service.events("filtered")
    assert event["counts"] == {"rising/gap": 1, "rising/stale": 2}


def test_sqe_records_are_known_by_their_keys() -> None:
    service = service_of(lambda words: words.drop_replays("sqe"), "sqe")
    for text, offset in (("a", 1), ("b", 2), ("a", 1), ("c", 3), ("b", 2)):
        service.feed("words", word(text), key=SqeKey(7, 0, offset).to_bytes())
    service.feed("words", word("d"), key="no key of SQE")
    service.run_until_caught_up()
    assert counted(service) == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert [out.reason for out in dropped(service)] == ["replay", "replay"]


def test_what_is_written_for_sqe_is_filtered_by_its_keys_and_comes_back_into_envelopes() -> None:
    """Envelopes in, SQE's keys out; the writer dies before its commit, and the reader drops what comes again."""
    there = Flow("to-sqe")
    there.source("words", StringValue).to_sqe("sqe", partitions=2, process_id=process_id("t", "s", "hosts"))
    writer = Rehearsal(there, partitions={"words": 3})
    for number, text in enumerate(["a", "b", "a"]):
        writer.feed("words", word(text), partition=number)
    writer.crash(step=7, when="before")
    writer.run_until_caught_up()
    records = writer.log.records("sqe")
    assert len(records) == 6
    keys = {read_sqe_key(message.key()) for message in records}
    assert {(key.partition, key.offset) for key in keys if key} == {(0, 0), (1, 0), (2, 0)}
    assert all(
        message.partition() == key.partition % 2
        for message in records
        if (key := read_sqe_key(message.key()))
    )

    back = Flow("from-sqe", state_partitions=2)
    fresh = back.source("sqe", StringValue, raw=True).drop_replays("fresh")
    fresh.aggregate("per-word", key=lambda text: text.value, state=Int64Value, fold=count)
    reader = Rehearsal(back, partitions={"sqe": 2}, log=writer.log)
    reader.run_until_caught_up()
    assert counted(reader) == {"a": 2, "b": 1}


def test_records_that_sqe_cannot_distinguish_are_not_written_for_it() -> None:
    flow = Flow("to-sqe-twice")
    flow.source("words", StringValue).flat_map(lambda text: [word(text.value), word("more")]).to_sqe(
        "sqe", partitions=1, process_id=7
    )
    writer = Rehearsal(flow)
    writer.feed("words", word("a"))
    with pytest.raises(PoisonError, match="one record of a source offset only"):
        writer.run_until_caught_up()
    two = Flow("to-sqe-two")
    two.source(["words", "more"], StringValue).to_sqe("sqe", partitions=1, process_id=7)
    with pytest.raises(FlowError, match="Read one topic"):
        two.compile()
    with pytest.raises(FlowError, match="process_id=9223372036854775808"):
        Flow("wide").source("words", StringValue).to_sqe("sqe", partitions=1, process_id=1 << 63)


@pytest.mark.parametrize("stages", [False, True])
def test_readers_of_sqe_s_keys_get_no_replay_of_a_service_upstream(*, stages: bool) -> None:
    """They could not know it: it has another offset where it is read."""
    first, second = Flow("first"), Flow("to-sqe", state_partitions=1)
    first.source("before", StringValue, raw=True).to("words", key=lambda _: "all", partitions=1)
    words = second.source("words", StringValue)
    words.to_sqe("sqe", partitions=1, process_id=7)
    if stages:
        words.aggregate("all", key=lambda _: "all", state=Int64Value, fold=count)
    upstream = Rehearsal(first)
    writer = Rehearsal(second, log=upstream.log)
    for text in ("a", "b", "c"):
        upstream.feed("before", word(text))
        upstream.run_until_caught_up()
        writer.run_until_caught_up()
        upstream.service = writer.service = None
    if isinstance(upstream.start(), Republisher):
        upstream.rewind({("before", 0): 0})
    upstream.feed("before", word("d"))
    upstream.run_until_caught_up()
    writer.run_until_caught_up()
    records = writer.log.records("sqe")
    assert [StringValue.FromString(record.value() or b"").value for record in records] == ["a", "b", "c", "d"]
    assert len(writer.log.records("words")) == 7


def test_a_writer_for_sqe_is_rewound_to_the_beginning_or_not_at_all() -> None:
    """Further on it would not know what came before, and write later replays of it."""
    first, second = Flow("first"), Flow("to-sqe")
    first.source("before", StringValue, raw=True).to("words", key=lambda _: "all", partitions=1)
    second.source("words", StringValue).to_sqe("sqe", partitions=1, process_id=7)
    upstream = Rehearsal(first, partitions={"before": 2})
    writer = Rehearsal(second, log=upstream.log)
    for partition, text in ((0, "a"), (1, "b"), (1, "c")):  # two lanes: "a" is alone in its own
        upstream.feed("before", word(text), partition=partition)
        upstream.run_until_caught_up()
        writer.run_until_caught_up()
    with pytest.raises(ConfigurationError, match=r"words\[0\].*Expected 0"):
        writer.rewind({("words", 0): 1})
    writer.rewind({("words", 0): 0})
    writer.run_until_caught_up()
    upstream.rewind({("before", 0): 0})
    upstream.feed("before", word("d"))
    upstream.run_until_caught_up()
    writer.run_until_caught_up()
    written = [StringValue.FromString(record.value() or b"").value for record in writer.log.records("sqe")]
    assert written == ["a", "b", "c", "a", "b", "c", "d"]


def test_records_that_readers_of_sqe_s_keys_would_take_for_replays_are_refused() -> None:
    """State partitions do not keep the order of offsets, and two outputs give the same place of origin."""
    flow = Flow("to-sqe", state_partitions=2)
    words = flow.source("words", StringValue)
    stage = words.aggregate("all", key=lambda text: text.value, state=Int64Value, fold=count)
    fresh = words.deduplicate("once", lambda text: text.value, 1_000)
    for stream in (stage.changes(), fresh, fresh.map(lambda text: text), fresh.dropped()):
        with pytest.raises(FlowError, match=r"to_sqe\('sqe'\) follows a stage"):
            stream.to_sqe("sqe", partitions=1, process_id=7)
    words.to_sqe("sqe", partitions=1, process_id=7)
    words.to_sqe("sqe", partitions=1, process_id=8, name="others")
    with pytest.raises(FlowError, match=r"process_id=7 .*test_filters_in_flows.py:\d+"):
        words.map(lambda text: text).to_sqe("sqe", partitions=1, process_id=7, name="again")


def test_a_writer_for_sqe_that_cannot_keep_its_marks_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow("to-sqe")
    flow.source("words", StringValue).to_sqe("sqe", partitions=1, process_id=7)
    writer = Rehearsal(flow)
    writer.feed("words", word("a"))
    writer.start()
    monkeypatch.setattr(committed, "encode_marks", lambda _: "x" * 5_000)
    with pytest.raises(TooManyLanes, match="Give the flow a stage"):
        writer.batch()


@pytest.mark.parametrize("first", ["", "before", "behind", "both"])
@pytest.mark.parametrize("then", ["", "before", "behind", "both"])
def test_a_service_that_is_added_or_removed_anywhere_on_a_path_changes_no_root(first: str, then: str) -> None:
    """Both paths split each order into its lines; one of one is made before or behind that, or not."""

    def line_key(line: dict[str, str]) -> str:
        return line["sku"]

    def remember(state: dict[str, list[str]], line: dict[str, str]) -> None:
        state.setdefault("seen", []).append(line["order"])

    counting = Flow("counting", state_partitions=1)
    fresh = counting.source("lines", dict).drop_replays("fresh", by="key")
    fresh.aggregate("per-sku", key=line_key, state=dict, fold=remember)
    service = Rehearsal(counting, partitions={"lines": 1})
    origin = Flow("origin")
    origin.source("orders", dict, raw=True).to("copied", partitions=1)
    orders_of = Rehearsal(origin, log=service.log)
    for order in ("1", "2"):
        orders_of.feed("orders", {"lines": [{"sku": sku, "order": order} for sku in "ABC"]}, key=order)
    for name, way in (("first", first), ("then", then)):
        topic, lines = "orders", "lines"
        if way in ("before", "both"):
            clean, topic = Flow(f"{name}-clean"), f"{name}.cleaned"
            clean.source("orders", dict, raw=True).to(topic, partitions=1)
            Rehearsal(clean, log=service.log).run_until_caught_up()
        if way in ("behind", "both"):
            lines = f"{name}.split"
        split = Flow(f"{name}-split")
        orders = split.source(topic, dict, raw=topic == "orders")
        orders.flat_map(lambda order: order["lines"]).to(lines, key=line_key, partitions=1)
        Rehearsal(split, log=service.log).run_until_caught_up()
        if lines != "lines":
            copy = Flow(f"{name}-copy")
            copy.source(lines, dict).to("lines", key=line_key, partitions=1)
            Rehearsal(copy, log=service.log).run_until_caught_up()
    service.run_until_caught_up()
    assert service.states("per-sku") == {sku: {"seen": ["1", "2"]} for sku in (b"A", b"B", b"C")}


def test_keys_remember_the_root_they_have_reached() -> None:
    """A topic in between that was filled again brings old roots on a new lane."""
    service = service_of(lambda words: words.drop_replays("roots", by="key"), "roots")
    for text in ("a", "b", "c"):
        service.feed("words", word(text), key="k", partition=0)
    service.run_until_caught_up()
    assert counted(service) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize(
    ("windows", "left"), [(Tumbling(10_000), {"a": 1, "c": 1}), (Sessions(10_000), {"a": 1})]
)
def test_the_first_of_each_window_goes_on(windows: object, left: dict[str, int]) -> None:
    service = service_of(lambda words: words.distinct("first", windows), f"distinct-{type(windows).__name__}")
    for text, at_ms in (("a", 1_000), ("b", 9_000), ("c", 11_000), ("d", 12_000)):
        service.feed("words", word(text), key="k", timestamp_ms=at_ms)
    service.run_until_caught_up()
    assert counted(service) == left


def test_screws_of_each_robot_and_hour() -> None:
    """Late ones while the window is open, none behind it; results come when event time has passed the end."""
    flow = Flow("hours", state_partitions=2)
    hours = flow.source("words", StringValue).windowed(
        "per-hour",
        Tumbling(3_600_000),
        key=lambda text: text.value,
        state=Int64Value,
        fold=count,
        lateness_ms=600_000,
    )
    hours.to("hours", partitions=1)
    hours.dropped().to("late", partitions=1)
    store = MemoryStore("hours")
    store.restore_all()
    service = Rehearsal(flow, store=store)
    minutes = (0, 30, 59, 61, 58, 71, 20, 90)  # 58: late, but in time; 71 closes the first hour; 20: too late
    for minute in minutes:
        service.feed("words", word("robot-7"), timestamp_ms=minute * 60_000)
        service.run_until_caught_up()
    service.feed("words", word("robot-7"), timestamp_ms=131 * 60_000)
    service.run_until_caught_up()
    results = [
        payload
        for message in service.log.records("hours")
        for payload in payloads_of(WindowResult, read(message.value()))
    ]
    found = [
        (result.key, result.start_ms // 3_600_000, Int64Value.FromString(result.state).value)
        for result in results
    ]
    assert found == [(b"robot-7", 0, 4), (b"robot-7", 1, 3)]
    assert len(service.log.records("late")) == 1


@pytest.mark.parametrize("max_rows", [1, 2, 5_000])
def test_a_fold_that_takes_no_value_twice_is_exact_through_crashes(max_rows: int) -> None:
    """Windows are written row by row; in a redo nothing that was written is folded again, or given to steps behind."""

    def take(state: StringValue, text: StringValue, context: Context) -> None:
        assert context.timestamp_ms >= 0
        if text.value in state.value:
            raise ValueError(f"{text.value} was folded before")
        state.value += text.value + " "

    def checked(result: WindowResult) -> StringValue:
        words = StringValue.FromString(result.state).value.split()
        if len(words) != 5:
            raise ValueError(f"{words} are not all of the window")
        return StringValue(value=" ".join(sorted(words)))

    flow = Flow("folded-once", state_partitions=2, poison="skip")
    windows = flow.source("words", StringValue).windowed(
        "ten-seconds", Tumbling(10_000), key=lambda text: text.value[0], state=StringValue, fold=take
    )
    windows.map(checked).to("results", partitions=1)
    store = MemoryStore(f"folded-once-{max_rows}", max_rows=max_rows)
    store.restore_all()
    service = Rehearsal(flow, store=store)
    for number in range(60):
        for key in "abc":
            service.feed("words", word(f"{key}{number}"), timestamp_ms=2_000 * number)
        service.crash_at_write(number, "after" if number % 2 else "before")
        service.run_until_caught_up()
    results = {  # a crash behind a publication publishes again, at the same positions
        payload.value
        for envelope in service.published("results")
        for payload in payloads_of(StringValue, envelope)
    }
    assert results == {
        " ".join(sorted(f"{key}{number}" for number in range(start, start + 5)))
        for start in range(0, 55, 5)
        for key in "abc"
    }
    assert service.crashes > 10


def test_steps_behind_a_filter_see_nothing_in_a_redo_that_they_did_not_see_before() -> None:
    """What is purged with the batch is gone when it is redone: its duplicate looks new then."""

    def only_first(text: StringValue) -> StringValue:
        if text.value == "again":
            raise ValueError("this one was dropped")
        return text

    crashes = 0
    for number in range(12):
        name = f"purged-{number}"
        flow = Flow(name, state_partitions=1, poison="skip")
        once = flow.source("words", StringValue).deduplicate_by_key("once", 1_000)
        once.map(only_first).aggregate("words", state=Int64Value, fold=count)
        store = MemoryStore(name, max_rows=1)
        store.restore_all()
        service = Rehearsal(flow, store=store)
        service.feed("words", word("first"), key="x", timestamp_ms=0)
        service.run_until_caught_up()
        service.feed("words", word("again"), key="x", timestamp_ms=500)
        service.feed("words", word("first"), key="y", timestamp_ms=10_000)
        service.crash_at_write(number, "after")
        service.run_until_caught_up()
        assert {key: state.value for key, state in states_as(Int64Value, service, "words").items()} == {
            b"x": 1,
            b"y": 1,
        }
        crashes += service.crashes
    assert crashes > 5


def hours_with_heartbeats(name: str, max_rows: int = 5_000) -> Rehearsal:
    """Counts by word and hour; the word "tick" is a heartbeat."""
    flow = Flow(name, state_partitions=3)
    hours = flow.source("words", StringValue).windowed(
        "per-hour",
        Tumbling(3_600_000),
        key=lambda text: text.value,
        state=Int64Value,
        fold=count,
        heartbeat=lambda text, context: text.value == "tick" and context.topic == "words",
        retention_ms=7_200_000,
    )
    hours.to("hours", partitions=1)
    store = MemoryStore(name, max_rows=max_rows)
    store.restore_all()
    return Rehearsal(flow, store=store, partitions={"words": 3})


def hours_received(service: Rehearsal) -> list[tuple[bytes, int, int]]:
    """What a receiver that ignores replays gets."""
    topic_id = service.log.describe(["hours"])["hours"].topic_id
    return sorted(
        (one.key, one.start_ms // 3_600_000, Int64Value.FromString(one.state).value)
        for message in received("hours", topic_id, service.log.records("hours"))
        for one in payloads_of(WindowResult, read(message.value()))
    )


def test_a_heartbeat_closes_the_windows_of_every_state_partition() -> None:
    service = hours_with_heartbeats("heartbeats")
    for number in range(30):
        service.feed(
            "words", word(f"word-{number}"), key=f"word-{number}", partition=number % 3, timestamp_ms=number
        )
    service.run_until_caught_up()
    assert hours_received(service) == []
    service.feed("words", word("tick"), timestamp_ms=3_600_000)
    service.run_until_caught_up()
    assert hours_received(service) == sorted((f"word-{number}".encode(), 0, 1) for number in range(30))
    assert {result.key for result in service.windows("per-hour")} == {
        key for key, _, _ in hours_received(service)
    }
    service.feed("words", word("late"), timestamp_ms=3_599_999)
    service.feed(
        "words", word("tick"), timestamp_ms=service.clock.now + 8_000_000_000
    )  # a clock that is wrong, as the next one of its lane shows
    service.feed("words", word("now"), timestamp_ms=service.clock.now)
    service.run_until_caught_up()
    assert [result.key for result in service.windows("per-hour")] == [b"now"], "what was retained is purged"


def test_results_of_one_heartbeat_are_no_repetitions_of_each_other() -> None:
    flow = Flow("distinguished", state_partitions=3)
    minutes = flow.source("words", StringValue).windowed(
        "per-minute",
        Tumbling(60_000),
        key=lambda text: text.value,
        state=Int64Value,
        fold=count,
        heartbeat=lambda text: text.value == "tick",
    )
    minutes.deduplicate("one", lambda _: "all", 60_000).aggregate("results", state=Int64Value, fold=count)
    service = Rehearsal(flow)
    for number in range(12):
        service.feed("words", word(f"word-{number}"), timestamp_ms=number)
    service.feed("words", word("tick"), timestamp_ms=60_000)
    service.run_until_caught_up()
    assert sum(total.value for total in states_as(Int64Value, service, "results").values()) == 1


def test_the_state_of_a_window_is_not_deleted_by_its_fold() -> None:
    def delete(_state: Int64Value, _text: StringValue, context: Context) -> None:
        context.delete_state()

    flow = Flow("deletes", state_partitions=1)
    flow.source("words", StringValue).windowed(
        "w", Tumbling(10), state=Int64Value, fold=delete, retention_ms=1
    )
    service = Rehearsal(flow)
    service.feed("words", word("a"), key="k")
    with pytest.raises(PoisonError, match="ends with the window"):
        service.run_until_caught_up()


def test_one_wrong_clock_at_the_very_beginning_makes_nothing_late() -> None:
    """Stream time is not known yet: what comes first is compared with the service's clock."""
    service = service_of(
        lambda words: words.deduplicate_by_key("once", 10_000, late="drop"),
        "first-clock",
    )
    service.feed("words", word("wrong"), key="k", timestamp_ms=9_999_999_999_999)
    for text, at_ms in (("a", 1_000), ("b", 2_000), ("c", 12_000)):
        service.feed("words", word(text), key="k", timestamp_ms=at_ms)
    service.run_until_caught_up()
    assert counted(service) == {"wrong": 1, "a": 1, "c": 1}
    trusting = service_of(
        lambda words: words.deduplicate_by_key("once", 10_000, late="drop", guard=None), "trusting"
    )
    trusting.feed("words", word("wrong"), key="k", timestamp_ms=9_999_999_999_999)
    trusting.feed("words", word("a"), key="k", timestamp_ms=1_000)
    trusting.run_until_caught_up()
    assert counted(trusting) == {"wrong": 1}


def test_a_record_without_a_number_becomes_a_dead_letter_record_and_the_rest_goes_on() -> None:
    service = service_of(
        lambda words: words.drop_stale("rising", sequence=sequence, malformed="dead_letter"),
        "stale-letters",
        poison="dead_letter",
    )
    for text, number in (("a", b"1"), ("bad", b"one"), ("b", b"2"), ("c", b"2")):
        service.feed("words", word(text), headers=[("seq", number)])
    service.run_until_caught_up()
    assert counted(service) == {"a": 1, "b": 1}
    (record,) = service.log.records("stale-letters.dead-letters")
    assert read(record.value()).payload_as(StringValue).value == "bad"
    assert dict(record.headers() or [])["sqe-offset"] == b"1"


def test_a_record_without_a_number_stops_the_service_by_its_place() -> None:
    service = service_of(lambda words: words.drop_stale("rising", sequence=sequence), "stale-stops")
    service.feed("words", word("bad"), headers=[("seq", b"one")])
    with pytest.raises(PoisonError, match=r"words\[0\]@0"):
        service.run_until_caught_up()
