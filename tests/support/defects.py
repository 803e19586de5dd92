"""Defects that this project has had, as text replacements that bring the old behaviour back into today's code.

    python -m tests.support.defects --seed 0 --seconds 120

injects one after another into a copy of the package, lets the simulator search for it, and prints the table of
docs/reliability.md. A test checks that every text to replace is still in the package.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from typing import Final

from tests.support.defect_injection import Replacement, time_to_detect, violation_line


@dataclass(frozen=True)
class Defect:
    """A defect of the past.

    Attributes:
        name: what it does, in plain words.
        replacements: that bring it back.
    """

    name: str
    replacements: tuple[Replacement, ...]


def defect(name: str, *texts: tuple[str, str, str]) -> Defect:
    """Make a defect.

    Args:
        name: what it does, in plain words.
        texts: file inside the package, present text, defective text.
    """
    return Defect(name, tuple(Replacement(*one) for one in texts))


DEFECTS: Final = (
    defect(
        "a redo in place forgets keys that belong to another state partition",
        (
            "segment/level.py",
            "        if stage != self._folding:\n",
            ("        if work.done:\n            return\n        if stage != self._folding:\n"),
        ),
    ),
    defect(
        "`rebuild --resume` goes on with an attempt that was retired or cleared",
        ("protocol/attempts.py", "return self.plan.attempt >= 0", "return True"),
        (
            "protocol/attempts.py",
            "            if attempt is not None and attempt.open:\n                self._close(attempt)\n",
            "            del attempt\n",
        ),
        (
            "protocol/attempts.py",
            "        if attempt.open:\n            attempt = self._close(attempt)\n",
            "",
        ),
        (
            "protocol/attempts.py",
            '        self._set_home(attempt.name, home, replace(home, number=-1, plan_id=""), None, plan.number + 1)\n',
            "",
        ),
        (
            "protocol/attempts.py",
            "        if header is None:\n            return\n",
            "        if header is None:\n            return\n        grave = header\n",
        ),
        ("protocol/rebuild.py", "if found.plan.attempt != spec.number:", "if False:"),
        (
            "protocol/rebuild.py",
            "if (found.plan.silent_until, found.plan.unfinished) != (spec.silent_until, spec.unfinished):",
            "if found.plan.silent_until != spec.silent_until:",
        ),
    ),
    defect(
        "a store that does not answer, or another run's claim, counts as poison in filters and windows",
        (
            "stages/record_work.py",
            "_POISON: Final = (UserCodeError, PoisonError, EnvelopeError)",
            "_POISON: Final = (Exception,)",
        ),
    ),
    defect(
        "windows ask a heartbeat function again, with another key in its context",
        (
            "segment/operator_text.py",
            (
                """node, "beat", "b''" if n in self._shuffled else "None", "''", f"{at.path} + number(part)"\n"""
            ),
            (
                """node, "beat", f"travelling({n}, {at.value})[1]({at.value})", f"travelling({n}, {at.value})[0]","""
                """ f"{at.path} + number(part)"\n"""
            ),
        ),
        (
            "stages/record_work.py",
            "                if record is None:\n",
            (
                '                beats = RecordFunctions("", self._task.now_ms).of(self._kind.heartbeat)\n'
                "                if record is None or (beats is not None and beats(record)):\n"
            ),
        ),
        (
            "stages/window_kind.py",
            "CONTEXT if self.fold.takes_context else ENVELOPE",
            "CONTEXT if any(one.takes_context for one in self.functions) else ENVELOPE",
        ),
    ),
    defect(
        "a trial in place ends the service with what user code raises on keys that lie elsewhere",
        (
            "protocol/processing.py",
            "                if not job.in_place:\n                    raise\n",
            "                raise\n",
        ),
    ),
    defect(
        "operators after `changes()` end the service for states that an attempt only tried",
        (
            "segment/level.py",
            '            self._break(stage, "the operators after changes()", error)\n',
            "            raise PoisonError(str(error)) from error\n",
        ),
    ),
    defect(
        "a record without a key goes to a compacted topic: refused after the seal",
        ("segment/outputs.py", "if target.needs_key:", "if False:"),
    ),
    defect(
        "an event time far ahead becomes the record's time: refused after the seal",
        (
            "logs/memory/_writer.py",
            "stamp = timestamp_ms if first <= timestamp_ms <= last else now_ms",
            "stamp = max(timestamp_ms, 0)",
        ),
    ),
    defect(
        "event times near the ends of 64 bits end a service with filters or windows",
        ("envelope/head.py", "    if not -1 <= timestamp_ms <= MAX_TIMESTAMP_MS:\n", "    if False:\n"),
    ),
    defect(
        "a third attempt at a batch that fails ends the service",
        (
            "protocol/processing.py",
            "            attempt += 1\n",
            (
                "            attempt += 1\n"
                "            if attempt > 3:\n"
                '                raise PoisonError("user code failed in 3 attempts")\n'
            ),
        ),
        # At that time everything that failed was left out at once, without a trial.
        (
            "protocol/processing.py",
            "elif fresh and len(self.known) < ONE_BY_ONE:",
            "elif False:",
        ),
    ),
    defect(
        "a view that cannot be shown fails after the seal",
        (
            "segment/states.py",
            "        try:\n            return self.show(row, content)\n",
            "        return self.show(row, content)\n        try:\n            return self.show(row, content)\n",
        ),
    ),
    defect(
        "a commit for partitions that a new topic does not have is repeated for ever",
        ("protocol/inputs.py", "        infos = log.describe(ids)\n", "        raise\n"),
    ),
    defect(
        "after a rebuild, a batch that was published in part is cut otherwise",
        (
            "protocol/progress.py",
            "rest = base.unfinished if base is last else unfinished",
            "rest = None",
        ),
    ),
    defect(
        "two runs of a republisher publish in turns, and a reader that enters there stops",
        (
            "replays/marks.py",
            "if self.entered_in_middle and not (mark and mark.excused):",
            "if self.entered_in_middle and mark is None:",
        ),
        (
            "protocol/republish.py",
            'marks = decode_marks(meta.get("marks"))',
            "marks = None",
        ),
    ),
    defect(
        "malformed envelopes are accepted on a known lane and refused elsewhere",
        (
            "envelope/head.py",
            "    check_fields(head)\n    check_values(head)\n",
            "    check_fields(head)\n    check_timestamp(head.timestamp_ms)\n",
        ),
        (
            "envelope/head.py",
            (
                "    if head.ByteSize() != len(value):  # it holds something that the parser has left out\n"
                "        check_once(value)\n"
            ),
            "",
        ),
        ("envelope/columns.py", "        ordinary &= self._agree(self.chain_size, id_size)\n", ""),
    ),
    defect(
        "sound inputs are left out for what a failing one did before it failed",
        (
            "protocol/processing.py",
            "            innocent = self.known.keys() - found.keys() - self._acquitted\n",
            "            pass\n",
        ),
        ("protocol/processing.py", "elif fresh and len(self.known) < ONE_BY_ONE:", "elif False:"),
        (
            "protocol/processing.py",
            "report = self.attempt(batch, batch.exclusions, suspects=tuple(suspects.known.values()))",
            "report = self.attempt(batch, (*batch.exclusions, *suspects.known.values()))",
        ),
    ),
    defect(
        "after a topic in between was created again, siblings that were not counted yet are skipped",
        (
            "replays/marks.py",
            (
                "        if position[:-ORDINAL_LENGTH] == counted.position[:-ORDINAL_LENGTH] and of != counted.of:\n"
                "            raise self._changed(counted, head, offset)\n"
                "        if position <= counted.position:\n"
                "            self._add(head.lane, counted.position, counted.of, offset, chain)\n"
            ),
            (
                "        highest = counted.position[:ROOT_LENGTH]\n"
                "        if position[:ROOT_LENGTH] <= highest:\n"
                '            self._add(head.lane, highest.ljust(len(position), b"\\xff"), 0, offset, chain)\n'
            ),
        ),
    ),
    defect(
        "a position out of bounds is accepted and silences its lane",
        (
            "envelope/head.py",
            "if position[_OFFSET_SIGN] >= _SIGN_BIT or position[:ROOT_LENGTH] > _LAST_ROOT or ordinal >= of:",
            "if ordinal >= of:",
        ),
        (
            "envelope/columns.py",
            "sound &= (epoch <= _LAST_EPOCH) & (offset < 1 << 63) & (ordinal < of)",
            "sound &= (epoch >= 0) & (offset >= 0) & (ordinal < of)",
        ),
    ),
    defect(
        "stages after one shuffle share what was carried for another one of them",
        (
            "segment/level.py",
            "        source = stage, topic, partition, offset\n",
            "        source = 0, topic, partition, offset\n",
        ),
    ),
    defect(
        "the header of a table's state partition is written before its rows",
        (
            "segment/flushing.py",
            "    added, remembered = sink.flush(\n",
            (
                "    persist(store, transition, plan_id, stage, part, [], before)\n"
                "    added, remembered = sink.flush(\n"
            ),
        ),
        (
            "segment/flushing.py",
            "    persist(store, transition, plan_id, stage, part, [(FLUSHED, remembered)], before)\n",
            "    del remembered\n",
        ),
    ),
    defect(
        "a redo does not ask the table whether it has the rows of the plan",
        (
            "tables/sink.py",
            "            if number is not None and number >= flush.number:\n",
            "            if False:\n",
        ),
        (
            "tables/sink.py",
            "        if expected is not None and (number is None or number < expected):\n",
            "        if False:\n",
        ),
    ),
    defect(
        "rows are committed to a newer version of the table than the one that was looked at",
        (
            "tables/sink.py",
            '                self.directory.commit(snapshot, markers, added, what=f"plan {flush.number}")\n',
            '                self.directory.commit(self._opened(flush), markers, added, what=f"plan {flush.number}")\n',
        ),
    ),
    defect(
        "a run that claims a flow does not shut older runs out of its table",
        (
            "tables/sink.py",
            "                markers |= {names.epoch: claim.epoch, names.run: word(claim.run_id)}\n",
            "",
        ),
        ("tables/sink.py", "        if epoch < flush.epoch:\n", "        if False:\n"),
    ),
    defect(
        "a table that went back in time is written on",
        (
            "tables/sink.py",
            "        if expected is not None and (number is None or number < expected):\n",
            "        if False:\n",
        ),
    ),
    defect(
        "a compaction brings back a row that a later one has replaced",
        (
            "tables/compacting.py",
            '    order = pc.sort_indices(rows, sort_keys=[*keys, (SEQUENCE, "ascending")])\n',
            '    order = pc.sort_indices(rows, sort_keys=[*keys, (SEQUENCE, "descending")])\n',
        ),
    ),
    defect(
        "of two compactions at once both succeed",
        (
            "tables/compacting.py",
            "                {marker: (snapshot.marker(marker) or 0) + 1},\n",
            "                {},\n",
        ),
    ),
    defect(
        "what a flow without stages published last is not published again after a crash",
        (
            "protocol/recover.py",
            "        return [] if published else [last.number]\n",
            "        return [] if published or last.files else [last.number]\n",
        ),
    ),
    defect(
        "rows of inputs on trial stay in the memtable",
        (
            "stages/ingest.py",
            "                self._add(self._trial, run.chosen([index]))\n",
            "                self._add(self._memtable, run.chosen([index]))\n",
        ),
    ),
)
"""In the order of the table."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    sys.stdout.write("| put back | found after | seed | noticed by |\n|---|---|---|---|\n")
    for one in DEFECTS:
        finding = time_to_detect(one.replacements, seed=options.seed, seconds=options.seconds)
        words = re.search(r"seed (\d+): (\w[\w ]*):", violation_line(finding.output))
        row = f"{finding.seconds:.1f} s | {words[1]} | {words[2]}" if finding.seconds and words else "not | |"
        sys.stdout.write(f"| {one.name} | {row} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
