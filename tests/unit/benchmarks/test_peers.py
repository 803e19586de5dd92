"""Goal: the comparison sums up what was measured, and names systems that are missing or wrong. Method: made-up rounds, no processes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from benchmarks.peers import installing
from benchmarks.peers.flows import Fastening
from benchmarks.peers.records import CLOSER, Expected, Records
from benchmarks.peers.results import LATER, Results
from benchmarks.peers.running import Measured, Run
from benchmarks.peers.systems import ENVELOPES, JSON, KAFKA_STREAMS, SYSTEMS, Job, SqeChain
from benchmarks.peers.workloads import Added, Latest, Passed, Windows, Workload, difference

OURS = SYSTEMS[-1]
OURS_STANDARD = SqeChain("sqe-chain", ENVELOPES)
THEIRS = SYSTEMS[0]
FOLD = Workload.FOLD


def run(seconds: float, cpu_s: float = 1.0, later: Measured | None = None) -> Run:
    return Run(Measured(1_000, seconds, cpu_s), later, 2.0)


def test_rows_are_medians_and_ratios_of_rates(tmp_path: Path) -> None:
    results = Results()
    for seconds in (9.0, 1.0, 2.0):
        results.add(KAFKA_STREAMS, FOLD, run(seconds))
    for seconds, cpu_s in ((1.0, 3.0), (0.5, 7.0), (0.1, 4.0)):
        results.add(OURS.name, FOLD, run(seconds, cpu_s, Measured(600, 0.1, 0.3)))
    results.write(tmp_path / "rows.json", SYSTEMS)
    rows = json.loads((tmp_path / "rows.json").read_text("utf-8"))
    shared = {"workload": "w2-fold"}
    assert rows == [
        {
            "system": KAFKA_STREAMS,
            **shared,
            "records_per_s": 500.0,
            "cpu_us_per_record": 1000.0,
            "ratio_to_kafka_streams": 1.0,
        },
        {
            "system": OURS.name,
            **shared,
            "records_per_s": 2000.0,
            "cpu_us_per_record": 4000.0,
            "ratio_to_kafka_streams": 4.0,
        },
        {
            "system": OURS.name + LATER,
            **shared,
            "records_per_s": 6000.0,
            "cpu_us_per_record": 500.0,
            "ratio_to_kafka_streams": 12.0,
        },
    ]


def test_a_system_with_a_wrong_result_gets_no_figures_and_is_no_measure_for_others() -> None:
    results = Results()
    results.add(KAFKA_STREAMS, FOLD, run(1.0))
    results.add(OURS.name, FOLD, run(1.0, later=Measured(1, 1.0, 1.0)))
    results.wrong[KAFKA_STREAMS, FOLD] = "one key is wrong"
    assert results.row(KAFKA_STREAMS, FOLD) is None
    row = results.row(OURS.name, FOLD)
    assert row is not None
    assert row.ratio_to_kafka_streams is None
    results.wrong[OURS.name, FOLD] = "another one"
    assert list(results.rows(SYSTEMS)) == []
    assert results.markdown(SYSTEMS, [FOLD]).count("| wrong |") == 2


def test_the_input_follows_the_rules() -> None:
    records = Records(2_500)
    values = list(records.fastenings())
    sizes = [len(msgspec.json.encode(value)) for value in values]
    assert 115 <= sum(sizes) / len(sizes) <= 125
    robots, lines = records.by_robot(), records.by_line()
    assert len(robots) == 1_000
    assert len(lines) == 20
    for totals in (robots, lines):
        everything = Expected()
        for one in totals.values():
            everything.add(one)
        assert everything == Expected(
            2_500, sum(value.fastened for value in values), sum(value.failed for value in values)
        )
    assert {value.robot: value.line for value in values}.keys() == robots.keys()


@pytest.mark.parametrize("workload", Workload)
def test_one_lost_or_doubled_record_is_seen(workload: Workload) -> None:
    assert workload.expected(Records(3_000)) != workload.expected(Records(3_001))
    assert difference(workload.expected(Records(3_001)), workload.expected(Records(3_000)))


def test_the_last_total_of_a_key_counts() -> None:
    findings = Latest()
    for key, events in (("a", 1), ("b", 5), ("a", 3)):
        findings.take(key, b'{"events": %d, "fastened": 2, "failed": 1}' % events)
    assert findings.totals == {"a": (3, 2, 1), "b": (5, 2, 1)}
    assert findings.events == 8


def test_all_records_of_a_key_are_added_if_they_are_its_own() -> None:
    findings = Added()
    for key, robot in (("a", "a"), ("a", "a"), ("a", "b")):
        findings.take(key, b'{"robot": "%s", "joint": "", "report": 1, "screws": 2}' % robot.encode())
    assert findings.totals == {"a": (2, 6)}


def test_a_window_with_two_results_is_seen() -> None:
    findings = Windows()
    for key in ("a", "a", "b"):
        findings.take(key, b'{"key":"%s","start_ms":0,"events":2}' % key.encode())
    findings.take("c", b'{"key":"c","start_ms":10,"end_ms":20,"state":{"events":3}}')
    findings.take("d", b'{"key":"c","start_ms":10,"events":3}')
    assert findings.totals == {"a@0": (4, 2), "b@0": (2, 1), "c@10": (3, 1), "d is c@10": (3, 1)}
    assert findings.events == 12


def test_a_record_that_came_through_the_filter_twice_is_seen() -> None:
    findings = Passed()
    for report in (1, 2, 1):
        findings.take("a", msgspec.json.encode(Fastening("a", "", "", report, 2, 1)))
    assert findings.totals == {"a": (3, 6, 3, 1)}


@pytest.mark.parametrize("workload", Workload)
def test_records_that_only_end_windows_are_not_looked_at(workload: Workload) -> None:
    findings = workload.findings()
    findings.take(f"{CLOSER}3", b"not even JSON")
    assert (findings.totals, findings.events) == ({}, 0)


def test_one_record_of_ten_is_sent_again() -> None:
    records = Records(20_000)
    reports = [one.report for one in records.fastenings()]
    assert len(set(reports)) == 18_000
    assert sum(one.events for one in records.once_by_robot().values()) == 18_000
    assert sum(records.by_window(10_000).values()) == 20_000


def test_the_services_of_a_chain_share_a_topic(tmp_path: Path) -> None:
    job = Job("run-1", Workload.CHAIN, "kafka:1", "redis://r", "out", tmp_path, "between")
    first, behind = OURS_STANDARD.commands(job)
    assert (first[2], behind[2]) == ("measured:flow", "behind:flow")
    assert (
        "flat_map('run-1', 'peers.envelopes', 'between', raw=False)" in (tmp_path / "measured.py").read_text()
    )
    assert "('run-1.second', 'between', 'out', raw=False)" in (tmp_path / "behind.py").read_text()


def test_a_variant_is_one_entry(tmp_path: Path) -> None:
    variant = SqeChain("sqe-new", ENVELOPES, ("--engine", "inprocess"), {FOLD: "fold"})
    assert variant.workloads == {FOLD}
    ((program, *arguments),) = variant.commands(Job("run-1", FOLD, "kafka:1", "redis://r", "out", tmp_path))
    assert Path(program).name == "sqe-chain"
    assert arguments[:2] == ["run", "measured:flow"]
    assert arguments[-2:] == ["--engine", "inprocess"]
    assert "fold('run-1', 'peers.envelopes', 'out', raw=False)" in (tmp_path / "measured.py").read_text()
    assert (variant.begins('{"event": "ready"}'), variant.begins("first")) == (True, False)
    assert variant.batch('{"event": "committed", "inputs": 7}') == 7
    assert variant.batch("Exception in thread") is None


def test_names_of_systems_differ() -> None:
    names = [system.name for system in SYSTEMS]
    assert len(set(names)) == len(names)
    assert {system.source for system in SYSTEMS} == {JSON, ENVELOPES}


# --- what the others need -----------------------------------------------------------------------------


def test_jars_that_differ_are_refused(tmp_path: Path) -> None:
    sums = tmp_path / "sums"
    content = {"a.jar": b"a", "b.jar": b"b"}
    sums.write_text(
        "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in content.items())
    )
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    installing.check_jars(tmp_path, sums)
    (tmp_path / "b.jar").write_bytes(b"changed")
    (tmp_path / "c.jar").write_bytes(b"new")
    (tmp_path / "a.jar").unlink()
    with pytest.raises(installing.Missing, match=r"a\.jar, b\.jar, c\.jar"):
        installing.check_jars(tmp_path, sums)


def test_the_table_is_markdown_for_three_workloads_at_once() -> None:
    results = Results()
    for workload in Workload:
        results.add(KAFKA_STREAMS, workload, run(1.0))
    results.add(OURS.name, FOLD, run(0.5, 0.002))
    first, second = results.markdown(SYSTEMS, list(Workload)).split("\n\n")
    assert first.splitlines() == [
        "| system | W1 k/s | µs | ratio | W2 k/s | µs | ratio | W3 k/s | µs | ratio | starts in |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        "| Kafka Streams 4.1, exactly once | 1 | 1000.0 | 1.00 | 1 | 1000.0 | 1.00 | 1 | 1000.0 | 1.00 | 2.0 s |",
        f"| {OURS.title} | | | | 2 | 2.0 | 2.00 | | | | 2.0 s |",
    ]
    assert second.startswith("| system | W4 k/s")
    assert len(second.splitlines()) == 3


def test_versions_are_reported() -> None:
    for directory in ("quix_streams", "plain_loop", "flink"):
        asked = (installing.HERE / directory / "requirements.in").read_text().splitlines()
        assert len(installing.pinned(installing.HERE / directory).split(", ")) == len(asked)


def test_every_jar_is_pinned() -> None:
    for number in (installing.OLDER_KAFKA, installing.NEWEST_KAFKA):
        lines = (installing.JAVA_FILES / f"jars-{number}.sha256").read_text().splitlines()
        assert f"kafka-streams-{number}.jar" in {line.split()[1] for line in lines}


def test_a_runtime_without_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.touch()
    program.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("SQE_CHAIN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(installing.Missing, match=r"no javac beside .*openjdk-17-jdk-headless"):
        installing.kafka_streams(lambda line: None)


def test_no_java_at_all_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(installing.Missing, match="no java on the path"):
        installing.kafka_streams(lambda line: None)


def test_an_installation_that_failed_is_repeated_and_another_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQE_CHAIN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "requirements.txt").write_text("one==1")
    ran: list[tuple[str, ...]] = []

    def failing(*command: str) -> None:
        ran.append(command)
        if "pip" in command:
            raise installing.Missing("no network")

    monkeypatch.setattr(installing, "_run", failing)
    for tries in (2, 4):
        with pytest.raises(installing.Missing, match="no network"):
            installing.python_of(tmp_path, print)
        assert len(ran) == tries
    monkeypatch.setattr(installing, "_run", lambda *command: ran.append(command))
    first = installing.python_of(tmp_path, print)
    assert len(ran) == 6
    assert installing.python_of(tmp_path, print) == first
    assert len(ran) == 6
    (tmp_path / "requirements.txt").write_text("one==2")
    assert installing.python_of(tmp_path, print) != first
    assert len(ran) == 8
