"""A growing log of any size as numbered lines: the file is scanned once for line ends and read only where it is shown.

Used by the log view. 50 MB are indexed in well under a second and take 8 bytes a line.
"""

from __future__ import annotations

import io
import os
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path
from typing import Literal

Severity = Literal["error", "warning"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning")  # most severe first
_ERRORS = (b"error", b"traceback", b"exception", b"out of memory")
_WORDS: dict[Severity, tuple[bytes, ...]] = {"error": _ERRORS, "warning": (*_ERRORS, b"warning", b"warn:")}
_CHUNK_BYTES = 1 << 22
_MAX_LINE_BYTES = 1 << 14  # a longer line is shown in part
_SCAN_LINES = 1 << 15


@dataclass(slots=True)
class _Severe:
    """Lines of one severity found so far."""

    generation: int = 0
    num_scanned: int = 0
    lines: array[int] = field(default_factory=lambda: array("Q"))


class LogFile:
    """``refresh`` takes in what was appended; ``lines`` reads some of them. A replaced or cut file starts anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0  # grows when the file was replaced: line numbers of before mean nothing then
        self._starts = array("Q", [0])  # offset of each line; the last one is where the next line begins
        self.size = 0  # bytes taken in
        self.changed_at = 0.0  # unix seconds; 0 while there is no file
        self._inode: int | None = None
        self._severe: dict[Severity, _Severe] = {}
        self._severe_lock = threading.Lock()  # the first scan of a long log is done in a thread

    def __len__(self) -> int:
        """Lines, an unfinished last one included."""
        return len(self._starts) - (0 if self._starts[-1] < self.size else 1)

    def refresh(self) -> bool:
        """True when there is something new."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if self._inode is not None and (status.st_ino != self._inode or status.st_size < self.size):
                    self._starts, self.size = array("Q", [0]), 0
                    self.generation += 1
                self._inode, self.changed_at = status.st_ino, status.st_mtime
                if status.st_size == self.size:
                    return False
                file.seek(self.size)
                while chunk := file.read(_CHUNK_BYTES):
                    self._index(chunk)
                return True
        except OSError:
            return False  # not there yet, or out of reach for a moment

    def _index(self, chunk: bytes) -> None:
        lengths = map(len, chunk.split(b"\n")[:-1])
        ends = accumulate(map((1).__add__, lengths), initial=self.size)  # all in C: half a million lines in 50 ms
        self._starts.extend(islice(ends, 1, None))
        self.size += len(chunk)

    def lines(self, start: int, stop: int) -> list[str]:
        """Lines ``start`` to ``stop`` as text. Of a line that a progress bar rewrote, what it last said."""
        start, stop = max(0, start), min(stop, len(self))
        if start >= stop:
            return []
        ends = [*self._starts[start + 1 : stop + 1], *([self.size] if stop == len(self._starts) else [])]
        begins = self._starts[start:stop]
        try:
            with self.path.open("rb", buffering=0) as file:
                return [_text(line) for line in _pieces(file, begins, ends)]
        except OSError:
            return [""] * (stop - start)

    def severe(self, severity: Severity) -> Sequence[int]:
        """Numbers of the lines that are at least so severe; each byte of the file is looked at once."""
        with self._severe_lock:
            found = self._severe.setdefault(severity, _Severe())
            if found.generation != self.generation:
                found = self._severe[severity] = _Severe(generation=self.generation)
            for low in range(found.num_scanned, len(self._starts) - 1, _SCAN_LINES):  # complete lines only
                high = min(low + _SCAN_LINES, len(self._starts) - 1)
                found.lines.extend(sorted(self._hits(_WORDS[severity], low, high)))
                found.num_scanned = high
            return found.lines

    def find(self, needle: str, start: int, *, backwards: bool = False) -> int | None:
        """The next line that contains ``needle`` (case ignored), from ``start`` on and around the end; None if none."""
        wanted, count = needle.lower(), len(self)
        if not wanted or not count:
            return None
        start %= count
        if backwards:
            ranges = ((0, start + 1), (start + 1, count))
        else:
            ranges = ((start, count), (0, start))
        hits = (self._scan(wanted, low, high, last=backwards) for low, high in ranges)
        return next((hit for hit in hits if hit is not None), None)

    def _scan(self, wanted: str, start: int, stop: int, *, last: bool) -> int | None:
        """The first (or last) hit in a range, read in blocks from that end."""
        blocks = range(start, stop, _SCAN_LINES)
        for low in reversed(blocks) if last else blocks:
            high = min(low + _SCAN_LINES, stop)
            if wanted.isascii():  # bytes say quickly which lines may have it
                candidates = sorted(self._hits((wanted.encode(),), low, high), reverse=last)
            else:
                candidates = list(range(low, high)[:: -1 if last else 1])
            for index in candidates:
                if wanted in self.lines(index, index + 1)[0].lower():
                    return index
        return None

    def _hits(self, words: tuple[bytes, ...], start: int, stop: int) -> set[int]:
        """Lines of a range whose bytes contain one of ``words``, which are lower case."""
        first = self._starts[start]
        end = self._starts[stop] if stop < len(self._starts) else self.size
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(first)
                data = _read(file, end - first).lower()
        except OSError:
            return set()
        found = set()
        for word in words:
            position = data.find(word)
            while position != -1:
                line = bisect_right(self._starts, first + position, start, min(stop + 1, len(self._starts))) - 1
                found.add(line)
                after = self._starts[line + 1] - first if line + 1 < len(self._starts) else len(data)
                position = data.find(word, after)
        return found


def severity_of(text: str) -> Severity | None:
    """By the words of a line: what failed, what warns; None for the rest."""
    lowered = text.lower().encode(errors="replace")
    return next((name for name in SEVERITIES if any(word in lowered for word in _WORDS[name])), None)


def _pieces(file: io.RawIOBase, begins: Sequence[int], ends: Sequence[int]) -> Iterator[bytes]:
    """The beginning of every line; one read where they are close together."""
    if ends[-1] - begins[0] <= len(ends) * _MAX_LINE_BYTES:
        file.seek(begins[0])
        data = _read(file, ends[-1] - begins[0])
        for begin, end in zip(begins, ends, strict=True):
            yield data[begin - begins[0] : min(end - begins[0], begin - begins[0] + _MAX_LINE_BYTES)]
        return
    for begin, end in zip(begins, ends, strict=True):
        file.seek(begin)
        yield _read(file, min(end - begin, _MAX_LINE_BYTES))


def _read(file: io.RawIOBase, size: int) -> bytes:
    pieces = []
    while size > 0 and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _text(line: bytes) -> str:
    """Bytes that are no UTF-8 are shown as ``\\xff``: nothing of a log is hidden."""
    return line.rstrip(b"\r\n").rpartition(b"\r")[2].decode("utf-8", errors="backslashreplace")
