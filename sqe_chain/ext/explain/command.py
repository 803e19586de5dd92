"""`sqe-chain trace`, `why-not` and `audit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic
from typing import Annotated, Literal

import typer

from sqe_chain.cli.console import ERR, OUT, print_json, print_table
from sqe_chain.cli.listening import prepare_command
from sqe_chain.cli.loading import load_flow
from sqe_chain.cli.option_table import Option
from sqe_chain.cli.options import FlowArgument, JsonOption, ServerOptions, command
from sqe_chain.cli.values import key_named, place_named
from sqe_chain.errors.safe_text import one_line
from sqe_chain.ext.explain.audit import AuditedStage, audit, audited_stages
from sqe_chain.ext.explain.fate import find_fate
from sqe_chain.ext.explain.progress import ReadingBar, Slowed
from sqe_chain.ext.explain.reading import Pass
from sqe_chain.ext.explain.report import (
    COLUMNS,
    fate_as_object,
    key_text,
    page_of,
    row_of,
    trace_as_object,
    trusted_line,
    undecided_lines,
    verdict_of,
)
from sqe_chain.ext.explain.trace import check_traceable, name_of, trace
from sqe_chain.ext.explain.views import AuditedView
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.stored import readable_key
from sqe_chain.operations.undecided import find_undecided, undecided_line
from sqe_chain.plans.settings import Settings
from sqe_chain.runtime.durations import duration_ms
from sqe_chain.runtime.launching import Prepared
from sqe_chain.runtime.states import stage_named

_SinceOption = Annotated[
    Path | None,
    Option("Trust the states of this file of `sqe-chain export`, and read only what came after it.", "FILE"),
]
_SHOWN = 20
"""Replays listed in text output."""


@command
def trace_key(
    target: FlowArgument,
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="Name of the stage.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key (0x... for bytes).")],
    *,
    servers: ServerOptions,
    form: Annotated[
        Literal["text", "json", "html"], Option("How the trace is shown.", "text|json|html", name="format")
    ] = "text",
    since: _SinceOption = None,
) -> None:
    """Show which records made the state of a key, and compare it with the stored state.

    The command folds the topics again in memory. It changes nothing, and the flow's service may run meanwhile. It lists each
    record that reached the key, with the message that caused it and the state after it, and the ignored replays.

    The exit status is 0 if the stored state is what the records give. Else it is 1, and the command names the first record
    that makes the difference. It is 3 if that is not known. Either retention has deleted records, or the state differs and records of the
    key were released: they counted later than in the topics.
    """
    flow = load_flow(target)
    node, wanted = stage_named(flow, stage), key_named(key)
    check_traceable(node)
    with _reading(flow, servers) as (prepared, reading, _):
        result = trace(prepared.env, node, [wanted], since=since, reading=reading)
    if form == "json":
        print_json(trace_as_object(result, wanted))
    elif form == "html":
        OUT.file.write(page_of(result, wanted))
    else:
        print_table(COLUMNS, [row_of(unit) for unit in result.contributions])
        for replay in result.replays[:_SHOWN]:
            OUT.print(f"ignored {name_of(replay.place)}: it repeats {name_of(replay.original)}")
        if len(result.replays) > _SHOWN:
            OUT.print(
                f"ignored {len(result.replays) - _SHOWN} more records that repeat others; --format json lists them"
            )
        if result.before is not None:
            OUT.print(trusted_line(result, wanted))
        OUT.print(f"{key_text(wanted)}: {verdict_of(result, wanted)}")
        if node.view is not None:
            OUT.print("what its view shows is not compared here: see `sqe-chain audit`")
        for line in undecided_lines(result, wanted):
            OUT.print(one_line(line))
    if result.equal is not True:
        raise typer.Exit(3 if result.equal is None else 1)


@command
def why_not(
    target: FlowArgument,
    record: Annotated[str, typer.Argument(metavar="TOPIC[PARTITION]@OFFSET", help="Where the record is.")],
    *,
    servers: ServerOptions,
    json: JsonOption = False,
) -> None:
    """Show what became of a record: counted, ignored as a replay, skipped, filtered, dropped, waiting, or not read.

    The command reads the topics and the flow's plans. It changes nothing, and the flow's service may run meanwhile.

    Exit status: 0 if a stage has counted the record, else 1.
    """
    place = place_named(record)
    flow = load_flow(target)
    with _reading(flow, servers) as (prepared, reading, _):
        fate = find_fate(prepared.env, place, reading=reading)
    if json:
        print_json(fate_as_object(fate))
    else:
        OUT.print(f"{name_of(place)}: {fate.verdict}. {fate.reason}")
        if fate.chain:
            OUT.print(f"chain: {fate.chain}")
    if fate.verdict != "counted":
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What an audit compares, and how often."""

    sample: Annotated[int, Option("Keys of each stage.", "N", least=1)] = 200
    stage: Annotated[list[str] | None, Option("Only this stage. Repeatable.", "NAME")] = None
    every: Annotated[
        str | None, Option("Audit again after this time, until SIGTERM or Ctrl-C.", "DURATION")
    ] = None
    rate: Annotated[int | None, Option("Read at most this many records a second.", "N", least=1)] = None
    since: _SinceOption = None
    seed: Annotated[int | None, Option("Draw the same keys each time.", "N", least=0)] = None
    metrics_port: Annotated[
        int | None,
        Option("Serve metrics for Prometheus on this port of this machine.", "PORT", least=1, most=65_535),
    ] = None


