"""A demo from beginning to end: servers, simulator, the republisher and the service after it, kills, judgement."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random
from tempfile import TemporaryDirectory
from typing import Generic, TypeVar

from services import naive, simulate
from services.demo.commands import (
    ROOT,
    STANDARD,
    DemoOptions,
    environment,
    run_page,
    run_service,
    run_simulator,
)
from services.demo.kills import Kills
from services.demo.positions import standing, topic_end
from services.demo.process import Process, tail
from services.demo.progress import DemoProgress
from services.demo.scene import Ended, Scene
from services.demo.verdict import LEAST_REPLAYS, DemoOutcome
from services.demo.victim import DemoFailed, Victim, summary
from services.fastening import standard
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev import KafkaServer

Outcome = TypeVar("Outcome", bound=DemoOutcome)
OPEN_PLANS = 2
LEASH = 50_000
"""About how many messages may wait for a service that is down, which limits its first batch."""

_DOWN_S = 8.0
"""How long a service stays down at most. The messages that wait then make its first batch a large one."""
_HOLD_S = 0.2
"""Time between two stops of a service to read its progress; in its first, large batch there is no minimum."""
_LOOK_S = 0.02
_MEASURE_S = 0.1
_SHOW_S = 0.5
_REPLAYS_WANTED = (
    2 * LEAST_REPLAYS
)  # as a share of the raw messages; with margin, because the share of what they become is smaller


class DemoStory(Generic[Outcome]):
    """One run of a demo: what is judged is the scene's service after the republisher."""

    def __init__(self, options: DemoOptions, scene: Scene[Outcome], progress: DemoProgress) -> None:
        self._options = options
        self._scene = scene
        self._flows = (standard, scene.flow)
        self._progress = progress
        self._deadline = time.monotonic() + options.timeout
        self._heard: SimpleQueue[tuple[str, float, str]] = SimpleQueue()
        self._ends = ExitStack()
        self._produced: int | None = None
        self._measured_s = self._shown_s = self._looked_s = 0.0
        self._down: dict[str, float] = {}

    def tell(self) -> Outcome:
        """Run the whole demo; returns the outcome.

        Raises:
            DemoFailed: a service ended by itself, or something took too long.
            ChainError: a server could not be started or does not answer.
        """
        with self._ends:
            self._set_up()
            self._kill_again_and_again()
            self._drain()
            for victim in self._victims:
                victim.stop()
            self._listen(0.0)
            self._progress.note("everything is counted; now it is compared with what it should be")
            return self._scene.judge(
                Ended(
                    log=self._log,
                    produced=self._produced or 0,
                    replays=self._counting.replays,
                    kills=[victim.kills for victim in self._victims],
                    scratch=self._scratch,
                )
            )

    def _set_up(self) -> None:
        directory = self._options.directory
        # Not in the user's directory: Spark creates Unix sockets here, and their paths must be short.
        scratch = TemporaryDirectory(prefix="sqe-chain-demo-", ignore_cleanup_errors=True)
        self._scratch = self._ends.enter_context(scratch)
        self._progress.note(f"data and logs are in {directory}")
        with ThreadPoolExecutor(1) as beside:  # servers take a while to start
            started = beside.submit(self._scene.start, directory, self._ends)
            kafka = self._ends.enter_context(KafkaServer(directory / "kafka"))
            self._kafka = kafka.bootstrap
            self._stores = started.result()
        self._log = KafkaLog(self._kafka)
        self._ends.callback(self._log.close)
        self._log.create_topic(simulate.TOPIC, simulate.PARTITIONS)
        for flow in self._flows:
            for output in flow.compile().outputs:
                self._log.create_topic(output.topic, output.partitions)
        self._progress.note(f"Kafka runs at {self._kafka}, states go to {', '.join(self._stores.values())}")
        random = Random(self._options.seed)
        options, scene = self._options, self._scene
        self._standardize = self._victim(
            "standardize", STANDARD, 0, random, options.republisher_engine or options.engine
        )
        open_plans = min(OPEN_PLANS, options.kills)
        self._counting = self._victim(scene.name, scene.target, open_plans, random, options.engine)
        self._victims = (self._standardize, self._counting)
        self._simulator = self._process("simulate", run_simulator(self._options, self._kafka))
        if options.web is not None:
            self._process("web", run_page(options, [scene.target], self._kafka, self._stores))
            self._progress.note(f"the page is at http://127.0.0.1:{options.web}/")
        for victim in self._victims:
            victim.start(0)

    def _kill_again_and_again(self) -> None:
        """Kill until enough kills count, and until enough messages have been published twice."""
        while condemned := [victim for victim in self._victims if not self._may_live(victim)]:
            self._wait_a_moment()
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
                victim.start(self._done(victim))

    def _look_and_strike(self, victim: Victim) -> None:
        """Kill it if it has published enough that is not committed; stopped meanwhile, since a running process would commit within milliseconds."""
        if time.monotonic() < self._looked_s + (_HOLD_S if victim.life.batches else 0.0):
            return
        victim.hold()
        self._listen(0.0)
        self._measure()
        enough = max(1, self._replays_wanted() - victim.kills.said_twice)
        if not victim.has_committed_more(standing(self._log, standard).done) and victim.is_due(enough):
            self._kill(victim)
        else:
            victim.let_go()
        self._looked_s = time.monotonic()

    def _may_live(self, victim: Victim) -> bool:
        """Whether enough of its kills count, and the republisher has published enough messages twice."""
        enough = victim is self._counting or victim.kills.said_twice >= self._replays_wanted()
        return victim.kills.done and enough

    def _replays_wanted(self) -> int:
        if not self._options.kills:
            return 0
        return int(_REPLAYS_WANTED * max(self._options.messages, self._standardize.standing.end))

    def _kill(self, victim: Victim) -> None:
        victim.kill()
        self._listen(0.0)
        self._measure()
        kill = victim.bury(self._done(victim))
        more = f", plan {kill.open_plan} left between seal and commit" if kill.open_plan is not None else ""
        more += f", {kill.said_twice:,} messages said and not committed" if kill.said_twice else ""
        self._progress.note(
            f"kill -9 {victim.life.name}{more}" + ("" if kill.proved else " (does not count)")
        )
        self._down[victim.name] = time.monotonic()

    def _done(self, victim: Victim) -> int:
        """How many inputs it has committed."""
        return standing(self._log, self._flows[self._victims.index(victim)]).done

    def _revive(self) -> None:
        """Start killed services again; the republisher when enough input waits for a large first batch."""
        for victim in self._victims:
            since_s = self._down.get(victim.name)
            if since_s is None:
                continue
            wanted = 0 if victim is self._counting else self._replays_wanted() - victim.kills.said_twice
            if victim.standing.lag >= wanted or time.monotonic() - since_s > _DOWN_S:
                del self._down[victim.name]
                victim.start(self._done(victim))

    def _drain(self) -> None:
        """Let the simulator finish, and wait until no service has a lag."""
        self._progress.note("enough kills; now everything must be counted")
        self._simulator.tell("finish")
        while self._simulator.ended is None:
            self._wait_a_moment()
        self._simulator.kill()  # it has ended: this reads the rest of its output
        self._listen(0.0)
        if self._produced is None:
            raise DemoFailed(
                f"the simulator did not report how much it has produced\n{tail(self._simulator.log, 20)}"
            )
        self._progress.note(f"{self._produced:,} reports are produced")
        while not self._nothing_left():
            self._wait_a_moment()

    def _nothing_left(self) -> bool:
        """Whether no service has a lag. In this order: once the first has none, the input of the second is complete."""
        return all(standing(self._log, flow).lag == 0 for flow in self._flows)

    # --- while time passes ----------------------------------------------------------------------------

    def _wait_a_moment(self) -> None:
        """Read the output of processes for a moment, and check that all is well."""
        self._listen(_LOOK_S)
        now = time.monotonic()
        if now > self._deadline:
            tails = "\n".join(victim.tail() for victim in self._victims)
            raise DemoFailed(f"not done within {self._options.timeout:.0f} s\n{tails}")
        if status := self._simulator.ended:
            raise DemoFailed(f"the simulator ended with status {status}\n{tail(self._simulator.log, 20)}")
        for victim in self._victims:
            victim.check_alive()
        if now >= self._measured_s + _MEASURE_S:
            self._measure()
        if now >= self._shown_s + _SHOW_S:
            self._shown_s = now
            for victim, flow in zip(self._victims, self._flows, strict=True):
                victim.standing = standing(self._log, flow)
            # The simulator may run ahead of the slower of the two services by LEASH messages.
            behind = max(0, self._counting.standing.lag - LEASH)
            self._simulator.tell(str(self._standardize.standing.done + max(0, LEASH - behind)))
            self._progress.show([victim.row for victim in self._victims])

    def _measure(self) -> None:
        """Read how much the republisher has published; anything published in this life makes a kill count."""
        self._standardize.said = topic_end(self._log, naive.TOPIC)
        self._measured_s = time.monotonic()
        if self._standardize.said > self._standardize.said_before:
            self._standardize.life.prove(self._measured_s)

    def _listen(self, timeout_s: float) -> None:
        """Read all lines in the queue; wait for the first one up to this time."""
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

    def _victim(self, name: str, target: str, open_plans: int, random: Random, engine: str) -> Victim:
        command = run_service(self._options, target, self._kafka, self._stores, engine)
        kills = Kills(name, self._options.kills, open_plans, random)
        return Victim(
            name, lambda: self._process(name, command), kills, self._log_file(name), levels=self._scene.levels
        )

    def _process(self, name: str, command: list[str]) -> Process:
        added = {**environment(self._scratch), **self._scene.environment}
        process = Process(name, command, self._log_file(name), self._heard, ROOT, added)
        self._ends.callback(process.kill)
        return process

    def _log_file(self, name: str) -> Path:
        return self._options.directory / f"{name}.log"
