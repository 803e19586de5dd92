"""Goal: what a mistake in user code has sent away comes back, and is counted exactly once.

Method: words are fed, some fail, and the code is corrected. The dead-letter records are sent back while the sender is killed
at every single write, and is run again. Then each word must be in the state of its stage exactly once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.errors import ConfigurationError, ServiceStopped
from sqe_chain.features.dead_letter_commits import RENEW_MS
from sqe_chain.flow import Flow
from sqe_chain.operations.dead_letter_replay import CHUNK, DeadLetterReplay, ReplayResult
from sqe_chain.ports import Commit, Log
from sqe_chain.protocol.settings import Settings
from sqe_chain.task.dead_letters import parse_dead_letter
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import Crash, FaultScript, PortCall
from sqe_chain.testing.faulty_ports import faulty_log
from tests.support.word_flows import append_word, same_key, word

WORDS = ["a", "b", "c", "d", "e", "f"]


class Code:
    """What a user's function does: it fails for some words until it is corrected."""

    def __init__(self, *broken: str) -> None:
        self.broken = set(broken)

    def check(self, value: StringValue) -> StringValue:
        if value.value in self.broken:
            raise ValueError(f"cannot read {value.value}")
        return value


def flow_of(code: Code, *, raw: bool = False, again: bool = False) -> Flow:
    flow = Flow("sums", poison="dead_letter", state_partitions=2)
    stream = flow.source("words", StringValue, raw=raw)
    if again:
        stream = stream.merge(flow.source("words.again", StringValue))
    stream.map(code.check).aggregate("all", key=same_key, state=StringValue, fold=append_word)
    return flow


def upstream(log: Log) -> Rehearsal:
    """A service that republishes, so that words come with a chain."""
    flow = Flow("upstream")
    flow.source("spoken", StringValue, raw=True).to("words", key=lambda text: text.value, partitions=2)
    return Rehearsal(flow, partitions={"spoken": 2}, log=log)  # type: ignore[arg-type]


class Pipeline:
    """The service, the words that it has read, and the corrected code. Some words became dead-letter records."""

    def __init__(self, *broken: str, raw: bool = False, again: bool = False) -> None:
        self.code = Code(*broken)
        self.flow = flow_of(self.code, raw=raw, again=again)
        self.service = Rehearsal(self.flow, partitions={"words": 2})
        self.upstream = upstream(self.service.log)
        for number, text in enumerate(WORDS):
            if raw:
                value = word(text).SerializeToString()
                self.service.feed("words", value, partition=number % 2, key=text, timestamp_ms=number)
            elif number < 3:
                self.service.feed("words", word(text), partition=number % 2, key=text, timestamp_ms=number)
            else:
                data = word(text).SerializeToString()
                self.upstream.feed("spoken", data, partition=number % 2, timestamp_ms=number)
        self.upstream.run_until_caught_up()

    def read(self) -> Pipeline:
        self.service.run_until_caught_up()
        return self

    def corrected(self) -> Pipeline:
        self.code.broken.clear()
        return self

    def resend(self, log: Log | None = None, to: str | None = None) -> ReplayResult:
        return DeadLetterReplay(self.flow.compile(), log or self.service.log, to).run()

    def counted(self) -> list[str]:
        self.service.run_until_caught_up()
        return sorted(text for state in self.service.states("all").values() for text in state.value.split())


def crash_everywhere(make: Callable[[], Pipeline], to: str | None = None, least: int = 4) -> None:
    for number in count():
        for when in ("before", "after"):
            pipeline = make()
            try:
                pipeline.resend(faulty_log(pipeline.service.log, FaultScript(writes={(number, when)})), to)
            except Crash:
                pipeline.resend(to=to)
                assert pipeline.counted() == WORDS, (number, when)
                assert pipeline.resend(to=to).sent == 0
            else:
                assert pipeline.counted() == WORDS
                assert number >= least
                return


def test_dead_letter_records_are_counted_once_after_the_code_was_corrected() -> None:
    pipeline = Pipeline("b", "c", "e").read()
    assert pipeline.counted() == ["a", "d", "f"]
    result = pipeline.corrected().resend()
    assert (result.sent, result.known, result.left, result.others, result.lost) == (3, 0, 0, 0, 0)
    assert pipeline.counted() == WORDS


