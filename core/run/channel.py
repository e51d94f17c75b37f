"""The worker's end of the line to its supervisor: events and rows out, stop requests in, and a lifeline.

Used by core/train/worker.py and core/run/launcher.py, before torch is imported, so that from its first moment on a
process cannot outlive its supervisor: when the socket closes, the process ends with code 75.

    with Channel.connect() as channel:          # NullChannel when nobody supervises: the same calls do nothing
        channel.event("phase", name="load")
        channel.metric({"step": 1, "loss": 2.0})
        if channel.stop_requested == "save": ...

Leaving the block says whether the work was done or failed, and with what. Two rules make a resumed curve whole:
``resumed`` is sent before the first metric row of a process that continues from a checkpoint, and ``sync`` is called
before a checkpoint is given its name, so that every row up to its step is in the file by then.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import socket
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Protocol

from core.run.jsonl import encode_line
from core.run.process import identify
from planner.errors import ConfigError, EnvironmentProblem

SOCKET_VARIABLE = "LONGFIT_SOCKET"
ORPHAN_EXIT_CODE = 75  # EX_TEMPFAIL: nothing is wrong with the work, it may be resumed
_QUEUE_LINES = 10_000
_FLUSH_SECONDS = 5.0


class RunChannel(Protocol):
    """What trainer code may ask of a channel."""

    def event(self, type: str, **data: Any) -> None: ...

    def metric(self, row: Mapping[str, Any]) -> None: ...

    def memory(self, row: Mapping[str, Any]) -> None: ...

    @property
    def stop_requested(self) -> Literal["save"] | None: ...

    def sync(self) -> bool: ...

    def failed(
        self, error: BaseException, *, step: int | None = None, memory: Mapping[str, Any] | None = None
    ) -> None: ...  # fmt: skip

    def close(self) -> None: ...


class NullChannel:
    """For a worker started by hand: there is nobody to tell."""

    stop_requested: Literal["save"] | None = None

    def event(self, type: str, **data: Any) -> None: ...

    def metric(self, row: Mapping[str, Any]) -> None: ...

    def memory(self, row: Mapping[str, Any]) -> None: ...

    def sync(self) -> bool:
        return True

    def failed(
        self, error: BaseException, *, step: int | None = None, memory: Mapping[str, Any] | None = None
    ) -> None: ...  # fmt: skip

    def close(self) -> None: ...

    def __enter__(self) -> NullChannel:
        return self

    def __exit__(self, *_: object) -> None: ...


class Channel:
    """Sends from a daemon thread, so that training never waits for the supervisor; rows beyond 10,000 unsent ones are
    dropped and counted in a ``warning``. A send that fails is never raised into training."""

    def __init__(self, path: str, *, rank: int | None) -> None:
        """``rank`` None is the launcher. Raises: OSError when the supervisor is not there."""
        self.stop_requested: Literal["save"] | None = None
        self._rank = rank
        self._num_dropped = 0
        self._has_failed = False
        self._closed = threading.Event()
        self._num_syncs = 0
        self._synced = threading.Condition()
        self._last_synced = 0
        self._lines: queue.Queue[bytes | None] = queue.Queue(_QUEUE_LINES)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        own = identify(os.getpid())
        assert own is not None
        hello = {"kind": "hello", "rank": rank, "pid": own.pid, "start_ticks": own.start_ticks, "boot_id": own.boot_id}
        self._socket.sendall(encode_line(hello))
        self._sender = threading.Thread(target=self._send, name="longfit-send", daemon=True)
        self._sender.start()
        threading.Thread(target=self._receive, name="longfit-lifeline", daemon=True).start()
        atexit.register(self._flush)

    @staticmethod
    def connect() -> Channel | NullChannel:
        """The channel named by LONGFIT_SOCKET, as rank RANK (none: the launcher). Ends the process with code 75 when
        the supervisor is already gone: nobody could stop what would follow."""
        path = os.environ.get(SOCKET_VARIABLE)
        if not path:
            return NullChannel()
        rank = os.environ.get("RANK")
        try:
            return Channel(path, rank=None if rank is None else int(rank))
        except OSError:
            os._exit(ORPHAN_EXIT_CODE)

    def event(self, type: str, **data: Any) -> None:
        """A line for events.jsonl; types as in planner/run_state.py. The rank is added."""
        self._put({"kind": "event", "type": type, "time": time.time(), "data": data}, wait_seconds=1.0)

    def metric(self, row: Mapping[str, Any]) -> None:
        """A row for metrics.jsonl."""
        self._put({"kind": "metric", "row": dict(row)})

    def memory(self, row: Mapping[str, Any]) -> None:
        """A row for memory.jsonl."""
        self._put({"kind": "memory", "row": dict(row)})

    def sync(self) -> bool:
        """Wait until everything sent so far is in the run's files; at most five seconds, then False."""
        self._num_syncs += 1
        number = self._num_syncs
        self._put({"kind": "sync", "number": number}, wait_seconds=1.0)
        with self._synced:
            return self._synced.wait_for(lambda: self._last_synced >= number, _FLUSH_SECONDS)

    def failed(
        self, error: BaseException, *, step: int | None = None, memory: Mapping[str, Any] | None = None
    ) -> None:  # fmt: skip
        """Name the cause before dying of it; only the first call counts. ``step`` defaults to ``error.step``;
        ``memory``: where memory ended, {"instant", "allocatable_bytes"} (MemoryMeter.at_failure)."""
        if self._has_failed:
            return
        self._has_failed = True
        self.event(
            "failure", kind=failure_kind(error), message=_message(error),
            step=getattr(error, "step", None) if step is None else step, memory=memory,
            traceback="".join(traceback.format_exception(error))[-8000:],
        )  # fmt: skip

    def close(self) -> None:
        """The work of this process is done. Without this call its end counts as a death."""
        if not self._closed.is_set():
            self._put({"kind": "done"}, wait_seconds=1.0)
            self._flush()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.close()
            return
        self.failed(error)
        self._flush()

    def _put(self, message: dict[str, Any], *, wait_seconds: float = 0.0) -> None:
        if self._closed.is_set():
            return
        try:
            self._lines.put(encode_line(message), block=wait_seconds > 0, timeout=wait_seconds or None)
        except queue.Full:
            self._num_dropped += 1

    def _flush(self) -> None:
        """Let the sender empty its queue, for at most five seconds."""
        if self._closed.is_set():
            return
        if self._num_dropped:
            self.event("warning", message=f"{self._num_dropped} rows were dropped: the supervisor did not read them")
        self._closed.set()
        with suppress(queue.Full):
            self._lines.put(None, timeout=_FLUSH_SECONDS)
        self._sender.join(_FLUSH_SECONDS)

    def _send(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._socket.sendall(line)
            except OSError:
                return  # the lifeline thread sees the same end and leaves

    def _receive(self) -> None:
        buffer = b""
        while True:
            try:
                data = self._socket.recv(4096)
            except OSError:
                data = b""
            if not data:
                os._exit(ORPHAN_EXIT_CODE)
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, message: Mapping[str, Any]) -> None:
        if message.get("stop") == "save":
            self.stop_requested = "save"
        elif "synced" in message:
            with self._synced:
                self._last_synced = int(message["synced"])
                self._synced.notify_all()


def failure_kind(error: BaseException) -> str:
    """One of the failure kinds of RunState: what the error's class says (``failure_kind``), or what its name tells,
    because torch may not be imported here."""
    said = getattr(error, "failure_kind", None)
    if isinstance(said, str):
        return said
    names = {cls.__name__ for cls in type(error).__mro__}
    if "OutOfMemoryError" in names or isinstance(error, MemoryError):
        return "oom"
    if isinstance(error, EnvironmentProblem):
        return "environment"
    if isinstance(error, ConfigError):
        return "data"
    return "error"


def _message(error: BaseException) -> str:
    if isinstance(error, ConfigError | EnvironmentProblem):
        return str(error)
    return f"{type(error).__name__}: {error}"
