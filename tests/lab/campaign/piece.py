"""One piece: two services under load, a fault after the other drawn from a seed, then rest, and the totals.

    raw -standard-> mid -totals-> deltas, lines

What must be there at the end is added up here, by `tests.support.totals_deployment`, which reads stores by their documented layout.
"""

from __future__ import annotations

import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal

from sqe_chain.ext.dev import KafkaServer
from sqe_chain.ext.dev.process import wait_until
from tests.lab.campaign.servers import Disk, Servers, Store
from tests.support.other_clock import EVENT, jumping
from tests.support.service_processes import SUPERSEDED, ServiceProcess
from tests.support.totals_deployment import TotalsDeployment
from tests.support.waiting import PATIENCE_S, retry_until_available

Name = Literal["standard", "totals"]
ENGINES: Final[Mapping[str, tuple[str, ...]]] = {
    "inprocess": ("--engine", "inprocess"),
    "workers": ("--engine", "inprocess", "--workers", "2"),
    "spark": ("--engine", "spark", "--master", "local[2]", "--spark-conf", "spark.driver.memory=512m"),
}
SHARES: Final[Mapping[str, int]] = {
    "services killed": 50,
    "zombies": 15,
    "brokers killed": 10,
    "stores killed": 10,
    "times without answers": 8,
    "wall clocks jumped": 5,
    "full disks of stores": 1,
    "full disks of brokers": 1,
}
"""Fault -> how often it is drawn, in parts of a hundred."""
_DAY_MS: Final = 86_400_000
_FED: Final = 200
"""Reports before each fault."""