def test_killed_at_every_write_and_repeated_they_are_counted_once() -> None:
    crash_everywhere(lambda: Pipeline("b", "c", "e").read().corrected())


@pytest.mark.parametrize("others", [False, True])
def test_a_refused_replay_does_not_block_the_documented_one(*, others: bool) -> None:
    """Nothing is sent, nor begun: also no records of another partition, or topic, that could have been sent."""
    code = Code("a", "b", "c")
    flow = Flow("sums", poison="dead_letter", state_partitions=2, dead_letter_partitions=2)
    stream = flow.source("words", StringValue, raw=True).merge(flow.source("words.again", StringValue))
    stream.map(code.check).aggregate("all", key=same_key, state=StringValue, fold=append_word)
    service = Rehearsal(flow)
    if others:
        service.feed("words.again", word("a"), key="a")
        service.run_until_caught_up()
    for text in ("b", "c"):
        service.feed("words", word(text).SerializeToString(), key=text)
    service.run_until_caught_up()
    code.broken.clear()
    there = len(service.log.records("words.again"))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="'words' is read without envelopes"):
            DeadLetterReplay(flow.compile(), service.log).run()
    assert len(service.log.records("words.again")) == there
    assert DeadLetterReplay(flow.compile(), service.log, "words.again").run().sent == 2 + others
    service.run_until_caught_up()
    texts = " ".join(state.value for state in service.states("all").values())
    assert sorted(texts.split()) == ["a", "b", "c"][not others :]


@pytest.mark.parametrize("raw", [True, False])
def test_a_replay_that_an_older_version_began_and_refused_blocks_nobody(*, raw: bool) -> None:
    """Where no record could be sent there, none was; else it is not known."""
    pipeline = Pipeline("b", "e", raw=raw, again=True).read().corrected()
    topic_id = pipeline.service.log.describe(["sums.dead-letters"])["sums.dead-letters"].topic_id
    begun = {"topic_id": topic_id.hex(), "epoch": 0, "round": 0, "to": "", "sending": True, "highest": {}}
    commits = {("sums.dead-letters", 0): Commit(0, json.dumps(begun))}
    pipeline.service.log.commit("sums.dead-letters-replay", commits)
    if raw:
        assert pipeline.resend(to="words.again").sent == 2
    else:
        with pytest.raises(ConfigurationError, match=r"Finish it first.*delete the group"):
            pipeline.resend(to="words.again")
        assert pipeline.resend().sent == 2
    assert pipeline.counted() == WORDS


@pytest.mark.parametrize("stages", [True, False])
def test_a_running_service_keeps_what_is_known_of_records_that_were_sent_back(*, stages: bool) -> None:
    """Kafka forgets each commit a week after it was made, and the command runs seldom."""
    code, counts = Code("b"), Counter[str]()
    flow = flow_of(code)
    if not stages:
        flow = Flow("sums", poison="dead_letter")
        flow.source("words", StringValue).map(code.check).to("checked", partitions=1)
    service = Rehearsal(flow)

    def count(call: PortCall, _: object) -> None:
        if call.name == "commit":
            counts[call.args[0]] += 1

    service.script.watch = count
    for text in ("a", "b"):
        service.feed("words", word(text))
    service.run_until_caught_up()
    code.broken.clear()
    replay = DeadLetterReplay(flow.compile(), service.log)
    assert replay.run().sent == 1
    before = service.log.committed(replay.group, [("sums.dead-letters", 0)])
    counts.clear()
    service.run_until_caught_up()
    assert counts[replay.group] == 0
    for hours in (1, 2):
        service.clock.jump(RENEW_MS + 1)
        service.run_until_caught_up()
        assert counts[replay.group] == hours
    assert service.log.committed(replay.group, [("sums.dead-letters", 0)]) == before


