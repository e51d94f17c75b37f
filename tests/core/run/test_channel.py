"""The worker's side of the line, against a listener in this process; how processes end is in test_supervisor.py."""

from __future__ import annotations

import os
import threading
import time

import pytest

from core.run.channel import Channel, NullChannel, failure_kind
from core.run.listener import Listener
from planner.errors import ConfigError, EnvironmentProblem
from tests.core.run.run_cases import wait_for

# The lifeline thread is ended by an exception where it would end the process.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Line:
    """A listener that is polled from a thread, as the supervisor would, and answers syncs."""

    def __init__(self):
        self.listener = Listener()
        self.messages = []
        self.paused = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self):
        while not self._stop.is_set():
            if self.paused.is_set():
                time.sleep(0.01)
                continue
            for connection, message in self.listener.poll(0.02):
                self.messages.append(message)
                if message is not None and message["kind"] == "hello":
                    connection.rank = message["rank"]
                elif message is not None and message["kind"] == "sync":
                    connection.send({"synced": message["number"]})

    def of_kind(self, kind):
        return [message for message in self.messages if message is not None and message["kind"] == kind]

    def stop_polling(self):
        self._stop.set()
        self._thread.join()


@pytest.fixture
def line(monkeypatch):
    """The channel ends its process when the line closes; a test only wants to know that it would."""
    exits = []

    def end_the_thread_instead(code):
        exits.append(code)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", end_the_thread_instead)
    found = Line()
    found.exits = exits
    yield found
    found.stop_polling()
    found.listener.close()
    wait_for(lambda: exits or not found.of_kind("hello"), seconds=10)


def test_what_is_said_arrives_in_order_with_the_rank(line):
    channel = Channel(line.listener.path, rank=3)
    channel.event("phase", name="load")
    channel.metric({"step": 1, "loss": float("nan")})
    channel.memory({"step": 1, "rank": 3})
    channel.close()
    wait_for(lambda: line.of_kind("done"))
    kinds = [message["kind"] for message in line.messages if message is not None]
    assert kinds == ["hello", "event", "metric", "memory", "done"]
    hello = line.messages[0]
    assert (hello["rank"], hello["pid"]) == (3, os.getpid())
    assert line.of_kind("event")[0]["data"] == {"name": "load"}
    assert line.of_kind("metric")[0]["row"] == {"step": 1, "loss": None, "nonfinite": True}


def test_a_stop_reaches_the_worker_once(line):
    channel = Channel(line.listener.path, rank=0)
    assert channel.stop_requested is None
    wait_for(lambda: line.of_kind("hello"))
    line.listener.ask_to_save()
    line.listener.ask_to_save()
    wait_for(lambda: channel.stop_requested == "save", seconds=10)


def test_sync_returns_once_all_was_taken_in(line):
    channel = Channel(line.listener.path, rank=0)
    for step in range(500):
        channel.metric({"step": step})
    assert channel.sync()
    assert len(line.of_kind("metric")) == 500


def test_a_supervisor_that_does_not_read_never_stops_training(line, monkeypatch):
    monkeypatch.setattr("core.run.channel._FLUSH_SECONDS", 0.2)
    channel = Channel(line.listener.path, rank=0)
    wait_for(lambda: line.of_kind("hello"))
    line.paused.set()
    started = time.monotonic()
    for step in range(60_000):
        channel.metric({"step": step, "text": "x" * 20})
    assert time.monotonic() - started < 20
    assert not channel.sync()
    line.paused.clear()
    wait_for(lambda: len(line.of_kind("metric")) >= 10_000)
    channel.close()
    wait_for(lambda: line.of_kind("event"))
    assert "rows were dropped" in line.of_kind("event")[0]["data"]["message"]


def test_leaving_with_an_error_names_it_and_says_no_done(line):
    class Stuck(RuntimeError):
        step = 7

    with pytest.raises(Stuck), Channel(line.listener.path, rank=1):
        raise Stuck("no way on")
    wait_for(lambda: line.of_kind("event"))
    (failure,) = line.of_kind("event")
    assert failure["type"] == "failure"
    assert failure["data"]["message"] == "Stuck: no way on"
    assert failure["data"]["step"] == 7
    assert "raise Stuck" in failure["data"]["traceback"]
    assert line.of_kind("done") == []


def test_a_closing_line_ends_the_process(line):
    Channel(line.listener.path, rank=0)
    wait_for(lambda: line.of_kind("hello"))
    line.stop_polling()
    line.listener.close()
    wait_for(lambda: line.exits == [75], seconds=10)


def test_without_a_supervisor_the_same_calls_do_nothing(monkeypatch):
    monkeypatch.delenv("LONGFIT_SOCKET", raising=False)
    with Channel.connect() as channel:
        assert isinstance(channel, NullChannel)
        channel.event("phase", name="load")
        channel.metric({"step": 1})
        assert channel.sync()
        assert channel.stop_requested is None


class OutOfMemoryError(RuntimeError):
    """Named as torch's is."""


class Nan(RuntimeError):
    failure_kind = "nonfinite"


@pytest.mark.parametrize(
    ("error", "kind"),
    [(OutOfMemoryError(), "oom"), (MemoryError(), "oom"), (ConfigError("x"), "data"), (Nan(), "nonfinite"),
     (EnvironmentProblem("x"), "environment"), (ValueError(), "error")],
)  # fmt: skip
def test_the_kind_of_a_failure(error, kind):
    assert failure_kind(error) == kind
