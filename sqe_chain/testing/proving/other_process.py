"""The same calls in other processes, in which texts have other hashes, sets another order, and modules no past."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sqe_chain.engines.globals_at_start import Different, differing_globals, globals_of
from sqe_chain.errors import ConfigurationError
from sqe_chain.testing.proving.contents import Content
from sqe_chain.testing.proving.schedule import Schedule
from sqe_chain.testing.proving.trial import Bench
from sqe_chain.testing.proving.watching import Watch, move_tables_to
from sqe_chain.wings import needing

Calls = Mapping[tuple[int, Content], tuple[Content, str]]
"""(number of a function, arguments) -> what it gave, and the same as a text."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What another process gives.

    Attributes:
        runs: for each run its calls.
        different: globals that are something else there; see `globals_at_start`.
    """

    runs: list[Calls]
    different: list[Different]


HASH_SEEDS: Final = ("1", "2", "3")
"""Of the processes: even sets of two have another order in one of them, as a rule."""
_TIMEOUT_S: Final = 60


def calls_elsewhere(bench: Bench, inputs: Sequence[tuple[int, ...]]) -> list[Answer]:
    """What the functions of a flow give in each of the other processes.

    Args:
        bench: the flow and its records.
        inputs: runs; for each of them which of the records are fed.

    Returns:
        The answer of each process.

    Raises:
        ConfigurationError: the flow cannot be sent to another process, or does not work there.
    """
    with needing("another process", "prove"):
        from sqe_chain.engines.packing import PackedFlow  # noqa: PLC0415 - needs cloudpickle
    packed = PackedFlow.of(move_tables_to(bench.declared, Path()))  # nobody could send one in memory
    # Payloads may be of types that cannot be sent; their bytes are enough.
    records = [replace(record, feed=replace(record.feed, payload=None)) for record in bench.records]
    sent = pickle.dumps((packed, records, dict(bench.partitions), bench.settings, list(inputs)))
    path = os.pathsep.join(directory or "." for directory in sys.path)
    started = [
        subprocess.Popen(  # noqa: S603 - this Python
            [sys.executable, "-m", __name__],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for seed in HASH_SEEDS
    ]
    try:
        return [_answer(process, sent) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def set_by_program(function: object, answer: Answer) -> tuple[str, ...]:
    """The globals that a function can see, and that this program has set, while another process has them as their modules do."""
    seen = globals_of([function])
    return tuple(
        f"{each.place} of module {each.place.module!r} is {each.service} here and {each.here} there"
        for each in answer.different
        if each.place in seen
    )


def _answer(process: subprocess.Popen[bytes], sent: bytes) -> Answer:
    try:
        given, errors = process.communicate(sent, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"another process took more than {_TIMEOUT_S} s") from error
    if process.returncode:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise ConfigurationError(f"the flow does not work in another process: {last}")
    answer: Answer = Answer(*pickle.loads(given))  # noqa: S301 - from our own process
    return answer


def main() -> None:
    """Run what comes from the standard input; print the calls, pickled."""
    answer = os.dup(1)
    os.dup2(2, 1)  # what the user's functions print is no answer
    packed, records, partitions, settings, inputs = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own process
    watch = Watch(twice=False)
    answers: list[Any] = []
    with TemporaryDirectory(prefix="sqe-chain-prove-") as directory:
        bench = Bench(
            packed.unpack(same_globals=False), records, partitions, settings, watch, Path(directory)
        )
        for numbers in inputs:
            watch.forget()
            bench.run(Schedule(numbers))
            answers.append({place: (call.gave, call.text) for place, call in watch.calls.items()})
    with os.fdopen(answer, "wb") as out:
        pickle.dump((answers, differing_globals(packed.noted)), out)


if __name__ == "__main__":
    main()
