"""One row as it stands in a file, before anybody asked what it means. What every reader yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

MAX_RECORD_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    line: int  # where it starts; for formats without lines, the number of the row
    kind: Literal["row", "blank", "bad"] = "row"
    value: Any = None
    problem: str = ""  # kind "bad": why, for people


Reader = Callable[[BinaryIO], Iterator[Record]]


def is_utf8(text: str) -> bool:
    """False when surrogateescape had to stand in for a byte."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
