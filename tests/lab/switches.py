"""New code follows a flow under load and takes its place, again and again, while commands are killed.

```
python -m tests.reliability run switches --switches 20 --seed 1 --store postgres --engine workers
```

    raw -standard-> words -notes-> out, more

Real servers, and real processes. Changes of the code, and the moments of kills, are drawn from the seed. What the flow holds is compared
with plain sums of what was produced. What it has published is compared with what a reader counts by lanes of its own reckoning.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from services.stored import stored_states
from sqe_chain import wrap
from sqe_chain.adapters import open_store
from sqe_chain.ext.dev import RedisServer
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.plans.plan import Plan
from sqe_chain.ports import Message, Range
from tests.lab.campaign.piece import ENGINES
from tests.lab.campaign.servers import STORES, running
from tests.lab.figures import report
from tests.support.beside import beside
from tests.support.mirrored import read_by_lanes
from tests.support.service_processes import KILLED, SUPERSEDED, Deployment, ServiceProcess
from tests.support.switched_flows import Code
from tests.support.waiting import PATIENCE_S
from tests.support.word_flows import word

LETTERS: Final = "abcdefgh"
TOPICS: Final = {"raw": 2, "words": 2, "out": 2, "more": 2}
_MOST_SWITCHES: Final = 4
"""Of one flow: a shadow folds all that it has counted."""
_MOST_TRIES: Final = 12
_DIFFERENT: Final = 1
_NOT_KNOWN: Final = 3


class Wrong(Exception):
    """Something that must not be."""


def check(holds: object, text: str) -> None:
    """Raise what is wrong, if it does not hold."""
    if not holds:
        raise Wrong(text)


# --------------------------------------------------------------------------- what must come out, by plain sums


def sums(code: Code, numbers: Sequence[int]) -> dict[str, dict[str, dict[str, int]]]:
    """The states of all stages, of all numbers that were produced: stage -> key -> fields."""
    counted = [number for number in numbers if number % 2 or not code.odd]
    stages: dict[str, dict[str, dict[str, int]]] = {"sums": {}, "noted": {}}
    if code.further:
        stages["further"] = {}
    for number in counted:
        text = text_of(number)
        key = text[0] if code.key == "first" else text[-1]
        known = stages["sums"].setdefault(key, {"count": 0, "total": 0})
        known["count"] += 1
        known["total"] += number * (2 if code.fold == "twice" else 1)
        noted = stages["noted"].setdefault(text[0], {"total": 0, **({"length": 0} if code.field else {})})
        noted["total"] += number
        if code.field:
            noted["length"] += len(text)
        if code.further:
            further = stages["further"].setdefault(text[0], {"count": 0, "total": 0})
            further["count"] += 1
            further["total"] += number
    return stages


def text_of(number: int) -> str:
    """The word with a number."""
    return f"{LETTERS[number % len(LETTERS)]}{number}"


def published(code: Code, topic: str, number: int) -> str | None:
    """What a code publishes of a number; None: nothing."""
    if (code.odd and not number % 2) or (topic == "more" and not code.more):
        return None
    return text_of(number).upper() if code.loud else text_of(number)


def differences(old: Code, new: Code) -> list[str]:
    """Of each kind of difference that the new code makes for readers, patterns of what a refused switch names."""
    kinds = {
        "stage 'sums'|outputs: ": (old.fold == "twice") != (new.fold == "twice") or old.key != new.key,
        "stage '|outputs: ": old.odd != new.odd,
        "stage 'noted'": new.field and not old.field,
        "stage 'further' is not in the new code": old.further and not new.further,
        f"output '{old.output}' is not in the new code": old.output != new.output,
        "output 'more' is not in the new code": old.more and not new.more,
        # On other lanes nothing is compared, so nothing is refused.
        OTHER_OUTPUTS: old.loud != new.loud and old.partitions == new.partitions,
    }
    return [pattern for pattern, differs in kinds.items() if differs]


OTHER_OUTPUTS: Final = "outputs: [0-9]+ equal, [1-9]"
CHANGES: Final[Mapping[str, Sequence[object]]] = {
    "fold": ("plain", "other", "twice"),
    "key": ("first", "last"),
    "partitions": (1, 2, 3, 4),
    "further": (True, False),
    "field": (True, False),
    "odd": (True, False),
    "store": ("", "other"),
    "output": ("echo", "initials"),
    "loud": (True, False),
    "more": (True, False),
}


def changed(code: Code, draw: random.Random) -> Code:
    """Other code: none, one or two things are other than before."""
    for name in draw.sample(sorted(CHANGES), draw.choice([0, 1, 1, 1, 2])):
        values = [value for value in CHANGES[name] if value != getattr(code, name)]
        code = replace(code, **{name: draw.choice(values)})  # type: ignore[arg-type]
    return code


# --------------------------------------------------------------------------- a flow, deployed


@dataclass(frozen=True)
class Kill:
    """A moment at which a command is killed.

    Attributes:
        at: an event and SIGKILL; see `signal_at_event`.
        call: a call to a broker or store; see `switched_flows.kill_at_call`.
        after_s: a time since the command began to work.
    """

    at: str = ""
    call: str = ""
    after_s: float | None = None

    @classmethod
    def drawn(cls, draw: random.Random, most_calls: int) -> Kill:
        """A moment; by calls one of the first `most_calls`."""
        match draw.choice(["event", "call", "call", "call", "time"]):
            case "event":
                return cls(at=f"{draw.choice(['claimed', 'recovered', 'sealed', 'persisted'])}:SIGKILL")
            case "call":
                return cls(call=f"{draw.choice(['before', 'after'])}:{draw.randint(1, most_calls)}")
            case _:
                return cls(after_s=draw.uniform(0, 1.5))


_NEVER: Final = Kill()


class Deployed(Deployment):
    """One flow, its republisher, and those who change its code.

    Args:
        kafka: broker.
        stores: name -> URL.
        directory: for logs.
        draw: of all moments and engines.
        engine: of the service, one of `ENGINES`.
        found: what has happened -> how often.
    """

    def __init__(
        self,
        kafka: str,
        stores: Mapping[str, str],
        directory: Path,
        draw: random.Random,
        engine: str,
        found: Counter[str],
    ) -> None:
        super().__init__("tests.support.switched_flows", kafka, stores[""], directory, TOPICS)
        self.stores, self.draw, self.engine, self.found = stores, draw, engine, found
        self.code = Code()
        self.numbers: list[int] = []
        # Up to which number of words which codes may have been at work, in the order of time.
        self.segments: list[tuple[int, list[Code]]] = []
        self._next = count(1)
        self._producer = Producer(
            {"bootstrap.servers": kafka, "enable.idempotence": True, "max.in.flight": 1, "linger.ms": 1}
        )
        self.standard = self._republisher()
        self.service = self.serve()

    # ------------------------------------------------------------------ processes

    def begin(self, code: Code, name: str, *more: str, kill: Kill = _NEVER) -> ServiceProcess:
        """Start a command about the flow with some code; it is killed at that moment, if that comes."""
        self.environment = {"SWITCHED_CODE": json.dumps(asdict(code))} | (
            {"CHAOS_CALL": kill.call} if kill.call else {}
        )
        others = [("--store", f"{name}={url}") for name, url in self.stores.items() if name]
        where = [text for pair in others for text in pair]
        process = self.start_command("notes", name, *where, *more, signal_at=kill.at)
        if kill.after_s is not None:
            wait_until(lambda: bool(process.lines()) or process.status() is not None, kill.after_s + 2)
            time.sleep(kill.after_s)  # the moment must be random
            process.kill()
        return process

    def serve(self) -> ServiceProcess:
        """Start the flow's service, and wait for its claim: one of old code that came too late would go on from the new states."""
        engine = ENGINES[self.engine]
        service = self.begin(self.code, "run", *engine, "--interval", "100ms", "--create-topics", "0")
        claims = wait_until(lambda: bool(service.all("claimed")) or service.status() is not None, PATIENCE_S)
        check(claims and service.status() is None, f"the service ended by itself:\n{service.text[-3000:]}")
        return service

    def _republisher(self, signal_at: str = "") -> ServiceProcess:
        self.environment = {}
        return self.start("standard", signal_at=signal_at)

    def other_engine(self) -> Sequence[str]:
        """An engine for a shadow or switch."""
        kinds = ["inprocess", "inprocess", "workers"] + ["spark"] * (self.engine == "spark")
        return ENGINES[self.draw.choice(kinds)]

    def was_killed(self, process: ServiceProcess, what: str) -> bool:
        """Wait for the end of a process; whether it was killed, which is counted."""
        if process.wait() != KILLED:
            return False
        self.found["commands killed"] += 1
        self.found[f"{what} killed"] += 1
        return True

    # ------------------------------------------------------------------ load

    @contextmanager
    def load(self) -> Iterator[None]:
        """Produce words meanwhile."""
        done = threading.Event()

        def feed() -> None:
            while not done.wait(0.05):
                for _ in range(8):
                    number = next(self._next)
                    self.numbers.append(number)
                    value = wrap(word(text_of(number)), key=None, timestamp_ms=1_700_000_000_000 + number)
                    self._producer.produce(self.topic("raw"), value, partition=number % 2)
                self._producer.poll(0)

        with beside(feed, done):
            yield
        check(self._producer.flush(PATIENCE_S) == 0, "words could not be produced")

    def publish_again(self) -> None:
        """The republisher is killed before its commit, and started again: it publishes the same again."""
        self.standard.kill()
        killed = self._republisher("published:SIGKILL")
        check(killed.wait() == KILLED, f"the republisher ended by itself:\n{killed.text[-3000:]}")
        self.standard = self._republisher()

    def rest(self, *codes: Code) -> None:
        """Wait until all is counted; these codes may have been at work since the last time."""
        for flow, topic, process in (
            ("standard", "raw", self.standard),
            ("notes", "words", self.service),
        ):
            done = wait_until(lambda: self._lag(flow, topic) == 0 or process.status() is not None, PATIENCE_S)  # noqa: B023
            check(
                done and process.status() is None,
                f"{flow} ended with {process.status()}, or has a lag of {self._lag(flow, topic)}:\n{process.text[-3000:]}",
            )
        self.segments.append((len(self.numbers), [*codes]))

    def _lag(self, flow: str, topic: str) -> int:
        name = self.topic(topic)
        places = [(name, partition) for partition in range(TOPICS[topic])]
        commits = self.log.committed(f"{self.name}-{flow}", places)
        ends = {place: bound.stable_end for place, bound in self.log.bounds(places).items()}
        return sum(end - (commits[place].offset if place in commits else 0) for place, end in ends.items())

    # ------------------------------------------------------------------ where states are, what they are, and what was published

    def places(self) -> dict[str, str]:
        """Stage -> the name under which it is stored: from the flow's last plan."""
        with closing(open_store(self.store)) as store:
            home, _ = store.home(f"{self.name}-notes")
            data = store.plan(f"{self.name}-notes", home.number) if home is not None else None
            return {} if data is None else dict(Plan.from_bytes(data).layout.stored_in())

    def check_states(self) -> None:
        """All states are the sums of what was produced."""
        expected, places = sums(self.code, self.numbers), self.places()
        check(
            set(places) == set(expected), f"stages {sorted(places)} are stored. Expected {sorted(expected)}"
        )
        for stage, wanted in expected.items():
            url = self.stores[self.code.store if stage == "sums" else ""]
            rows = [*stored_states(url, places[stage], stage)]
            held = {row.key.decode(): json.loads(row.state) for row in rows}
            check(len(rows) == len(held), f"stage {stage!r} has a key twice")
            wrong = {
                key: (held.get(key), wanted.get(key))
                for key in {*held, *wanted}
                if held.get(key) != wanted.get(key)
            }
            check(not wrong, f"stage {stage!r}: stored and expected are {wrong}")

    def check_outputs(self) -> None:
        """A reader gets each word as the code of its time publishes it, once."""
        for topic in ("out", "more"):
            read = Counter(text for texts in read_by_lanes(self._records(topic)).values() for text in texts)
            counted: dict[int, list[str]] = {}
            for text in read.elements():
                counted.setdefault(int(text[1:]), []).append(text)
            begin = 0
            for end, codes in self.segments:
                for number in self.numbers[begin:end]:
                    forms = {published(code, topic, number) for code in codes}
                    seen = counted.get(number, [])
                    right = (len(seen) == 1 and seen[0] in forms) or (not seen and None in forms)
                    check(right, f"{topic}: a reader counts {seen} of word {number}. Expected one of {forms}")
                begin = end

    def _records(self, topic: str) -> list[Message]:
        name = self.topic(topic)
        info = self.log.describe([name])[name]
        bounds = self.log.bounds([(name, partition) for partition in range(TOPICS[topic])])
        return [
            message
            for (_, partition), bound in bounds.items()
            for block in self.log.read(Range(name, info.topic_id, partition, bound.begin, bound.stable_end))
            for message in block
        ]


