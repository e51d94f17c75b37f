"""The line on which `data` and `train` show how far the data is read: at a terminal only, gone at the end."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import Self

from app.views.data_report import printable, progress_words


class ReadingLine:
    """Called with what app/services/prepare_data.py tells; a context manager that leaves the line empty."""

    def __init__(self) -> None:
        self._is_on = sys.stderr.isatty()
        self._shown = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.clear()

    def __call__(self, rows: int, file: str, share: float | None) -> None:
        words = printable(progress_words(rows, file, share))
        self._write(words[: shutil.get_terminal_size().columns - 1])  # a line that wraps cannot be taken back

    def clear(self) -> None:
        """Before anything else is said."""
        if self._shown:
            self._write("")

    def _write(self, words: str) -> None:
        if self._is_on:
            print(f"\r{words.ljust(self._shown)}\r", end="", file=sys.stderr, flush=True)
            self._shown = len(words)
