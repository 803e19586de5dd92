"""The demo from beginning to end: servers, simulator, two services, kills, audit."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random
from tempfile import TemporaryDirectory

from services import audit, naive, simulate
from services.demo.commands import ROOT, Options, environment, run_service, run_simulator
from services.demo.kills import Kills
from services.demo.positions import standing, topic_end
from services.demo.process import Process, tail
from services.demo.progress import Progress
from services.demo.verdict import LEAST_REPLAYS, Outcome
from services.demo.victim import DemoFailed, Victim, summary
from services.expected import expected
from services.fastening import standard, totals
from services.reports import reports
from sqe_chain.dev import CassandraServer, KafkaServer, RedisServer
from sqe_chain.logs.kafka import KafkaLog
from sqe_chain.stores import WithSchema, open_store

OPEN_PLANS = 2
LEASH = 50_000
"""Messages that may wait for a service that is down, more or less: its first batch is no larger."""

_DOWN_S = 8.0
"""How long a service stays down at most: what waits then makes its first batch a large one."""
_HOLD_S = 0.2
"""Time between two looks for which a service has to stand still; in its first batch, the large one, none."""
_LOOK_S = 0.02
_MEASURE_S = 0.1
_SHOW_S = 0.5
_REPLAYS_WANTED = 2 * LEAST_REPLAYS  # of the raw messages; some fewer of what they become


class Story:
    """One run of the demo.

    Args:
        options: what the user chose.
        progress: where to show what goes on.
    """

    def __init__(self, options: Options, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._deadline = time.monotonic() + options.timeout_s
        self._heard: SimpleQueue[tuple[str, float, str]] = SimpleQueue()
        self._ends = ExitStack()
        self._produced: int | None = None
        self._measured_s = self._shown_s = self._looked_s = 0.0
        self._down: dict[str, float] = {}

    def tell(self) -> Outcome:
        """Everything in its order; returns what is there at the end.

        Raises:
            DemoFailed: a service ended by itself, or something took too long.
            ChainError: a server could not be started or does not answer.
        """
        with self._ends:
            self._set_up()
            self._let_them_live_and_die()
            self._drain()
            for victim in self._victims:
                victim.stop()
            self._listen(0.0)
            return self._look_at_it()

    def _set_up(self) -> None:
        directory = self._options.directory
        # Not in the directory: Spark's sockets lie there, and their paths must be short.
        scratch = TemporaryDirectory(prefix="sqe-chain-demo-", ignore_cleanup_errors=True)
        self._scratch = self._ends.enter_context(scratch)
        self._progress.note(f"data and logs are in {directory}")
        kafka = self._ends.enter_context(KafkaServer(directory / "kafka"))
        self._kafka = kafka.bootstrap
        self._stores = self._start_stores(directory)
        self._log = KafkaLog(self._kafka)
        self._ends.callback(self._log.close)
        self._log.create_topic(simulate.TOPIC, simulate.PARTITIONS)
        for flow in (standard, totals):
            for output in flow.outputs():
                self._log.create_topic(output.topics[0], output.partitions)
        self._progress.note(f"Kafka runs at {self._kafka}, states go to {', '.join(self._stores.values())}")
        random = Random(self._options.seed)
        self._standardize = self._victim("standardize", "standard", 0, random)
        kept = "totals_in_two_stores" if "large" in self._stores else "totals"
        self._totals = self._victim("totals", kept, OPEN_PLANS, random)
        self._victims = (self._standardize, self._totals)
        self._simulator = self._process("simulate", run_simulator(self._options, self._kafka))
        for victim in self._victims:
            victim.start()

    def _start_stores(self, directory: Path) -> dict[str, str]:
        """Store name, as the flow of the totals uses it -> address."""
        kind, found = self._options.store, dict[str, str]()
        if kind != "cassandra":
            found[""] = self._ends.enter_context(RedisServer(directory / "redis")).url
        if kind != "redis":
            server = self._ends.enter_context(CassandraServer(directory / "cassandra"))
            store = open_store(server.url)
            if isinstance(store, WithSchema):
                store.make_schema({"": 1})
            store.close()
            found["large" if kind == "mixed" else ""] = server.url
        return found

    def _let_them_live_and_die(self) -> None:
        """Kill until enough kills count, and until enough has been said twice."""
        while condemned := [victim for victim in self._victims if not self._may_live(victim)]:
            self._go_on()
            self._revive()
            for victim in condemned:
                if victim.is_watched:
                    self._look_and_strike(victim)
                elif victim.is_due(enough=0):
                    self._kill(victim)
                if victim.kills.hopeless:
                    raise DemoFailed(f"{victim.name}: {summary(victim.kills.all)}\n{victim.tail()}")
        for victim in self._victims:
            if self._down.pop(victim.name, None) is not None:
                victim.start()

    def _look_and_strike(self, victim: Victim) -> None:
        """Kill it if it has said enough that it has not committed; it stands still for the look.

        A look at a process that goes on is too late: between publishing and committing lie milliseconds.
        """
        if time.monotonic() < self._looked_s + (_HOLD_S if victim.life.batches else 0.0):
            return
        victim.hold()
        self._listen(0.0)
        self._measure()
        enough = max(1, self._replays_wanted() - victim.kills.said_twice)
        if not victim.silently(standing(self._log, standard).done) and victim.is_due(enough):
            self._kill(victim)
        else:
            victim.let_go()
        self._looked_s = time.monotonic()

    def _may_live(self, victim: Victim) -> bool:
        """Whether enough of its kills count, and the republisher has said enough twice."""
        enough = victim is self._totals or victim.kills.said_twice >= self._replays_wanted()
        return victim.kills.done and enough

    def _replays_wanted(self) -> int:
        return int(_REPLAYS_WANTED * max(self._options.messages, self._standardize.standing.end))

    def _kill(self, victim: Victim) -> None:
        victim.kill()
        self._listen(0.0)
        self._measure()
        kill = victim.bury(standing(self._log, totals if victim is self._totals else standard).done)
        more = f", plan {kill.open_plan} left between seal and commit" if kill.open_plan is not None else ""
        more += f", {kill.said_twice:,} messages said and not committed" if kill.said_twice else ""
        self._progress.note(
            f"kill -9 {victim.life.name}{more}" + ("" if kill.proved else " (does not count)")
        )
        self._down[victim.name] = time.monotonic()

    def _revive(self) -> None:
        """Start who was killed; the republisher when there is enough to say in one batch, and to say twice."""
        for victim in self._victims:
            since_s = self._down.get(victim.name)
            if since_s is None:
                continue
            wanted = 0 if victim is self._totals else self._replays_wanted() - victim.kills.said_twice
            if victim.standing.lag >= wanted or time.monotonic() - since_s > _DOWN_S:
                del self._down[victim.name]
                victim.start()

    def _drain(self) -> None:
        """Let the simulator produce what is missing, and wait until there is no lag at all."""
        self._progress.note("enough kills; now everything must be counted")
        self._simulator.tell("finish")
        while self._simulator.ended is None:
            self._go_on()
        self._simulator.kill()  # it has ended; hear the rest
        self._listen(0.0)
        if self._produced is None:
            raise DemoFailed(
                f"the simulator did not say how much it has produced\n{tail(self._simulator.log, 20)}"
            )
        self._progress.note(f"{self._produced:,} reports are produced")
        while not self._nothing_left():
            self._go_on()

    def _nothing_left(self) -> bool:
        """In this order: when the first is done, the input of the second grows no more."""
        return all(standing(self._log, flow).lag == 0 for flow in (standard, totals))

    def _audited(self) -> dict[str, str]:
        """Stage -> address of its store."""
        return {"": self._stores[""], "per-robot": self._stores.get("large", self._stores[""])}

    def _look_at_it(self) -> Outcome:
        truth = expected(reports(self._options.seed, self._produced or 0))
        return Outcome(
            truth=truth,
            stages=audit.audit(self._audited(), truth),
            records=topic_end(self._log, naive.TOPIC),
            reported_replays=self._totals.replays,
            naive=naive.count(naive.values(self._log, naive.TOPIC), truth),
            kills=[victim.kills for victim in self._victims],
        )

    # --- while time passes ----------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Listen for a moment, and look whether all is well."""
        self._listen(_LOOK_S)
        now = time.monotonic()
        if now > self._deadline:
            tails = "\n".join(victim.tail() for victim in self._victims)
            raise DemoFailed(f"not done within {self._options.timeout_s:.0f} s\n{tails}")
        if status := self._simulator.ended:
            raise DemoFailed(f"the simulator ended with status {status}\n{tail(self._simulator.log, 20)}")
        for victim in self._victims:
            victim.check_alive()
        if now >= self._measured_s + _MEASURE_S:
            self._measure()
        if now >= self._shown_s + _SHOW_S:
            self._shown_s = now
            for victim, flow in zip(self._victims, (standard, totals), strict=True):
                victim.standing = standing(self._log, flow)
            behind = max(0, self._totals.standing.lag - LEASH)
            self._simulator.tell(str(self._standardize.standing.done + max(0, LEASH - behind)))
            self._progress.show([victim.row for victim in self._victims])

    def _measure(self) -> None:
        """How much the republisher has said; what it has said in this life is its proof."""
        self._standardize.said = topic_end(self._log, naive.TOPIC)
        self._measured_s = time.monotonic()
        if self._standardize.said > self._standardize.said_before:
            self._standardize.life.prove(self._measured_s)

    def _listen(self, timeout_s: float) -> None:
        """Hear everything that was said, and wait a moment for the first of it."""
        victims = {victim.name: victim for victim in self._victims}
        while True:
            try:
                name, at_s, line = (
                    self._heard.get(timeout=timeout_s) if timeout_s else self._heard.get_nowait()
                )
            except Empty:
                return
            timeout_s = 0.0
            if name in victims:
                if note := victims[name].hear(line, at_s):
                    self._progress.note(note)
            elif line.strip().isdigit():
                self._produced = int(line)

    # --- processes ------------------------------------------------------------------------------------

    def _victim(self, name: str, attribute: str, open_plans: int, random: Random) -> Victim:
        command = run_service(self._options, attribute, self._kafka, self._stores)
        kills = Kills(name, self._options.kills, open_plans, random)
        return Victim(name, lambda: self._process(name, command), kills, self._log_file(name))

    def _process(self, name: str, command: list[str]) -> Process:
        process = Process(name, command, self._log_file(name), self._heard, ROOT, environment(self._scratch))
        self._ends.callback(process.kill)
        return process

    def _log_file(self, name: str) -> Path:
        return self._options.directory / f"{name}.log"