# --------------------------------------------------------------------------- a switch


@dataclass
class Change:
    """A change of the code of a flow, until the flow has the new one.

    Attributes:
        deployed: the flow.
        new: its new code.
    """

    deployed: Deployed
    new: Code
    _follower: ServiceProcess | None = field(default=None, init=False)
    _ended: list[ServiceProcess] = field(default_factory=list, init=False)
    _paused: list[ServiceProcess] = field(default_factory=list, init=False)

    def run(self) -> None:
        """New code follows, is compared, takes the place of the old one, and now and then goes back."""
        deployed, draw, old = self.deployed, self.deployed.draw, self.deployed.code
        reasons = differences(old, self.new)
        with deployed.load():
            deployed.publish_again()
            if draw.random() < 0.25:
                self._end_what_is_kept()
            self._follow()
            self._kill_service()
            if draw.random() < 0.4:
                killed = deployed.begin(self.new, "shadow report", kill=Kill.drawn(draw, 40))
                deployed.was_killed(killed, "report")
            if reasons == [OTHER_OUTPUTS]:  # until some were compared, nothing is known to differ
                found = wait_until(lambda: self._report()[1]["different"] > 0, PATIENCE_S)
                check(found, f"the report knows no outputs that differ: {self._report()}")
        deployed.rest(old)
        self._check_report(_DIFFERENT if reasons else 0)
        with deployed.load():
            if reasons:
                self._refused(reasons)
            self._paused = [one for one in (deployed.service, self._follower) if one and draw.random() < 0.15]
            for one in self._paused:
                one.pause()
            self._take(self.new, *(["--accept-differences"] if reasons else []))
            self._check_ended()
        deployed.rest(old, self.new)
        self._check()
        if draw.random() < 0.35:
            with deployed.load():
                self._take(old, "--back")
                self._check_ended()
            deployed.rest(old, self.new)
            deployed.found["ways back"] += 1
            self._check()

    def _check(self) -> None:
        self.deployed.check_states()
        self.deployed.check_outputs()

    # ------------------------------------------------------------------ the shadow

    def _follow(self) -> None:
        """Begin or continue the shadow: killed some times, then alive."""
        deployed, draw = self.deployed, self.deployed.draw
        for _ in range(draw.choice([0, 1, 1, 2])):
            killed = deployed.begin(
                self.new, "shadow start", *deployed.other_engine(), kill=Kill.drawn(draw, 150)
            )
            wait_until(lambda: killed.status() is not None, draw.uniform(1, 4))  # noqa: B023
            if killed.status() is None:  # the moment has not come
                killed.kill()
            deployed.was_killed(killed, "start")
        self._follower = follower = deployed.begin(self.new, "shadow start", *deployed.other_engine())
        works = wait_until(
            lambda: bool(follower.all("recovered")) or follower.status() is not None, PATIENCE_S
        )
        check(works and follower.status() is None, f"a shadow ended by itself:\n{follower.text[-3000:]}")

    def _kill_service(self) -> None:
        """Now and then kill the flow's service, beside the shadow."""
        deployed, draw = self.deployed, self.deployed.draw
        if draw.random() < 0.5:
            time.sleep(draw.uniform(0, 0.5))  # the moment must be random
            deployed.service.kill()
            deployed.found["services killed"] += 1
            deployed.service = deployed.serve()

    def _end_what_is_kept(self) -> None:
        """End the way back, killed some times: the flow is not touched."""
        deployed, draw = self.deployed, self.deployed.draw
        for kill in (Kill.drawn(draw, 40), _NEVER):
            ended = deployed.begin(deployed.code, "shadow end", kill=kill)
            if not deployed.was_killed(ended, "end"):
                check(ended.status() == 0 or "has no shadow" in ended.text, f"shadow end:\n{ended.text}")
                return

    def _report(self) -> tuple[int, dict[str, Any]]:
        """The status of a report, and its counts of outputs."""
        process = self.deployed.begin(self.new, "shadow report", "--json")
        status = process.wait()
        lines = [json.loads(line) for line in process.text.splitlines() if line.startswith('{"outputs"')]
        check(lines, f"shadow report:\n{process.text[-3000:]}")
        return status, lines[-1]["outputs"]

    def _check_report(self, expected: int) -> None:
        """At rest the report knows all, and is right."""
        reports: list[tuple[int, dict[str, Any]]] = []

        def known() -> bool:
            reports.append(self._report())
            return reports[-1][0] != _NOT_KNOWN

        check(wait_until(known, PATIENCE_S), f"the report does not come to know all: {reports[-1]}")
        check(reports[-1][0] == expected, f"the report is {reports[-1]}. Expected status {expected}")

    # ------------------------------------------------------------------ the switch

    def _refused(self, reasons: Sequence[str]) -> None:
        """Without the flag nothing may change."""
        deployed = self.deployed
        before = deployed.places()
        refused = deployed.begin(self.new, "shadow switch", *deployed.other_engine())
        status = refused.wait()
        named = any(re.search(reason, refused.text) for reason in reasons)
        check(
            status not in {0, KILLED} and named and "--accept-differences" in refused.text,
            f"a switch that changes {reasons} ended with {status}:\n{refused.text[-3000:]}",
        )
        check(deployed.places() == before, "a refused switch has changed where the flow keeps its states")
        deployed.found["refused"] += 1
        self._restart_service()

    def _restart_service(self) -> None:
        """Start the service again that a switch has ended."""
        service = self.deployed.service
        # A claim ends it; it may be about to notice.
        wait_until(lambda: service.status() is not None, 3)
        if service.status() is not None:
            check(service.status() == SUPERSEDED, f"the service ended by itself:\n{service.text[-3000:]}")
            self.deployed.service = self.deployed.serve()

    def _take(self, code: Code, *flags: str) -> None:
        """Switch, through kills, until it is done; then the service has that code."""
        deployed, draw = self.deployed, self.deployed.draw
        before, kills = deployed.places(), draw.choice([0, 1, 1, 2, 3])
        what = "back" if "--back" in flags else "switch"
        # Else a service that runs is ended between two of its batches.
        in_a_batch = deployed.service in self._paused
        for number in range(_MOST_TRIES):
            kill = Kill.drawn(draw, 250) if number < kills else _NEVER
            options = [*flags, *(["--takeover"] if draw.random() < 0.2 else [])]
            in_a_batch |= "--takeover" in options
            process = deployed.begin(code, "shadow switch", *deployed.other_engine(), *options, kill=kill)
            if deployed.was_killed(process, what):
                if deployed.places() != before:
                    break
                if draw.random() < 0.4:
                    self._restart_service()
            elif process.status() == 0:
                break
            elif "is unfinished" in process.text and in_a_batch:
                deployed.found["unfinished"] += 1
                self._finish_batch()
            elif what == "switch" and "has no shadow" in process.text:
                deployed.found["shadows lost"] += 1
                self._follow()
            else:
                raise Wrong(f"{what} ended with {process.status()}:\n{process.text[-3000:]}")
        else:
            raise Wrong(f"{what} did not come to an end in {_MOST_TRIES} times")
        check(deployed.places() != before, f"{what} has changed nothing")
        self._ended.append(deployed.service)
        deployed.code = code
        deployed.service = deployed.serve()
        deployed.found["switches"] += what == "switch"

    def _finish_batch(self) -> None:
        """What the error names: run the code that the flow has, and stop it."""
        deployed = self.deployed
        deployed.service.close()  # it may be paused in the middle of it
        run = deployed.serve()
        wait_until(lambda: bool(run.all("committed")) or run.status() is not None, PATIENCE_S)
        check(run.terminate() == 0, f"a service that finishes its batch ended otherwise:\n{run.text[-3000:]}")
        deployed.service = deployed.serve()

    def _check_ended(self) -> None:
        """Old services and shadows end, also those that were paused, and work on only now."""
        for one in self._paused:
            if one.status() is None:
                one.resume()
                self.deployed.found["woken"] += 1
        self._paused.clear()
        for one in self._ended:
            check(one.wait() == SUPERSEDED, f"an old service ended with {one.status()}:\n{one.text[-3000:]}")
        self._ended.clear()
        if self._follower is not None:
            text = "a shadow ended well, whose states are the flow's"
            check(self._follower.wait() != 0, f"{text}:\n{self._follower.text}")


