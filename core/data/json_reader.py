"""JSON Lines and JSON. Called through core/data/readers.py; memory is bounded by the longest record."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from core.data import record
from core.data.record import Record, is_utf8

_CHUNK = 1 << 20
_WHITE = " \t\r\n"


def read_jsonl(stream: BinaryIO) -> Iterator[Record]:
    number, json_parser = 0, _StrictJson()
    while line := stream.readline(record.MAX_RECORD_BYTES + 1):
        number += 1
        if len(line) > record.MAX_RECORD_BYTES:
            while line and not line.endswith(b"\n"):
                line = stream.readline(_CHUNK)
            yield Record(line=number, kind="bad", problem=f"longer than {record.MAX_RECORD_BYTES >> 20} MiB")
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
    first, second = stream.readline(record.MAX_RECORD_BYTES), stream.readline(record.MAX_RECORD_BYTES)
    stream.seek(0)
    if second.strip() and _parse(first, 1, _StrictJson()).kind == "row":
        yield from read_jsonl(stream)
        return
    text = stream.read(record.MAX_RECORD_BYTES + 1)
    if len(text) > record.MAX_RECORD_BYTES:
        yield Record(line=1, kind="bad", problem=f"one JSON object of more than {record.MAX_RECORD_BYTES >> 20} MiB")
        return
    if not text.strip():
        return
    whole = _parse(text, 1, _StrictJson())
    rows = _rows_inside(whole.value)
    yield from [whole] if rows is None else (Record(line=number, value=row) for number, row in enumerate(rows, 1))


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
        if not ended and len(buffer) - at < record.MAX_RECORD_BYTES and (end < 0 or end == len(buffer)):
            chunk *= 2  # so that one large element is not parsed again for every megabyte
            read_more()
            continue
        if end < 0:
            yield Record(line=number, kind="bad", problem=f"{problem}; the rest of the array is not read")
            return
        if not problem and not is_utf8(buffer[at:end]):
            problem = "not valid UTF-8"
        yield Record(line=number, kind="bad", problem=problem) if problem else Record(line=number, value=value)
        at, number, chunk = end, number + 1, _CHUNK
