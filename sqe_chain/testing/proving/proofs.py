"""`prove`: a flow of the user, run through every single fault, replays, zombies, and schedules drawn from a seed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.settings import Settings
from sqe_chain.testing.proving.proof import Proof
from sqe_chain.testing.proving.prover import Found, Prover
from sqe_chain.testing.proving.schedule import Inputs, Schedule, list_feeds, make_records
from sqe_chain.testing.proving.trial import Bench
from sqe_chain.testing.proving.watching import Watch


def prove(  # noqa: PLR0913 - limits of a proof, by their names
    flow: Flow | CompiledFlow,
    inputs: Inputs,
    *,
    partitions: Mapping[str, int] | None = None,
    settings: Settings | None = None,
    seconds: float = 10.0,
    schedules: int = 1_000,
    seed: int = 0,
    other_processes: bool = True,
    progress: bool | None = None,
) -> Proof:
    """Run a flow through every single fault, and compare with the undisturbed run.

    Faults come at each call of broker, store and table. Each function must give the same for the same arguments, also a year
    later and in other processes; docs/break-your-own-flow.md has what is tried. Tables are in a temporary directory, files are
    read where they are.

    Args:
        flow: the flow; it is not changed, and nothing of it is run elsewhere.
        inputs: topic -> payloads, fed in turns; or a list of `Feed`, whose arguments are those of `Rehearsal.feed`. Twenty
            records that reach every branch are better than a thousand that do not.
        partitions: input topic -> partitions, 1 where absent.
        settings: how the service runs.
        seconds: time after which no schedule is begun. What is found then is made as small as it can be, however long it takes.
        schedules: schedules at most. The same number and seed run the same schedules.
        seed: of the schedules that are drawn.
        other_processes: whether functions are called in other processes, too; a flow in a module that cannot be imported there
            cannot be sent.
        progress: whether a bar is shown; by default if there is a terminal.

    Returns:
        What was run, and what was not reached.

    Raises:
        NotDeterministic: functions of the flow are to blame: which ones, where, and for which inputs.
        NotExact: the results differ, or an invariant does not hold; with the shortest schedule that shows it.
        ConfigurationError: inputs that the flow does not read.
        ChainError: the flow stops for an input without any fault: see its poison policy.
    """
    if not seconds > 0 or type(schedules) is not int or schedules < 1:
        raise ConfigurationError(f"seconds={seconds!r}, schedules={schedules!r}. Expected both above 0")
    with _prover(flow, inputs, partitions, settings, seed) as prover:
        prover.until, prover.most = time.monotonic() + seconds, schedules
        with _progress_bar(f"prove {flow.name}", schedules, wanted=progress) as advance:
            return prover.run(advance, other_processes=other_processes)


def prove_schedule(
    flow: Flow | CompiledFlow,
    inputs: Inputs,
    schedule: Schedule,
    *,
    partitions: Mapping[str, int] | None = None,
    settings: Settings | None = None,
) -> None:
    """Run a flow through one schedule, such as `prove` has printed it, or Hypothesis has drawn it.

    Args:
        flow: see `prove`.
        inputs: see `prove`.
        schedule: which of them are fed, and what happens.
        partitions: see `prove`.
        settings: see `prove`.

    Raises:
        NotDeterministic: functions of the flow are to blame.
        NotExact: the results differ from those of the undisturbed run, or an invariant does not hold.
        ConfigurationError: inputs that the flow does not read, or that there are not.
        ChainError: the flow stops for an input without any fault.
    """
    with _prover(flow, inputs, partitions, settings, 0) as prover:
        if not set(schedule.inputs) <= set(range(len(prover.bench.records))):
            raise ConfigurationError(
                f"inputs={schedule.inputs!r}. Expected numbers of the {len(prover.bench.records)} records, from 0"
            )
        try:
            prover.attempt(schedule)
        except Found as found:
            found.shrunk = True
            raise prover.error(found) from None


@contextmanager
def _prover(
    flow: Flow | CompiledFlow,
    inputs: Inputs,
    partitions: Mapping[str, int] | None,
    settings: Settings | None,
    seed: int,
) -> Iterator[Prover]:
    """What runs the schedules of a flow, and forgets everything afterwards."""
    compiled = flow.compile()
    known, own = partitions or {}, settings or Settings()
    records = make_records(compiled, list_feeds(inputs), known)
    with TemporaryDirectory(prefix="sqe-chain-prove-") as directory:
        watch = Watch()
        bench = Bench(compiled, records, known, own, watch, Path(directory))
        try:
            yield Prover(bench, watch, seed)
        finally:
            bench.clear()


@contextmanager
def _progress_bar(title: str, total: int, *, wanted: bool | None) -> Iterator[Callable[[], object]]:
    """Show a bar on the standard error output, where there is a terminal and rich; gives what to call after each step."""
    shown = sys.stderr.isatty() if wanted is None else wanted
    if not shown or find_spec("rich") is None:
        yield lambda: None
        return
    from rich.console import Console  # noqa: PLC0415 - an extra
    from rich.progress import Progress  # noqa: PLC0415 - an extra

    with Progress(console=Console(stderr=True, force_terminal=wanted), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
