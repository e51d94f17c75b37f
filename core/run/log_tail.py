"""Follows a text log that another process writes: new lines only, bounded, progress bars folded. Called by faces."""

from __future__ import annotations

import os
from pathlib import Path

_MAX_LINE_BYTES = 64 << 10


class LogTail:
    """Like JsonlTail, for text. Of a line that a progress bar rewrote with carriage returns, the last state counts."""

    def __init__(self, path: Path, *, last_bytes: int | None = None, max_bytes: int = 1 << 20) -> None:
        """``last_bytes``: begin so far before the present end, at a full line; None begins at the start."""
        self.path = path
        self._max_bytes = max_bytes
        self._inode: int | None = None
        self._offset = 0
        self._carry = b""
        if last_bytes is not None and path.exists():
            self._begin_near_end(last_bytes)

    def read(self) -> list[str]:
        """The next complete lines; [] when there is nothing new, or no file. Holds about ``max_bytes``."""
        lines: list[bytes] = []
        while not lines and (data := self._read_bytes()):  # a piece may lie inside one long line
            *lines, self._carry = (self._carry + data).split(b"\n")
            if b"\r" in self._carry:  # keep what a progress bar says now, drop what it said before
                self._carry = self._carry[self._carry.rstrip(b"\r").rfind(b"\r") + 1 :]
            self._carry = self._carry[-_MAX_LINE_BYTES:]
        return [self._decode(line) for line in lines]

    @property
    def unfinished(self) -> str:
        """The line that has no end yet: a progress bar, or a question."""
        return self._decode(self._carry)

    @staticmethod
    def _decode(line: bytes) -> str:
        return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", errors="replace")

    def _begin_near_end(self, last_bytes: int) -> None:
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._inode = os.fstat(file.fileno()).st_ino
            self._offset = max(0, size - last_bytes)
            if self._offset > 0:
                file.seek(self._offset)
                self._offset += len(file.readline())

    def _read_bytes(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    if self._inode is not None:
                        self._offset, self._carry = 0, b""
                    self._inode = status.st_ino
                file.seek(self._offset)
                data = file.read(self._max_bytes)
        except FileNotFoundError:
            return b""
        self._offset += len(data)
        return data