@command
def audit_flow(
    target: FlowArgument, *, servers: ServerOptions, sampling: Sampling, json: JsonOption = False
) -> None:
    """Compare the states of keys drawn at random with what the records give, and the rows of a view's table with the states.

    The command reads the topics from where the flow began, once for each stage. It changes nothing, and the flow's service may
    run meanwhile.

    The exit status is 0 if all compared states are what the records give, and rows as their states, and 1 if not. It is 3 if that is not known. Either retention
    has deleted records, or all keys that differ have records that were released: they counted later than in the topics.
    """
    flow, random = load_flow(target), Random(sampling.seed)  # noqa: S311 - a sample, no secret
    pause_ms = duration_ms(sampling.every, "--every") if sampling.every else 0
    with (
        _reading(flow, servers, sampling.rate) as (prepared, reading, bar),
        _counted(flow, sampling.metrics_port) as count,
    ):
        stages = audited_stages(prepared.env, sampling.stage or ())
        different = not_known = False
        while not prepared.asked_to_stop():
            for node in stages:
                result = audit(
                    prepared.env,
                    node,
                    sampling.sample,
                    random,
                    since=sampling.since,
                    reading=reading,
                )
                count(result)
                bar.hide()
                _show_audited(result, as_lines=json)
                different |= bool(result.different or (result.view and result.view.different))
                not_known |= bool(result.missing or result.not_known)
            failed = find_undecided(flow, prepared.env.ports.log, prepared.env.ports.home)
            if failed:
                (ERR if json else OUT).print(undecided_line(failed))
            if not pause_ms or prepared.clock.wait(pause_ms):
                break
    if different or not_known:
        raise typer.Exit(1 if different else 3)


def _show_audited(result: AuditedStage, *, as_lines: bool) -> None:
    if as_lines:
        print_json(
            {
                "stage": result.stage,
                "keys": result.keys,
                "plan": result.plan,
                "trusted": result.trusted,
                "different": [readable_key(key) for key in result.different],
                "first": list(result.first),
                "not_known": [readable_key(key) for key in result.not_known],
                "doubts": list(result.doubts),
                "missing": [str(gap) for gap in result.missing],
                "view": None if result.view is None else _view_as_object(result.view),
            }
        )
        return
    for key, first in zip(result.different, result.first, strict=True):
        OUT.print(f"stage {result.stage!r}, key {key_text(key)}: different: {first}")
    for key, doubt in zip(result.not_known, result.doubts, strict=True):
        OUT.print(f"stage {result.stage!r}, key {key_text(key)}: not known: {doubt}")
    for gap in result.missing:
        OUT.print(f"stage {result.stage!r}: not compared: the topics no longer have {gap}")
    if not result.missing:
        after = "," if result.trusted is None else f" after plan {result.trusted}, whose states are trusted,"
        OUT.print(
            f"stage {result.stage!r}: {result.equal} of {result.keys} states are what the records give{after} "
            f"as of plan {result.plan}"
        )
    if result.view is not None:
        _show_view(result.stage, result.view)


def _view_as_object(view: AuditedView) -> dict[str, object]:
    return {
        "name": view.view,
        "rows": view.rows,
        "different": [readable_key(key) for key in view.different],
        "not_compared": view.not_compared or None,
    }


def _show_view(stage: str, view: AuditedView) -> None:
    where = f"stage {stage!r}, view {view.view}"
    if view.not_compared:
        OUT.print(f"{where}: not compared: {view.not_compared}")
        return
    for key in view.different:
        OUT.print(f"{where}, key {key_text(key)}: different: the row is not as the state")
    alike = view.rows - len(view.different)
    OUT.print(f"{where}: {max(alike, 0)} of {view.rows} rows are as the states")


@contextmanager
def _reading(
    flow: CompiledFlow, servers: ServerOptions, rate: int | None = None
) -> Iterator[tuple[Prepared, Pass, ReadingBar]]:
    """Everything that is needed to read, and what shows on a terminal how far it is, and keeps the rate."""
    settings = Settings(allow_weak_durability=True)
    with prepare_command(flow, settings, servers, panel=False) as prepared, ReadingBar(ERR) as bar:
        slowed = Slowed(rate, prepared.clock.wait, monotonic)

        def progressed(read: int, wanted: int) -> None:
            bar.show(read, wanted)
            slowed.keep(read)

        yield prepared, Pass(prepared.asked_to_stop, progressed), bar


@contextmanager
def _counted(flow: CompiledFlow, port: int | None) -> Iterator[Callable[[AuditedStage], None]]:
    """What counts audits for Prometheus, if a port is given."""
    if port is None:
        yield lambda _result: None
        return
    from prometheus_client import CollectorRegistry, Counter, Gauge  # noqa: PLC0415 - few ask for it

    from sqe_chain.runtime.serving import Health, serve  # noqa: PLC0415 - the same

    registry, labels = CollectorRegistry(), ("flow", "stage")
    keys = Counter(
        "sqe_chain_audited_keys", "Keys whose states an audit has compared.", labels, registry=registry
    )
    different = Counter(
        "sqe_chain_audit_differences",
        "Keys whose stored states are not what the records give.",
        labels,
        registry=registry,
    )
    last = Gauge("sqe_chain_audit_last_plan", "Plan of the last audit.", labels, registry=registry)

    def count(result: AuditedStage) -> None:
        names = flow.name, result.stage
        keys.labels(*names).inc(0 if result.missing else result.keys)
        different.labels(*names).inc(len(result.different))
        last.labels(*names).set(result.plan)

    with serve(port, registry, Health(lambda: 0)):
        yield count
