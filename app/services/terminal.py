"""What the terminal, or whatever stdout is, can show. Called by the CLI and the terminal interface."""

from __future__ import annotations

import io
import locale
import os
import sys


def prefers_ascii() -> bool:
    """The Linux console and a locale that is not UTF-8 cannot draw the patterns."""
    encoding = (getattr(sys.stdout, "encoding", "") or locale.getpreferredencoding(False)).lower()
    return os.environ.get("TERM") == "linux" or "utf" not in encoding


def escape_what_cannot_be_shown() -> None:
    """A character that the encoding of stdout or stderr lacks becomes ``\\xe9``, and not the end of the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and "utf" not in (stream.encoding or "").lower():
            stream.reconfigure(errors="backslashreplace")
