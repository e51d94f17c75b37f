"""A file is replaced whole or not at all. Called by everyone who writes a file that another process reads."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def atomic_write(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write beside ``path`` and rename over it, so that a reader or a kill sees the old file or the new one.

    ``durable`` also survives a power cut (fsync of file and folder); leave it off for files rewritten every second.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".tmp-{path.name}-{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make the names in this directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
