"""Files into records: JSON Lines, JSON, CSV, text. One generator a format, each record with its line number.

A reader never raises for what is inside a file: what it cannot read becomes a record with a problem, and the caller
decides whether that stops the run. Memory is bounded by the longest record, itself at most MAX_RECORD_BYTES.

A line number is the line where the record starts; for a JSON array it is the number of the element.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

MAX_RECORD_BYTES = 256 * 1024 * 1024
_CHUNK = 1 << 20
_WHITE = " \t\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One row as it stands in a file, before anybody asked what it means."""

    line: int
    kind: Literal["row", "blank", "bad"] = "row"
    value: Any = None
    problem: str = ""  # kind "bad": why, for people


Reader = Callable[[BinaryIO], Iterator[Record]]


def reader_for(path: Path) -> Reader | None:
    """The reader of a file by its suffix, ".gz" ignored; None for a suffix that is not known."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return _READERS.get(suffixes[-1] if suffixes else "")


def read_file(path: Path) -> Iterator[Record]:
    """All records of a file; a suffix nobody knows is read as text. Damage of the container is a bad record too."""
    reader = reader_for(path) or read_text
    line = 0
    try:
        with _open(path) as stream:
            for record in reader(stream):
                line = record.line
                yield record
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        yield Record(line=line + 1, kind="bad", problem=f"damaged gzip data here ({error}); the rest is not read")
    except UnicodeDecodeError as error:  # only from a UTF-16 file: UTF-8 is judged record by record
        yield Record(line=line + 1, kind="bad", problem=f"not valid {error.encoding} here; the rest is not read")
    except OSError as error:
        yield Record(line=line + 1, kind="bad", problem=f"cannot be read: {error.strerror or error}")


def read_jsonl(stream: BinaryIO) -> Iterator[Record]:
    number, json_parser = 0, _StrictJson()
    while line := stream.readline(MAX_RECORD_BYTES + 1):
        number += 1
        if len(line) > MAX_RECORD_BYTES:
            while line and not line.endswith(b"\n"):
                line = stream.readline(_CHUNK)
            yield Record(line=number, kind="bad", problem=f"longer than {MAX_RECORD_BYTES >> 20} MiB")
        elif not line.strip():
            yield Record(line=number, kind="blank")
        else:
            yield _parse(line, number, json_parser)


def read_json(stream: BinaryIO) -> Iterator[Record]:
    """An array, element by element; an object that holds the only list; a lone row; or JSON Lines in disguise."""
    begin = stream.read(_CHUNK).lstrip()
    stream.seek(0)
    if begin.startswith(b"["):
        yield from _read_array(stream)
        return
    first, second = stream.readline(MAX_RECORD_BYTES), stream.readline(MAX_RECORD_BYTES)
    stream.seek(0)
    if second.strip() and _parse(first, 1, _StrictJson()).kind == "row":
        yield from read_jsonl(stream)
        return
    text = stream.read(MAX_RECORD_BYTES + 1)
    if len(text) > MAX_RECORD_BYTES:
        yield Record(line=1, kind="bad", problem=f"one JSON object of more than {MAX_RECORD_BYTES >> 20} MiB")
        return
    if not text.strip():
        return
    whole = _parse(text, 1, _StrictJson())
    rows = _rows_inside(whole.value)
    yield from [whole] if rows is None else (Record(line=number, value=row) for number, row in enumerate(rows, 1))


def read_csv(stream: BinaryIO) -> Iterator[Record]:
    """Rows as mappings by the header; an empty cell is null. Comma, semicolon or tab, as the header shows."""
    csv.field_size_limit(MAX_RECORD_BYTES)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    first = text.readline(_CHUNK)
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
            elif not all(map(_is_utf8, cells)):
                yield Record(line=start, kind="bad", problem="not valid UTF-8")
            else:
                values = {name: cell.replace("\r\n", "\n") or None for name, cell in zip(header, cells)}
                yield Record(line=start, value=values)
    except csv.Error as error:
        yield Record(line=line, kind="bad", problem=f"not valid CSV ({error}); the rest of the file is not read")


def read_text(stream: BinaryIO) -> Iterator[Record]:
    """The whole file as one document, line ends as \\n."""
    raw = stream.read(MAX_RECORD_BYTES + 1)
    if len(raw) > MAX_RECORD_BYTES:
        yield Record(line=1, kind="bad", problem=f"one document of more than {MAX_RECORD_BYTES >> 20} MiB")
        return
    try:
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        yield Record(line=line, kind="bad", problem=f"not valid UTF-8 at byte {error.start} of the file")
        return
    if text.strip():
        yield Record(line=1, value={"text": text})


_READERS: dict[str, Reader] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".txt": read_text,
    ".text": read_text,
    ".md": read_text,
    ".markdown": read_text,
    ".rst": read_text,
}


def _open(path: Path) -> BinaryIO:
    """Bytes of the file, unzipped, and as UTF-8 when its mark says UTF-16 (what Windows programs write)."""
    stream: Any = path.open("rb")
    if path.suffix.lower() == ".gz":
        stream = gzip.GzipFile(fileobj=stream)
    mark = stream.read(2)
    stream.seek(0)
    if mark not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return stream
    with stream:
        raw = stream.read(MAX_RECORD_BYTES + 1)
    if len(raw) > MAX_RECORD_BYTES:
        raise OSError(f"UTF-16 text of more than {MAX_RECORD_BYTES >> 20} MiB; save it as UTF-8")
    return io.BytesIO(raw.decode("utf-16").encode("utf-8"))


class _StrictJson:
    """json keeps the last of two equal keys in silence; which one was meant nobody can know, so we tell."""

    def __init__(self) -> None:
        self._twice = ""
        self._decoder = json.JSONDecoder(object_pairs_hook=self._mapping)

    def _mapping(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            self._twice = next(name for name in names if names.count(name) > 1)
        return result

    def parse(self, text: str, at: int = 0) -> tuple[Any, int, str]:
        """(value, where it ends, problem). Raises: JSONDecodeError when no value starts at ``at``, or a cut one."""
        self._twice = ""
        try:
            value, end = self._decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            raise
        except RecursionError:
            return None, -1, "nested too deep"
        except ValueError as error:  # a number of more digits than Python converts
            return None, -1, str(error).split(";")[0]
        return value, end, f"the key {self._twice!r} appears twice" if self._twice else ""


def _parse(line: bytes, number: int, json_parser: _StrictJson) -> Record:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip(_WHITE)
    except UnicodeDecodeError as error:
        return Record(line=number, kind="bad", problem=f"not valid UTF-8 at byte {error.start} of the line")
    try:
        value, end, problem = json_parser.parse(text)
    except json.JSONDecodeError as error:
        return Record(line=number, kind="bad", problem=f"not valid JSON at column {error.colno}: {error.msg}")
    if not problem and end != len(text):
        problem = f"not valid JSON at column {end + 1}: something follows the value"
    return Record(line=number, kind="bad", problem=problem) if problem else Record(line=number, value=value)


def _rows_inside(value: Any) -> list[Any] | None:
    """The rows of {"data": [...]}; None when the object is a row itself, such as {"messages": [...]}."""
    if not isinstance(value, dict) or len(value) > 3:
        return None
    lists = [item for item in value.values() if isinstance(item, list)]
    if len(lists) != 1 or not all(isinstance(row, dict) and not {"role", "from"} & row.keys() for row in lists[0]):
        return None
    return lists[0]


def _is_utf8(text: str) -> bool:
    """False when surrogateescape had to stand in for a byte."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_array(stream: BinaryIO) -> Iterator[Record]:
    """Elements of one JSON array without holding the array: decode as far as the buffer goes, then read on."""
    decode = codecs.getincrementaldecoder("utf-8-sig")(errors="surrogateescape").decode
    json_parser = _StrictJson()
    buffer, at, number, chunk, ended = "", 0, 1, _CHUNK, False

    def read_more() -> None:
        nonlocal buffer, at, ended
        data = stream.read(chunk)
        ended = not data
        buffer, at = buffer[at:] + decode(data, ended), 0

    def skip(characters: str) -> str:
        """Move past these; the next character, or "" at the end of the file."""
        nonlocal at
        while True:
            while at < len(buffer) and buffer[at] in characters:
                at += 1
            if at < len(buffer) or ended:
                return buffer[at : at + 1]
            read_more()

    skip(_WHITE)
    at += 1  # the opening bracket
    while (here := skip(_WHITE + ",")) != "]":
        try:
            value, end, problem = json_parser.parse(buffer, at) if here else (None, -1, "the array is not closed")
        except json.JSONDecodeError as error:
            value, end, problem = None, -1, f"not valid JSON: {error.msg}"
        # A cut element looks like a wrong one, and "12" may go on as "123": judge only what the buffer holds whole.
        if not ended and len(buffer) - at < MAX_RECORD_BYTES and (end < 0 or end == len(buffer)):
            chunk *= 2  # so that one large element is not parsed again for every megabyte
            read_more()
            continue
        if end < 0:
            yield Record(line=number, kind="bad", problem=f"{problem}; the rest of the array is not read")
            return
        if not problem and not _is_utf8(buffer[at:end]):
            problem = "not valid UTF-8"
        yield Record(line=number, kind="bad", problem=problem) if problem else Record(line=number, value=value)
        at, number, chunk = end, number + 1, _CHUNK
