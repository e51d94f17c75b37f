"""JSON Lines that one process writes and others follow: encode, append, repair, tail. Called by journal and faces."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MAX_LINE_BYTES = 16 << 20  # a longer line is given up, so that a reader's memory stays bounded


def encode_line(row: Mapping[str, Any]) -> bytes:
    """One line of strict JSON. NaN and infinities become null, and the mapping they stand in gains
    ``"nonfinite": true``; what JSON has no word for is written as its number (a NumPy or torch scalar) or its text."""
    return json.dumps(_plain(row), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def append_line(descriptor: int, line: bytes) -> None:
    """One line to an O_APPEND descriptor, in one write unless the disk takes it in pieces."""
    while line:
        line = line[os.write(descriptor, line) :]


def repair_end(path: Path) -> None:
    """Before appending to a file whose writer was killed: cut off half a line, end a whole one."""
    try:
        with path.open("r+b") as file:
            data = file.read()
            end = data.rfind(b"\n") + 1
            if end == len(data):
                return
            if decode_line(data[end:]) is None:
                file.truncate(end)
            else:
                file.write(b"\n")
    except FileNotFoundError:
        return


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a file, bad lines left out; [] when there is no file."""
    tail = JsonlTail(path)
    rows = tail.read()
    while more := tail.read():
        rows += more
    return rows


def sample_rows(path: Path, *, num_blocks: int, block_bytes: int) -> list[list[dict[str, Any]]]:
    """Some rows of a file that is too long to read at once: those of ``num_blocks`` pieces at equal distances, the
    first and the last ones of the file included. Lines that a piece cuts are left out."""
    blocks = []
    with path.open("rb") as file:
        last = file.seek(0, os.SEEK_END) - block_bytes
        for index in range(num_blocks):
            start = max(0, last) * index // max(1, num_blocks - 1)
            file.seek(start)
            *lines, _ = file.read(block_bytes).split(b"\n")
            rows = (decode_line(line) for line in (lines if start == 0 else lines[1:]))
            blocks.append([row for row in rows if row is not None])
    return blocks


class JsonlTail:
    """Reads what was appended since the last read, never the file from the start again.

    A file that was replaced (another inode) or cut is read anew and ``generation`` grows by one: what a reader built
    from earlier rows must then be dropped. Lines that are no JSON object are skipped and counted.
    """

    def __init__(self, path: Path, *, offset: int = 0, max_bytes: int = 1 << 20) -> None:
        self.path = path
        self.generation = 0
        self.num_bad_lines = 0
        self._max_bytes = max_bytes
        self._inode: int | None = None
        self._offset = offset  # of the next byte to read
        self._carry = b""  # the beginning of a line whose end was not there yet
        self._skipping = False  # inside a line that grew beyond _MAX_LINE_BYTES

    @property
    def offset(self) -> int:
        """Bytes of the complete lines read so far."""
        return self._offset - len(self._carry)

    def read(self) -> list[dict[str, Any]]:
        """Rows of the next complete lines; [] when there is nothing new, or no file. Memory: max_bytes + one line."""
        data = self._read_bytes()
        rows: list[dict[str, Any]] = []
        while not rows and data:  # a piece may lie inside one long line
            *lines, self._carry = (self._carry + data).split(b"\n")
            for line in lines:
                if self._skipping:
                    self._skipping = False  # the end of the long line
                    continue
                if not line.strip():
                    continue
                row = decode_line(line)
                if row is None:
                    self.num_bad_lines += 1
                else:
                    rows.append(row)
            self._bound_carry()
            if not rows:
                data = self._read_bytes()
        return rows

    def _bound_carry(self) -> None:
        if self._skipping or len(self._carry) > _MAX_LINE_BYTES:
            self.num_bad_lines += not self._skipping
            self._skipping = True
            self._carry = b""

    def _read_bytes(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if self._inode is None:
                    self._inode = status.st_ino
                    if status.st_size < self._offset:
                        self._restart(status.st_ino)
                elif status.st_ino != self._inode or status.st_size < self._offset:
                    self._restart(status.st_ino)
                file.seek(self._offset)
                data = file.read(self._max_bytes)
        except FileNotFoundError:
            return b""
        self._offset += len(data)
        return data

    def _restart(self, inode: int) -> None:
        self.generation += 1
        self._inode = inode
        self._offset = 0
        self._carry = b""
        self._skipping = False


def decode_line(line: bytes) -> dict[str, Any] | None:
    """None for what is no JSON object."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | int | bool | None):
        return value
    if isinstance(value, Mapping):
        plain = {str(key): _plain(item) for key, item in value.items()}
        return plain if all(map(_is_finite, value.values())) else {**plain, "nonfinite": True}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)


def _is_finite(value: Any) -> bool:
    """Of a scalar, or of all in a list; a mapping inside marks itself."""
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_finite, value))
    if hasattr(value, "tolist"):
        return _is_finite(value.tolist())
    return not isinstance(value, float) or math.isfinite(value)
