"""The terminal interface as a person runs it: in tmux on a real run, and on a terminal that takes little at a time."""

from __future__ import annotations

import fcntl
import os
import pty
import secrets
import shlex
import shutil
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import suppress

import pytest

from app.services.launch import launch_preset
from app.services.runs import observed_state
from tests.app.runs import append_steps, make_run
from tests.core.run.run_cases import wait_for

LONGFIT = [sys.executable, "-m", "app.cli.main"]


class Tmux:
    """A server of its own, with one window of 80 x 24."""

    def __init__(self, command):
        self._server = f"longfit-test-{secrets.token_hex(4)}"  # one that is ending still holds its name for a moment
        shell = f"{shlex.join(command)}; echo left with $?; sleep 600"
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        self.call("new-session", "-d", "-x", "80", "-y", "24", shell, env=environment)

    def call(self, *arguments, env=None):
        done = subprocess.run(
            ["tmux", "-L", self._server, "-f", "/dev/null", *arguments], env=env, capture_output=True, text=True,
            timeout=30, check=True,
        )  # fmt: skip
        return done.stdout

    def screen(self):
        return self.call("capture-pane", "-p")

    def press(self, *keys):
        self.call("send-keys", *keys)

    def until(self, *facts, seconds=90):
        deadline = time.monotonic() + seconds
        while True:
            screen = self.screen()
            if all(fact in screen for fact in facts):
                return screen
            assert time.monotonic() < deadline, f"not all of {facts} within {seconds} s in\n{screen}"
            time.sleep(0.1)

    def close(self):
        with suppress(subprocess.CalledProcessError):
            self.call("kill-server")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_real_run_is_followed_searched_stopped_and_resumed_in_tmux(tiny_preset):
    run = launch_preset(tiny_preset(max_steps=100_000), gpu="cpu")
    tmux = Tmux([*LONGFIT, "attach", "last"])
    try:
        screen = tmux.until("RUNNING", "of 100,000", run.id, "Memory against plan", "tokens/s")
        assert len(screen.rstrip("\n").split("\n")) <= 24
        tmux.press("t")
        tmux.until("Events", "training, 100,000 steps")
        tmux.press("g")
        tmux.until("Loss, by tokens")
        tmux.press("t", "t", "/")
        tmux.until("Search the log")
        tmux.press("held-out", "Enter")
        tmux.until("search 'held-out'", "f follows")
        tmux.press("f")
        tmux.until("following")
        tmux.press("q")
        tmux.until("The run goes on. `longfit attach", "left with 0")
        assert observed_state(run).status == "running"
        tmux.close()
        tmux = Tmux([*LONGFIT, "attach", "last"])
        tmux.until("RUNNING")
        tmux.close()  # a terminal that is closed, or a connection that breaks: nobody said goodbye
        tmux = Tmux([*LONGFIT, "attach", "last"])
        tmux.until("RUNNING")
        assert observed_state(run).attempt == 1
        tmux.press("x")
        tmux.until("STOPPED", "resumable")
        stopped_at = observed_state(run).step
        tmux.press("r")
        tmux.until("RUNNING", "attempt 2")
        wait_for(lambda: observed_state(run).step > stopped_at)
        tmux.press("X")
        tmux.until("Kill?")
        tmux.press("y")
        tmux.until("STOPPED")
        tmux.press("q")
        tmux.until("stopped: step", "left with 0")
    finally:
        tmux.close()


def test_on_a_slow_terminal_keys_are_heard_and_leaving_gives_the_terminal_back_within_three_seconds(tmp_path):
    """64 bytes at a time, with pauses, while the run logs a hundred lines a second."""
    run = make_run(tmp_path)
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(follower)
    process = subprocess.Popen(
        [*LONGFIT, "attach", str(run)], stdin=follower, stdout=follower, stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", "SSH_CONNECTION": "1 2 3 4"}, close_fds=True,
    )  # fmt: skip
    taken = bytearray()
    is_slow = threading.Event()
    is_slow.set()
    reader = threading.Thread(target=drain, args=(leader, taken, is_slow), daemon=True)
    reader.start()
    try:
        wait_for(lambda: b"RUNNING" in taken, seconds=60, what="RUNNING")
        for step in range(41, 141):
            append_steps(run, step, step)
        os.write(leader, b"t")
        wait_for(lambda: b"Events" in taken, seconds=60, what="Events")
        os.write(leader, b"q")
        pressed = time.monotonic()
        assert process.wait(30) == 0
        assert time.monotonic() - pressed < 3 + load()
        is_slow.clear()
        wait_for(lambda: b"\x1b[?1049l" in taken, seconds=10, what="the screen of before")
        assert b"The run goes on" in taken
        assert termios.tcgetattr(follower)[3] == before[3]  # echo and lines are back
        assert list((run / "control").iterdir()) == []
    finally:
        process.kill()
        os.close(follower)
        reader.join(5)


def test_the_linux_console_gets_ascii_alone(tmp_path):
    run = make_run(tmp_path)
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [*LONGFIT, "attach", str(run)], stdin=follower, stdout=follower, stderr=follower,
        env={**os.environ, "TERM": "linux", "LC_ALL": "C"}, close_fds=True,
    )  # fmt: skip
    taken, is_slow = bytearray(), threading.Event()
    reader = threading.Thread(target=drain, args=(leader, taken, is_slow), daemon=True)
    reader.start()
    try:
        wait_for(lambda: b"step 40 of 100" in taken and b"Memory against plan" in taken, seconds=60)
        os.write(leader, b"q")
        assert process.wait(30) == 0
        assert bytes(taken).isascii()
    finally:
        process.kill()
        os.close(follower)
        reader.join(5)


def load() -> float:
    """Seconds to grant for a machine whose cores are taken: none on an idle one."""
    return 3.0 * max(0.0, os.getloadavg()[0] / (os.cpu_count() or 1) - 1)


def drain(descriptor, taken, is_slow):
    while True:
        try:
            data = os.read(descriptor, 64 if is_slow.is_set() else 65536)
        except OSError:
            return
        if not data:
            return
        taken += data
        if is_slow.is_set():
            time.sleep(0.002)
