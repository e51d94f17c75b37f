"""A file into records, by its suffix. Called by core/data/sources.py.

A reader never raises for what is inside a file: what it cannot read becomes a record with a problem, and the caller
decides whether that stops the run.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from core.data import record
from core.data.document_reader import read_docx, read_pdf, read_text
from core.data.json_reader import read_json, read_jsonl
from core.data.record import Reader, Record
from core.data.table_reader import read_csv, read_parquet

READERS: dict[str, Reader] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".txt": read_text,
    ".text": read_text,
    ".md": read_text,
    ".markdown": read_text,
    ".rst": read_text,
    ".pdf": read_pdf,
    ".docx": read_docx,
}


def reader_for(path: Path) -> Reader | None:
    """The reader of a file by its suffix, ".gz" ignored; None for a suffix that is not known."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return READERS.get(suffixes[-1] if suffixes else "")


def read_file(path: Path, watch: Callable[[int], None] | None = None) -> Iterator[Record]:
    """All records of a file; a suffix nobody knows is read as text. Damage of the container is a bad record too.

    ``watch`` is told, record by record, how many bytes of the file have been read.
    """
    reader = reader_for(path) or read_text
    line = 0
    try:
        with path.open("rb") as raw, _unpack(raw, path) as stream:
            for found in reader(stream):
                line = found.line
                if watch is not None:
                    watch(raw.tell())
                yield found
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        yield Record(line=line + 1, kind="bad", problem=f"damaged gzip data here ({error}); the rest is not read")
    except UnicodeDecodeError as error:  # only from a UTF-16 file: UTF-8 is judged record by record
        yield Record(line=line + 1, kind="bad", problem=f"not valid {error.encoding} here; the rest is not read")
    except OSError as error:
        yield Record(line=line + 1, kind="bad", problem=f"cannot be read: {error.strerror or error}")


def _unpack(raw: BinaryIO, path: Path) -> BinaryIO:
    """Unzipped, and as UTF-8 when the mark says UTF-16 (what Windows programs write)."""
    stream: Any = gzip.GzipFile(fileobj=raw) if path.suffix.lower() == ".gz" else raw
    mark = stream.read(2)
    stream.seek(0)
    if mark not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return stream
    content = stream.read(record.MAX_RECORD_BYTES + 1)
    if len(content) > record.MAX_RECORD_BYTES:
        raise OSError(f"UTF-16 text of more than {record.MAX_RECORD_BYTES >> 20} MiB; save it as UTF-8")
    return io.BytesIO(content.decode("utf-16").encode("utf-8"))
