"""Several live runs in threads, of which exactly one advances at a time, in an order that the test chooses.

Each thread pauses at every fault point (`fault_points`). So an older run can act between any two requests of a newer
one, which pausing and resuming it once cannot show.
"""

from __future__ import annotations

import random
import threading

from sqe_chain.errors import Superseded
from sqe_chain.protocol.settings import Settings
from sqe_chain.testing import Crash
from tests.support.checked_pipeline import CheckedPipeline
from tests.support.fault_points import FaultPoints
from tests.support.unit_id_flows import unit_id_flow


class SteppedRun:
    """A run in a thread of its own that `advance` moves from fault point to fault point.

    Attributes:
        alive: whether it is still running.
        error: that ended it; None when it has caught up.
    """

    def __init__(self, pipeline: CheckedPipeline, points: PausingFaultPoints) -> None:
        self._pipeline = pipeline
        self._may_continue = threading.Semaphore(0)
        self._paused = threading.Semaphore(0)
        self._killed = False
        self.alive = True
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        points.runs_by_thread[self._thread] = self
        self._thread.start()
        self._paused.acquire()

    def advance(self, points: int) -> None:
        """Let it pass this many points, or fewer if it ends."""
        for _ in range(points):
            if not self.alive:
                return
            self._may_continue.release()
            self._paused.acquire()

    def kill(self) -> None:
        """Make it crash at its present point."""
        self._killed = True
        self.advance(1)

    def pause(self) -> None:
        """Wait, in the run's own thread, until it may continue."""
        self._paused.release()
        self._may_continue.acquire()
        if self._killed:
            raise Crash("killed")

    def _run(self) -> None:
        self._paused.release()
        self._may_continue.acquire()
        try:
            service = self._pipeline.service.start()
            while service.batch().worked:
                pass
        except BaseException as error:  # noqa: BLE001 - the test checks it
            self.error = error
        self.alive = False
        self._paused.release()


class PausingFaultPoints(FaultPoints):
    """Fault points at which stepped runs pause; the test's own thread does not."""

    def __init__(self) -> None:
        super().__init__()
        self.runs_by_thread: dict[threading.Thread, SteppedRun] = {}

    def point(self, name: str) -> None:
        super().point(name)
        run = self.runs_by_thread.get(threading.current_thread())
        if run is not None:
            run.pause()


def random_pipeline(draw: random.Random, seed: int) -> CheckedPipeline:
    """A pipeline with random layout, chunk size, batch size and poison policy."""
    stages, parts = draw.choice([1, 2, 2]), draw.choice([1, 2, 3, 3])
    poison = draw.choice(["stop", "dead_letter", "skip"])
    settings = Settings(max_records=draw.choice([3, 5, 400_000]), keep_plans=draw.choice([2, 3, 20]))
    flow = unit_id_flow(stages, parts, poison=poison, buckets=draw.choice([1, 1, 1, 3]))
    pipeline = CheckedPipeline(flow, seed=seed, max_rows=draw.choice([1, 1, 2, 5_000]), settings=settings)
    pipeline.service.clock._stop_after = 1 << 60
    return pipeline


def run_interleaved(seed: int, *, actions: int = 40) -> CheckedPipeline:
    """Execute one random schedule of up to three live runs.

    Raises:
        AssertionError: an invariant does not hold, or a run stopped though nothing was wrong.
    """
    draw = random.Random(seed)
    pipeline = random_pipeline(draw, seed)
    points = PausingFaultPoints()
    points.after_write = pipeline.check_invariants
    pipeline.points = pipeline.service.script = points
    pipeline.service.log.points = pipeline.service.stores[""].points = points  # type: ignore[attr-defined]
    poison = 0.0 if pipeline.flow.poison == "stop" else 0.1
    runs: list[SteppedRun] = []
    for _ in range(actions):
        if draw.random() < 0.3:
            pipeline.feed(draw.randrange(4), poison)
            pipeline.republish(draw.choice([None, None, 1, 4]))
        if len(runs) < 3 and (not runs or draw.random() < 0.3):
            runs.append(SteppedRun(pipeline, points))
        run = draw.choice(runs)
        run.advance(draw.choice([1, 2, 5, 20, 60]))
        if draw.random() < 0.1:
            run.kill()
        runs = [run for run in runs if not has_ended(run)]
    for run in runs:
        run.kill()
        has_ended(run)
    pipeline.service.service = None
    pipeline.republish()
    pipeline.run_until_caught_up()
    pipeline.check_at_rest()
    return pipeline


def has_ended(run: SteppedRun) -> bool:
    """Whether a run has ended; raises when it ended with an unexpected error."""
    if not run.alive and run.error is not None and not isinstance(run.error, Crash | Superseded):
        raise AssertionError(f"a run ended with {run.error!r}") from run.error
    return not run.alive