def test_a_second_time_only_new_dead_letter_records_are_sent() -> None:
    pipeline = Pipeline("b").read()
    assert pipeline.corrected().resend().sent == 1
    pipeline.code.broken.add("g")
    pipeline.service.feed("words", word("g"), key="g", partition=0)
    pipeline.counted()
    assert pipeline.corrected().resend().sent == 1
    assert pipeline.counted() == [*WORDS, "g"]
    assert pipeline.resend().sent == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_dead_letter_records_that_a_crash_has_left_twice_are_counted_once(when: str) -> None:
    def made() -> Pipeline:
        pipeline = Pipeline("b", "c", "e")
        pipeline.service.crash(step=5, when=when)  # type: ignore[arg-type]
        return pipeline.read().corrected()

    pipeline = made()
    records = len(pipeline.service.log.records("sums.dead-letters"))
    result = pipeline.resend()
    assert (records, result.sent, result.known) == ((6, 3, 3) if when == "after" else (3, 3, 0))
    assert pipeline.counted() == WORDS
    crash_everywhere(made)


def test_dead_letter_records_that_fail_again_can_be_sent_back_again() -> None:
    pipeline = Pipeline("b", "e").read()
    pipeline.code.broken = {"e"}
    assert pipeline.resend().sent == 2
    assert pipeline.counted() == ["a", "b", "c", "d", "f"]
    assert pipeline.corrected().resend().sent == 1
    assert pipeline.counted() == WORDS
    sent = [
        sum("dead-letters-replay" in link.output for link in chain)
        for chain in pipeline.service.chains("words")
    ]
    assert sorted(sent) == [0] * len(WORDS) + [1, 1, 2]


def rewound() -> Pipeline:
    """The record of `c` came back. Then the flow was rewound, and also `a` failed, which comes before it on its lane."""
    pipeline = Pipeline("c").read().corrected()
    pipeline.resend()
    assert pipeline.counted() == WORDS
    pipeline.code.broken = {"a", "c"}
    pipeline.service.rebuild({("words", 0): 0, ("words", 1): 0}, republish=True)
    pipeline.read()
    return pipeline.corrected()


def test_after_a_rewind_an_earlier_input_comes_back_too() -> None:
    pipeline = rewound()
    result = pipeline.resend()
    assert (result.sent, result.known) == (2, 1)  # `a`, and `c` as it came back; the original of `c` was sent
    assert pipeline.counted() == WORDS
    crash_everywhere(rewound)


def test_what_cannot_be_known_any_more_is_not_guessed() -> None:
    pipeline = rewound()
    pipeline.service.log.truncate_before("sums.dead-letters", 0, 1)
    with pytest.raises(ServiceStopped, match=r"records before 1 are gone"):
        pipeline.resend()


def test_what_was_decided_before_a_crash_needs_no_older_dead_letter_records() -> None:
    """The round is committed before anything is sent under it; by then the sender knows that the record is a new one."""
    pipeline = rewound()
    script = FaultScript()
    before = pipeline.service.log.snapshot()
    pipeline.resend(faulty_log(pipeline.service.log, script))
    pipeline.service.log.restore(before)
    commits = [number for number, what in enumerate(script.written) if what.startswith("commit")]
    with pytest.raises(Crash):
        pipeline.resend(faulty_log(pipeline.service.log, FaultScript(writes={(commits[2], "after")})))
    pipeline.service.log.truncate_before("sums.dead-letters", 0, 1)
    with pytest.raises(ServiceStopped, match="records before 1 are gone"):
        pipeline.resend()  # not for the record that began the round, but for the next, which was sent before
    pipeline.service.run_until_caught_up()
    assert "a" in pipeline.counted()


def test_dead_letter_records_that_retention_has_deleted_are_reported() -> None:
    pipeline = Pipeline("b", "c").read().corrected()
    pipeline.service.log.truncate_before("sums.dead-letters", 0, 1)
    assert pipeline.resend().lost == 0  # nobody knows how many there ever were
    assert pipeline.resend().sent == 0
    pipeline.code.broken.update("gh")
    for text in "gh":
        pipeline.service.feed("words", word(text), key=text, partition=0)
    pipeline.counted()
    pipeline.service.log.truncate_before("sums.dead-letters", 0, 3)
    result = pipeline.corrected().resend()
    assert (result.sent, result.lost) == (1, 1)


