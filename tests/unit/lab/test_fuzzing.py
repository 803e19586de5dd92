"""What the fuzzer has found stays found: its corpus is read in all ways, it goes on where it was, and it notices bugs."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from random import Random

import pytest

from sqe_chain.envelope.carrier import find_head
from sqe_chain.envelope.columns import Columns
from sqe_chain.errors import EnvelopeError, MalformedField
from tests.lab.fuzzing import planted, ways
from tests.lab.fuzzing.__main__ import main
from tests.lab.fuzzing.corpus import smaller
from tests.lab.fuzzing.engine import Engine, Hang, Target, limited, until
from tests.lab.fuzzing.mutator import mutated, written
from tests.lab.fuzzing.receiver import NEW, REPLAY
from tests.lab.fuzzing.records import Script, from_bytes, to_bytes
from tests.lab.fuzzing.reference import judge, judge_carried
from tests.lab.fuzzing.targets import CORPUS, TARGETS, known, vectors
from tests.lab.mutants.injection import why_not_judged


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_what_is_known_is_read_as_it_has_to_be(name: str) -> None:
    seen = set[Hashable]()
    assert sum(TARGETS[name].check(data, seen) for data in known(TARGETS[name])) > 0
    assert len(seen) > (100 if name == "envelopes" else 5)
    if name == "envelopes":
        assert {"GapError", "ChangedRepublisher", "RecreatedTopic", "EmptyValue", "WrongPayloadType"} <= {
            one[1] for one in seen if isinstance(one, tuple)
        }


def test_the_corpus_is_small() -> None:
    assert 10_000 < sum(file.stat().st_size for file in CORPUS.rglob("*.bin")) < 1_000_000


def test_the_reference_knows_the_vectors() -> None:
    """It is written from the documents alone; the vectors are what both are compared with."""
    file = Path(__file__).parents[3] / "proto" / "vectors.json"
    found = json.loads(file.read_text())
    for one in found["malformed"].values():
        assert judge(bytes.fromhex(one["bytes"])).refusals == {one["error"]}
    for one in found["envelopes"].values():
        verdict = judge(bytes.fromhex(one["bytes"]))
        assert verdict.content is not None
        assert verdict.strict == frozenset()
        assert verdict.content.event_id.hex() == one["event_id"]
        assert verdict.content.position.hex() == one["position"]
    for one in found["carried"].values():
        value = None if one["value"] is None else bytes.fromhex(one["value"])
        carried = judge_carried(value, [bytes.fromhex(one["headers"]["sqe-chain"])])
        assert carried.content == judge(bytes.fromhex(one["envelope"])).content


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_seed_always_does_the_same(name: str) -> None:
    def run() -> tuple[object, ...]:
        engine = Engine(TARGETS[name], Random(7))
        for _ in range(12):
            engine.step(lambda data: None)
        return engine.executions, engine.distinct, len(engine.outcomes), engine.corpus[-1]

    assert run() == run()


def test_sound_writers_are_read_as_new_and_as_replays() -> None:
    """So that what is compared is not refusals alone."""
    random, seen = Random(3), set[Hashable]()
    for _ in range(20):
        ways.check(to_bytes(Script(random.randrange(16), written(random))), seen)
    came = {one[1] for one in seen if isinstance(one, tuple) and not one[0]}
    assert {1, REPLAY} <= came
    assert NEW not in came, "a new one has its number of payloads"


def test_inputs_are_read_as_they_were_written() -> None:
    random, data = Random(1), vectors()[0]
    for _ in range(200):
        data = mutated(data, 12_000, random)
        script = from_bytes(data)
        if any(record.chains and b"" in record.chains and None in record.chains for record in script.records):
            continue  # one bit marks an empty header as null
        assert from_bytes(to_bytes(script)).records == script.records
        assert len(data) <= 12_000


def test_a_difference_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Columns, "_texts", lambda self, at, size: size >= 0)
    target, random = TARGETS["envelopes"], Random(0)
    engine = Engine(target, random, [*vectors()])
    values: list[bytes] = []
    with pytest.raises(ways.Difference, match=r"columns: ordinary"):
        _steps(engine, values)
    small = smaller(target, values[-1])
    assert len(from_bytes(small).records) == 1
    with pytest.raises(ways.Difference):
        target.check(small, set())


def _steps(engine: Engine, values: list[bytes]) -> None:
    for _ in range(300):
        engine.step(values.append)


def test_an_error_without_a_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(*_: object) -> None:
        raise IndexError("careless")

    monkeypatch.setattr(ways, "find_head", careless)
    with pytest.raises(IndexError):
        ways.check(vectors()[0], set())


def test_what_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.lab.fuzzing.engine.HANGS_S", 0.2)
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)

    def endless(data: bytes, seen: set[Hashable]) -> int:
        while True:
            data = data[:1]

    limited(1)
    engine = Engine(Target("endless", endless, lambda data, most, random: data, 1), Random(0))
    with pytest.raises(Hang):
        list(until(engine, 10, None, lambda data: None))


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    options = [
        "--target",
        "frames",
        "--directory",
        str(tmp_path / "state"),
        "--json",
        str(tmp_path / "said.json"),
    ]
    said = []
    for executions in ("400", "900"):
        assert main(["--executions", executions, *options]) == 0
        said.append(json.loads((tmp_path / "said.json").read_text()))
    first, second = (one["counts"]["executions"] for one in said)
    assert first >= 400
    assert first + second >= 900
    assert second < 900, "only what is still to do"
    assert [one["part"] for one in said] == [1, 2]


def test_planted_bugs_are_where_they_were_planted_and_were_all_found() -> None:
    assert [text for mutant in planted.ALL.values() if (text := why_not_judged(mutant))] == []
    found = {one.bug: one for one in planted.read()}
    assert [
        name
        for name, mutant in planted.ALL.items()
        if name not in found or found[name].digest != mutant.digest
    ] == []
    assert [name for name, one in found.items() if one.seconds is None] == []


def test_the_name_of_an_error_is_part_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = find_head

    def careless(value: bytes | None, headers: object) -> object:
        try:
            return sound(value, headers)  # type: ignore[arg-type]
        except EnvelopeError as error:
            raise MalformedField(str(error)) from error

    monkeypatch.setattr(ways, "find_head", careless)
    with pytest.raises(ways.Difference, match="find_head says MalformedField"):
        [ways.check(data, set()) for data in vectors()]
