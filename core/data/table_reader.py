"""CSV, TSV and Parquet. Called through core/data/readers.py."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from core.data import record
from core.data.record import Record, is_utf8
from planner.errors import EnvironmentProblem

_ROWS_AT_ONCE = 256
_LONGEST_HEADER = 1 << 20


def read_csv(stream: BinaryIO) -> Iterator[Record]:
    """Rows as mappings by the header; an empty cell is null. Comma, semicolon or tab, as the header shows."""
    csv.field_size_limit(record.MAX_RECORD_BYTES)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    first = text.readline(_LONGEST_HEADER)
    text.seek(0)
    delimiter = max(",;\t", key=first.count)
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for cells in rows:
            start, line = line, rows.line_num + 1
            if header is None:
                header = [cell.strip() for cell in cells]
                if len(set(header)) < len(header) or not all(header):
                    yield Record(line=1, kind="bad", problem=f"the header {header} names a column twice or not at all")
                    return
            elif not any(cell.strip() for cell in cells):
                yield Record(line=start, kind="blank")
            elif len(cells) != len(header):
                yield Record(line=start, kind="bad", problem=f"{len(cells)} cells, the header has {len(header)}")
            elif not all(map(is_utf8, cells)):
                yield Record(line=start, kind="bad", problem="not valid UTF-8")
            else:
                values = {name: cell.replace("\r\n", "\n") or None for name, cell in zip(header, cells)}
                yield Record(line=start, value=values)
    except csv.Error as error:
        yield Record(line=line, kind="bad", problem=f"not valid CSV ({error}); the rest of the file is not read")


def read_parquet(stream: BinaryIO) -> Iterator[Record]:
    """Rows as mappings, a batch at a time.

    Raises: EnvironmentProblem without pyarrow.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise EnvironmentProblem(
            "A Parquet file cannot be read.", why="It needs pyarrow.", fix="pip install pyarrow"
        ) from None
    number = 0
    try:
        for batch in parquet.ParquetFile(stream).iter_batches(batch_size=_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                number += 1
                yield Record(line=number, value={key: without_nulls(value) for key, value in row.items()})
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        yield Record(line=number + 1, kind="bad", problem=f"not valid Parquet ({reason}); the rest is not read")


def without_nulls(value: Any) -> Any:
    """Arrow gives every struct of a column the keys of all the others, as nulls: the arguments of one tool call would
    appear in the next. A key that is null inside a struct is taken for absent."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