@dataclass
class Switches:
    """Flows one after the other, each with some switches.

    Attributes:
        make: deploys a flow; gets what draws.
        seed: of all.
        found: what has happened -> how often.
    """

    make: Callable[[random.Random], Deployed]
    seed: int
    found: Counter[str]

    def run(self, switches: int) -> list[str]:
        """Switch that often; returns what was wrong."""
        wrong: list[str] = []
        for number in count(1):
            if self.found["switches"] >= switches or len(wrong) > 2:
                return wrong
            draw = random.Random(f"{self.seed}/{number}")
            with closing(self.make(draw)) as deployed:
                for nth in range(draw.randint(1, _MOST_SWITCHES)):
                    if self.found["switches"] >= switches:
                        break
                    old, new = deployed.code, changed(deployed.code, draw)
                    try:
                        Change(deployed, new).run()
                    except (Wrong, AssertionError, pytest.fail.Exception) as error:
                        where = f"seed {self.seed}, flow {number}, change {nth + 1} from {old} to {new}"
                        wrong.append(f"{where}: {error}")
                        break
                self.found["inputs"] += len(deployed.numbers)
        raise AssertionError("it counts without an end")


def main(arguments: list[str] | None = None) -> int:
    """Switch some times, print figures, and 1 as exit status if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.switches", description=__doc__)
    parser.add_argument("--switches", type=int, default=4, help="how many (default 4)")
    parser.add_argument("--seed", type=int, default=1, help="of changes and kills")
    parser.add_argument("--store", choices=STORES, default="redis")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="inprocess")
    parser.add_argument("--json", type=Path, help="write the figures there, as one JSON object")
    options = parser.parse_args(arguments)
    began, found = time.perf_counter(), Counter[str]()
    with ExitStack() as run:
        directory = Path(run.enter_context(tempfile.TemporaryDirectory(prefix="switches-")))
        servers = run.enter_context(running(options.store, directory))
        stores = {"": servers.store.url, "other": run.enter_context(RedisServer()).url}

        def make(draw: random.Random) -> Deployed:
            return Deployed(servers.broker.bootstrap, stores, directory, draw, options.engine, found)

        wrong = Switches(make, options.seed, found).run(options.switches)
    figures = {
        "tool": "switches",
        "counts": dict(found),
        "seed": options.seed,
        "seconds": round(time.perf_counter() - began, 1),
        "store": options.store,
        "engine": options.engine,
    }
    return report(figures, wrong, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
