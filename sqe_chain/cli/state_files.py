"""Writes states to a file: JSON lines, or Parquet with a column for each field."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import IO, Any

from sqe_chain.cli.files import check_new, open_text, write_whole
from sqe_chain.cli.selection import line_of
from sqe_chain.codecs import Codec
from sqe_chain.errors import ConfigurationError
from sqe_chain.errors.safe_text import json_line
from sqe_chain.flow.stored import StoredState
from sqe_chain.wings import needing

_ROWS = 10_000
"""Rows of one group in a Parquet file: as many are held in memory."""


def write_states(
    file: Path, states: Iterable[StoredState], codec: Codec[Any], *, windows: bool = False
) -> int:
    """Write keys and states to a new file, which appears only when it is complete.

    Returns:
        The number of states.

    Raises:
        ConfigurationError: the file exists, its ending is unknown, or pyarrow is missing.
    """
    check_new(file)
    if file.name.endswith((".jsonl", ".jsonl.gz")):
        with write_whole(file) as partial, open_text(partial, "w", compressed=file.suffix == ".gz") as out:
            return _write_lines(out, states, codec)
    if file.suffix == ".parquet":
        with write_whole(file) as partial:
            return _write_parquet(partial, states, codec, windows=windows)
    raise ConfigurationError(f"{file}: unknown ending. Expected .jsonl, .jsonl.gz or .parquet")


def _write_lines(out: IO[str], states: Iterable[StoredState], codec: Codec[Any]) -> int:
    count = 0
    for count, stored in enumerate(states, 1):  # noqa: B007 - the count is what we want
        out.write(json_line(line_of(stored, codec)) + "\n")
    return count


def _write_parquet(file: Path, states: Iterable[StoredState], codec: Codec[Any], *, windows: bool) -> int:
    with needing("writing Parquet (.jsonl does not)", "spark"):
        import pyarrow.parquet as pq  # noqa: PLC0415 - only needed for Parquet

        from sqe_chain.runtime.tables import columns_of, schema_of, table_of, with_text_of  # noqa: PLC0415 - it needs pyarrow
    columns = columns_of(codec, windows=windows)
    schema = schema_of(columns)
    remaining, count = iter(states), 0
    writer = pq.ParquetWriter(file, schema)
    try:
        while rows := list(islice(remaining, _ROWS)):
            table = table_of(rows, columns)
            if fitting := with_text_of(schema, table.schema):
                schema = fitting
                writer.close()
                writer = _begun_again(file, schema)
            writer.write_table(table.cast(schema))
            count += len(rows)
    finally:
        writer.close()
    return count


def _begun_again(file: Path, schema: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """A writer of the rows that a file has so far, with other types of columns; for those to come."""
    import pyarrow as pa  # noqa: PLC0415 - only needed for Parquet
    import pyarrow.parquet as pq  # noqa: PLC0415 - the same

    before = file.rename(file.with_name(f"{file.name}.before"))
    writer = pq.ParquetWriter(file, schema)
    for batch in pq.ParquetFile(before).iter_batches():
        writer.write_table(pa.Table.from_batches([batch]).cast(schema))
    before.unlink()
    return writer
