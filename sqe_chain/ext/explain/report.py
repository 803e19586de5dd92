"""Shows a trace or a fate as lines of text, JSON or one page of HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape

from sqe_chain.cli.console import key_as_json, utc
from sqe_chain.errors.safe_text import json_line, one_line
from sqe_chain.ext.explain.fate import Fate
from sqe_chain.ext.explain.recording import Contribution
from sqe_chain.ext.explain.trace import Trace, name_of
from sqe_chain.flow.stored import StoredState, readable_key
from sqe_chain.operations.undecided import undecided_line

_LONGEST = 500
"""Characters of a key or a state that texts and pages show; JSON has all."""
_FAILED = 20
"""Failed records that texts and pages name."""
COLUMNS = ("record", "root", "event time", "counted", "state after it")


def _cut(text: str) -> str:
    rest = len(text) - _LONGEST
    return text if rest <= 0 else f"{text[:_LONGEST]} and {rest} more characters"


def key_text(key: bytes) -> str:
    """A key as texts show it; of a long one its beginning."""
    return _cut(readable_key(key))


def row_of(unit: Contribution) -> tuple[str, ...]:
    """A unit as the cells of `COLUMNS`; the root is shown where it is another record."""
    state = "" if unit.state is None else _cut(json_line(unit.state))
    time = utc(unit.timestamp_ms) if unit.timestamp_ms >= 0 else ""
    record, root = name_of(unit.place), name_of(unit.root)
    counted = f"{unit.refused or 'yes'}{', released' if unit.released else ''}"
    return record, "" if root == record else root, time, counted, state


def verdict_of(result: Trace, key: bytes) -> str:
    """Whether the stored state of a key is what the records give, as a sentence."""
    if result.missing:
        gaps = "; ".join(map(str, result.missing))
        return f"not checked: the topics no longer have {gaps}, so the records before are unknown"
    if key in result.not_known:
        return f"not known: {result.doubt(key)}"
    if key in result.different:
        lanes = len({unit.lane for unit in result.contributions if unit.key == key})
        order = (
            f". Its records come from {lanes} lanes; a fold that depends on their order cannot be compared"
            if lanes > 1
            else ""
        )
        return f"different: {result.first_difference(key)}{order}"
    counted = sum(1 for unit in result.contributions if unit.key == key and not unit.refused)
    after = "," if result.before is None else f" after plan {result.before.number}, whose state is trusted,"
    return f"equal: the stored state is what {counted} records give{after} as of plan {result.stored.plan.number}"


def trusted_line(result: Trace, key: bytes) -> str:
    """What a trace trusts, as a sentence; empty: nothing."""
    if result.before is None:
        return ""
    states = _cut(json_line(_states_as_objects(result, result.trusted, key)))
    return f"trusted, not checked: the states of the export, of plan {result.before.number}: {states}"


def undecided_lines(result: Trace, key: bytes) -> list[str]:
    """What does not count, as sentences: failed records with the Kafka key, then how many the flow has in all."""
    own = [record for record in result.undecided if record.key == key]
    lines = [f"not counted {record}: it failed and is {record.status} ({record.error})" for record in own]
    return [*lines[:_FAILED], *filter(None, [undecided_line(result.undecided)])]


def trace_as_object(result: Trace, key: bytes, most: int | None = None) -> dict[str, object]:
    """A trace of one key for JSON; `most` bounds the number of newest records and replays, None: all."""
    units = [unit_as_object(unit) for unit in result.contributions if unit.key == key]
    replays = [
        {"record": name_of(replay.place), "original": name_of(replay.original)} for replay in result.replays
    ]
    first = 0 if most is None else -most
    trusted = None
    if result.before is not None:
        states = _states_as_objects(result, result.trusted, key)
        trusted = {"plan": result.before.number, "states": states}
    return {
        "stage": result.stage.name,
        "key": key_as_json(key),
        "plan": result.stored.plan.number,
        "equal": result.equal,
        "verdict": verdict_of(result, key),
        "trusted": trusted,
        "stored": _states_as_objects(result, result.stored.states, key),
        "records": units[first:],
        "earlier": len(units) - len(units[first:]),
        "replays": replays[first:],
        "missing": [asdict(gap) for gap in result.missing],
        "failed": [str(record) for record in result.undecided if record.key == key],
        "failed_of_flow": len(result.undecided),
    }


def _states_as_objects(result: Trace, states: Sequence[StoredState], key: bytes) -> list[dict[str, object]]:
    codec = result.stage.codec
    if codec is None:
        return []
    return [
        {
            "window": state.span and list(state.span),
            "state": None if state.state is None else codec.to_json(state.state),
        }
        for state in states
        if state.key == key
    ]


def unit_as_object(unit: Contribution) -> dict[str, object]:
    """A unit for JSON."""
    return {
        "stage": unit.stage,
        "key": key_as_json(unit.key),
        "record": name_of(unit.place),
        "root": name_of(unit.root),
        "chain": unit.chain,
        "timestamp_ms": unit.timestamp_ms,
        "refused": unit.refused or None,
        "released": unit.released,
        "state": unit.state,
    }


def fate_as_object(fate: Fate) -> dict[str, object]:
    """A fate for JSON."""
    return {
        "record": name_of(fate.place),
        "verdict": fate.verdict,
        "reason": fate.reason,
        "chain": fate.chain,
        "original": None if fate.original is None else name_of(fate.original),
        "units": [unit_as_object(unit) for unit in fate.contributions],
    }


def page_of(result: Trace, key: bytes) -> str:
    """A trace of one key as a page of HTML that needs nothing else."""
    title = f"{result.stage.name} {key_text(key)}"
    return "".join(_page(title, result, key))


def _page(title: str, result: Trace, key: bytes) -> Iterator[str]:
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{_safe(title)}</title><style>body{{font:1rem/1.5 system-ui;margin:2rem;max-width:80rem}}"
        "table{border-collapse:collapse}th,td{border-bottom:1px solid GrayText;padding:.3rem .8rem;text-align:left}"
        "td{font-family:ui-monospace,monospace}</style></head><body>"
    )
    yield f"<h1>{_safe(title)}</h1><p>{_safe(verdict_of(result, key))}</p><p>{_safe(trusted_line(result, key))}</p><table><thead><tr>"
    yield "".join(f'<th scope="col">{_safe(column)}</th>' for column in COLUMNS)
    yield "</tr></thead><tbody>"
    for unit in result.contributions:
        if unit.key == key:
            yield f"<tr>{''.join(f'<td>{_safe(cell)}</td>' for cell in row_of(unit))}</tr>"
    yield "</tbody></table>"
    for line in undecided_lines(result, key):
        yield f"<p>{_safe(line)}</p>"
    if result.replays:
        yield "<h2>Ignored as replays</h2><ul>"
        for replay in result.replays:
            yield f"<li>{_safe(name_of(replay.place))} repeats {_safe(name_of(replay.original))}</li>"
        yield "</ul>"
    yield "</body></html>\n"


def _safe(text: str) -> str:
    return escape(one_line(text))