def test_messages_without_envelopes_are_not_sent_where_they_would_count_twice() -> None:
    pipeline = Pipeline("b", "e", raw=True).read().corrected()
    with pytest.raises(ConfigurationError, match=r"read without envelopes.*rebuild"):
        pipeline.resend()
    assert pipeline.counted() == ["a", "c", "d", "f"]


def test_messages_without_envelopes_come_back_by_a_topic_with_envelopes() -> None:
    def made() -> Pipeline:
        return Pipeline("b", "e", raw=True, again=True).read().corrected()

    pipeline = made()
    assert pipeline.resend(to="words.again").sent == 2
    assert pipeline.counted() == WORDS
    crash_everywhere(made, to="words.again", least=3)


def test_another_topic_is_not_taken_in_the_middle() -> None:
    pipeline = Pipeline("b", "e", again=True).read().corrected()
    script = FaultScript(writes={(2, "before")})
    with pytest.raises(Crash):
        pipeline.resend(faulty_log(pipeline.service.log, script))
    with pytest.raises(ConfigurationError, match="same places and options"):
        pipeline.resend(to="words.again")
    pipeline.resend()
    pipeline.resend(to="words.again")
    assert pipeline.counted() == WORDS
    with pytest.raises(
        ConfigurationError, match=r"does not read 'elsewhere'\. Expected one of: words, words"
    ):
        pipeline.resend(to="elsewhere")


def test_what_is_no_envelope_stays_and_is_named() -> None:
    pipeline = Pipeline("b").read().corrected()
    pipeline.service.feed("words", b"rubbish", partition=0)
    pipeline.counted()
    result = pipeline.resend()
    assert (result.sent, result.left) == (1, 1)
    (reason,) = result.reasons
    assert reason[0].startswith("words[0]@")
    assert pipeline.counted() == WORDS


def test_dead_letter_records_of_others_and_other_records_are_passed_over() -> None:
    pipeline = Pipeline("b").read().corrected()
    (record,) = pipeline.service.log.records("sums.dead-letters")
    headers = [(name, b"somebody" if name == "sqe-flow" else value) for name, value in record.headers() or []]
    pipeline.service.log.append("sums.dead-letters", 0, record.value(), headers=headers)
    pipeline.service.log.append("sums.dead-letters", 0, b"what is this?")
    result = pipeline.resend()
    assert (result.sent, result.others) == (1, 2)
    assert pipeline.counted() == WORDS


def test_more_than_a_chunk_goes_in_several_commits() -> None:
    code = Code()
    flow = Flow("many", poison="dead_letter")
    flow.source("words", StringValue).map(code.check).aggregate(
        "all",
        key=same_key,
        state=Int64Value,
        fold=lambda state, _: setattr(state, "value", state.value + 1),
    )
    service = Rehearsal(flow, settings=Settings(max_excluded_share=1.0))
    many = 2 * CHUNK + 1
    code.broken = {str(number) for number in range(many)}
    for number in range(many):
        service.feed("words", word(str(number)))
    service.run_until_caught_up()
    code.broken.clear()
    script = FaultScript()
    assert DeadLetterReplay(flow.compile(), faulty_log(service.log, script)).run().sent == many
    assert script.written.count("commit of many.dead-letters-replay") == 4
    service.run_until_caught_up()
    (total,) = service.states("all").values()
    assert total.value == many


def test_the_headers_of_the_input_come_back_without_the_reason() -> None:
    pipeline = Pipeline("g").read()
    pipeline.service.feed(
        "words", word("g"), partition=0, key="g", headers=[("trace", b"7"), ("sqe-flow", b"mine")]
    )
    pipeline.counted()
    letter = parse_dead_letter(pipeline.service.log.records("sums.dead-letters")[-1])
    assert letter is not None
    assert (letter.topic, letter.partition, letter.error) == ("words", 0, "ValueError")
    assert letter.text.startswith("cannot read g, at test_dead_letters.py:")
    assert letter.headers == [("trace", b"7"), ("sqe-flow", b"mine")]
    pipeline.corrected().resend()
    assert pipeline.service.log.records("words")[4].headers() == [("trace", b"7"), ("sqe-flow", b"mine")]
