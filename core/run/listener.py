"""The supervisor's end of the line: a Unix-domain socket that workers connect to, one JSON object a line.

A connection that closes is a message too: it is the first sign that its process died.
"""

from __future__ import annotations

import json
import selectors
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.run.jsonl import encode_line

_MAX_PATH_BYTES = 100  # sun_path has 108 on Linux, 104 on macOS
_MAX_LINE_BYTES = 16 << 20
_READ_BYTES = 1 << 16
_DRAIN_SECONDS = 1.0


@dataclass(eq=False, slots=True)
class Connection:
    """One process. ``rank`` is None until a rank said hello; the launcher's stays None."""

    socket: socket.socket
    rank: int | None = None
    is_done: bool = False  # it said that its work is done
    is_asked: bool = False  # it was told to save and stop
    is_open: bool = True
    buffer: bytes = field(default=b"", repr=False)

    def send(self, message: dict[str, Any]) -> None:
        """A line so short and rare always fits into the socket's buffer; when it is gone, its end is seen elsewhere."""
        with suppress(OSError):
            self.socket.send(encode_line(message))


class Listener:
    """Lives in a private folder with a short path: a run directory's may be too long for a socket, or lie on a file
    system without them."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="longfit-"))
        if len(bytes(self._folder)) + 2 > _MAX_PATH_BYTES:
            self._folder.rmdir()
            self._folder = Path(tempfile.mkdtemp(prefix="longfit-", dir="/tmp"))
        self.path = str(self._folder / "s")
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self.path)
        self._server.listen(128)
        self._server.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._connections: list[Connection] = []
        self._is_open = True

    def poll(self, timeout_seconds: float) -> Iterator[tuple[Connection, dict[str, Any] | None]]:
        """Messages as they come within the time, oldest first per connection; None when a connection has closed."""
        for key, _ in self._selector.select(timeout_seconds):
            if key.fileobj is self._server:
                self._accept()
            else:
                yield from self._read(key.data)

    def drain(self) -> Iterator[tuple[Connection, dict[str, Any] | None]]:
        """All that was sent before this call and is not read yet: what a process said before it died is all here."""
        deadline = time.monotonic() + _DRAIN_SECONDS  # live ranks may go on sending meanwhile
        while self._selector.select(0) and time.monotonic() < deadline:
            yield from self.poll(0)

    def ask_to_save(self) -> None:
        """Tell every rank, once, to save and stop."""
        for connection in self._connections:
            if connection.rank is not None and not connection.is_asked:
                connection.is_asked = True
                connection.send({"stop": "save"})

    def close_door(self) -> None:
        """Everybody who was expected is connected: the socket's name goes, and no kill leaves it in /tmp."""
        if self._is_open:
            self._is_open = False
            self._selector.unregister(self._server)
            self._server.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Every process that is still connected ends itself."""
        self.close_door()
        for connection in [*self._connections]:
            self._forget(connection)
        self._selector.close()

    def _accept(self) -> None:
        try:
            accepted, _ = self._server.accept()
        except OSError:
            return  # it was gone before we came
        accepted.setblocking(False)
        connection = Connection(accepted)
        self._connections.append(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _read(self, connection: Connection) -> Iterator[tuple[Connection, dict[str, Any] | None]]:
        try:
            data = connection.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, connection.buffer = (connection.buffer + data).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                yield connection, message
        if not data or len(connection.buffer) > _MAX_LINE_BYTES:
            self._forget(connection)
            yield connection, None

    def _forget(self, connection: Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        connection.is_open = False
        self._connections.remove(connection)