class Piece:
    """One deployment over many lives of its services.

    Args:
        servers: broker and store, of this piece alone.
        directory: for logs.
        engine: of the service with stages, one of `ENGINES`.
        seed: of the faults, and of what they hit.

    Attributes:
        found: fault -> how often it happened.
        wrong: what a service did that it must not do.
    """

    def __init__(self, servers: Servers, directory: Path, engine: str, seed: int) -> None:
        self.servers, self.draw, self.found = servers, random.Random(seed), Counter[str]()
        self.wrong: list[str] = []
        self.deployment = TotalsDeployment(servers.broker.bootstrap, servers.store.url, directory)
        self.deployment.service_store = servers.service_store
        self._engine = engine
        self._lives: dict[Name, ServiceProcess] = {}
        self._faults: dict[str, Callable[[], None]] = {
            "services killed": self._kill_a_service,
            "zombies": self._make_a_zombie,
            "brokers killed": self._kill_the_broker,
            "stores killed": self._kill_the_store,
            "wall clocks jumped": self._jump,
        }
        if servers.proxy is not None:
            self._faults["times without answers"] = self._lose_answers
        for fault, server, disk in (
            ("full disks of stores", servers.store, servers.store_disk),
            ("full disks of brokers", servers.broker, servers.broker_disk),
        ):
            if disk.own:
                self._faults[fault] = partial(self._fill, server, disk)

    def run(self, faults: int) -> list[str]:
        """Let that many faults happen, then let both services end, and compare.

        Returns:
            What is wrong: nothing, or why.
        """
        self._kill_before_commit()  # each piece has something that must not count twice
        self._begin("standard")
        self._begin("totals")
        weights = [SHARES[fault] for fault in self._faults]
        for number in range(faults):
            self._feed()
            fault = self.draw.choices([*self._faults], weights)[0]
            self._faults[fault]()
            self.found[fault] += 1
            if number % 10 == 9:
                retry_until_available(
                    self.deployment.check_while_running
                )  # the judge has lost its connections, too
            if any(self._ended(name) for name in self._lives):
                return self.wrong
        self._finish()
        return self.wrong

    def close(self) -> None:
        """End what still runs."""
        self.deployment.close()

    def _feed(self) -> None:
        self.deployment.feed(_FED)
        self.found["inputs"] += _FED

    # --- lives -----------------------------------------------------------------------------

    def _begin(
        self, name: Name, *more: str, environment: Mapping[str, str] | None = None, at: str = ""
    ) -> None:
        engine = self._engine if name == "totals" else "inprocess"
        self.deployment.environment = environment or {}
        arguments = (*ENGINES[engine][2:], "--create-topics", "0", *more)
        self._lives[name] = self.deployment.start(name, *arguments, engine=ENGINES[engine][1], signal_at=at)

    def _ended(self, name: Name) -> bool:
        """Whether a life has ended that nobody has killed: that is a defect."""
        life = self._lives[name]
        if life.status() is None:
            return False
        self.wrong.append(f"{name} ended by itself with status {life.status()}:\n{life.text[-3000:]}")
        return True

    @staticmethod
    def _wait_until_it_works(life: ServiceProcess) -> None:
        """Until it has recovered: from then on it publishes and persists."""
        works = wait_until(lambda: bool(life.all("recovered")) or life.status() is not None, PATIENCE_S)
        assert works, life.text[-3000:]

    def _either(self) -> Name:
        return "standard" if self.draw.random() < 0.4 else "totals"

    def _pause(self, longest_s: float) -> None:
        time.sleep(self.draw.uniform(0, longest_s))  # the moment of a fault must be random

    # --- faults ----------------------------------------------------------------------------

    def _kill_a_service(self) -> None:
        """At any moment; the republisher every other time between a publication and its commit, which lie close together."""
        name = self._either()
        if self.draw.random() < 0.8:  # the others die while they start
            self._wait_until_it_works(self._lives[name])
        self._pause(0.4)
        self._lives[name].kill()
        if name == "standard" and self.draw.random() < 0.5:
            self._kill_before_commit()
        self._begin(name)

    def _kill_before_commit(self) -> None:
        """A life of the republisher that publishes, and dies before it notes so: its outputs come again, at new offsets."""
        self._begin("standard", at="published:SIGKILL")
        self._feed()
        self._lives["standard"].wait()
        self.found["services killed"] += 1

    def _make_a_zombie(self) -> None:
        """A run is stopped, another one takes over, and the first goes on."""
        name = self._either()
        zombie = self._lives[name]
        self._wait_until_it_works(zombie)
        self._pause(0.3)
        zombie.pause()
        self._begin(name, "--takeover")
        self._feed()
        self._wait_until_it_works(self._lives[name])
        self._pause(0.5)
        zombie.resume()
        status = zombie.wait()
        if status not in {SUPERSEDED, 0}:
            self.wrong.append(f"a zombie of {name} ended with status {status}:\n{zombie.text[-3000:]}")

    def _kill_the_broker(self) -> None:
        self._pause(0.3)
        self.servers.broker.kill()
        self._pause(1.0)
        self.servers.broker.start()

    def _kill_the_store(self) -> None:
        self._pause(0.3)
        self.servers.store.kill()
        self._pause(1.0)
        self.servers.store.start()

    def _lose_answers(self) -> None:
        """The store has done what it was asked for, and nobody hears of it."""
        assert self.servers.proxy is not None
        self._wait_until_it_works(self._lives["totals"])
        lost = self.draw.randint(1, 3)
        self.servers.proxy.responses_to_drop = lost
        self._pause(1.0)
        self.found["answers lost"] += lost - self.servers.proxy.responses_to_drop
        self.servers.proxy.responses_to_drop = 0

    def _jump(self) -> None:
        """A service dies. The clock of its next life jumps to another day while it works."""
        name = self._either()
        self._lives[name].kill()
        environment = jumping(self.draw.randint(0, 2_000), self.draw.randint(-3 * _DAY_MS, 3 * _DAY_MS))
        self._begin(name, environment=environment)
        self._lives[name].wait_for(EVENT)

    def _fill(self, server: KafkaServer | Store, disk: Disk) -> None:
        """No room is left for some seconds, while there is work; a server that has ended by that, or takes no more writes, starts again."""
        standard = self._lives["standard"]
        standard.pause()
        self._feed()
        disk.fill()
        standard.resume()
        self._pause(4.0)
        disk.free()
        server.kill()
        server.start()

    # --- the end ---------------------------------------------------------------------------

    def _finish(self) -> None:
        """Without further faults the lag goes to zero, both end cleanly, and every total is right."""
        self.deployment.wait_until_caught_up(self._lives["standard"], self._lives["totals"])
        for name, life in self._lives.items():
            status = life.terminate()
            if status != 0:
                self.wrong.append(f"{name} ended with status {status}:\n{life.text[-3000:]}")
        try:
            retry_until_available(self.deployment.check)
        except AssertionError:
            self.wrong.append(f"the totals are wrong: {traceback.format_exc(limit=-1)}")
        counted = [line for run in self.deployment.runs for line in run.all("committed")]
        self.found["replays ignored"] = sum(int(line.get("replays", 0)) for line in counted)
