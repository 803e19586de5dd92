"""A flow of words whose code changes while it runs, as processes declare it.

    {prefix}.raw -standard-> {prefix}.words -notes-> {prefix}.out, {prefix}.more

Environment variables configure it: CHAOS_PREFIX (of all names), SWITCHED_CODE (JSON: fields of `Code`), CHAOS_SIGNAL (see
`signal_at_event`), CHAOS_CALL (see `kill_at_call`).
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.flow import Flow
from sqe_chain.plans.retrying import Retry, T
from tests.support.word_flows import first_letter


@dataclass(frozen=True)
class Code:
    """What a declaration of the flow may have in another way.

    Attributes:
        fold: "plain"; "other", which gives the same in another way; or "twice", which counts each number twice.
        key: of the first stage: by the "first" or the "last" character.
        partitions: number of state partitions.
        further: whether there is a further stage.
        field: whether states of one stage have a second field.
        odd: whether only odd numbers count.
        store: of the first stage; empty: the metadata store.
        output: name of its output.
        loud: whether it publishes capitals.
        more: whether it has a second output.
    """

    fold: str = "plain"
    key: str = "first"
    partitions: int = 2
    further: bool = True
    field: bool = True
    odd: bool = False
    store: str = ""
    output: str = "echo"
    loud: bool = False
    more: bool = False


@dataclass
class Sum:
    """Words of a key, and the sum of their numbers."""

    count: int = 0
    total: int = 0


@dataclass
class Noted:
    """The sum of numbers, with a field that other code has not."""

    total: int = 0
    length: int = 0


@dataclass
class NotedWithout:
    """The same type, without the field."""

    total: int = 0


NotedWithout.__name__ = NotedWithout.__qualname__ = "Noted"


def _number(word: StringValue) -> int:
    return int(word.value[1:])


def _last_digit(word: StringValue) -> str:
    return word.value[-1]


def _is_odd(word: StringValue) -> bool:
    return _number(word) % 2 == 1


def _add(state: Sum, word: StringValue) -> None:
    state.count += 1
    state.total += _number(word)


def _add_otherwise(state: Sum, word: StringValue) -> None:
    state.count, state.total = sum((state.count, 1)), sum((_number(word), state.total))


def _add_twice(state: Sum, word: StringValue) -> None:
    state.count += 1
    state.total += 2 * _number(word)


def _note(state: Any, word: StringValue) -> None:
    state.total += _number(word)
    if isinstance(state, Noted):
        state.length += len(word.value)


_FOLDS: Final = {"plain": _add, "other": _add_otherwise, "twice": _add_twice}


def _quiet(state: Sum, word: StringValue) -> list[StringValue]:
    _FOLDS[CODE.fold](state, word)
    return [word]


def _loud(state: Sum, word: StringValue) -> list[StringValue]:
    _FOLDS[CODE.fold](state, word)
    return [StringValue(value=word.value.upper())]


def _lower_first(word: StringValue) -> str:
    return first_letter(word).lower()


def kill_at_call(text: str) -> None:
    """Kill this process at a call to a broker or store, counted from its start: ``before:NUMBER`` or ``after:NUMBER``."""
    when, _, number = text.partition(":")
    numbers, call = count(1), Retry.call

    def called(self: Retry, what: str, action: Callable[[], T]) -> T:
        last = next(numbers) == int(number)
        if last and when == "before":
            os.killpg(0, signal.SIGKILL)
        result = call(self, what, action)
        if last:
            os.killpg(0, signal.SIGKILL)
        return result

    Retry.call = called  # type: ignore[method-assign]


_PREFIX = os.environ.get("CHAOS_PREFIX", "switched")
CODE = Code(**json.loads(os.environ.get("SWITCHED_CODE", "{}")))

standard = Flow(f"{_PREFIX}-standard")
standard.source(f"{_PREFIX}.raw", StringValue).to(f"{_PREFIX}.words", key=first_letter, partitions=2)

notes = Flow(f"{_PREFIX}-notes", state_partitions=CODE.partitions)
_words = notes.source(f"{_PREFIX}.words", StringValue)
if CODE.odd:
    _words = _words.filter(_is_odd)
_sums = _words.aggregate(
    "sums",
    key=first_letter if CODE.key == "first" else _last_digit,
    state=Sum,
    fold=_loud if CODE.loud else _quiet,
    store=CODE.store or None,
)
_sums.to(f"{_PREFIX}.out", name=CODE.output, key=_lower_first, partitions=2)
if CODE.more:
    _sums.to(f"{_PREFIX}.more", name="more", key=_lower_first, partitions=2)
_words.aggregate("noted", key=first_letter, state=Noted if CODE.field else NotedWithout, fold=_note)
if CODE.further:
    _words.aggregate("further", key=first_letter, state=Sum, fold=_add)

if "CHAOS_CALL" in os.environ:
    kill_at_call(os.environ["CHAOS_CALL"])
if "CHAOS_SIGNAL" in os.environ:
    from tests.support.signal_at_event import install_signal

    install_signal(os.environ["CHAOS_SIGNAL"])
