from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from core.run.process import boot_id, descendants, identify, is_alive, rss_bytes, send_signal
from planner.types import ProcessId
from tests.core.run.run_cases import wait_for

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


def test_a_process_is_alive_until_it_ends_even_as_a_zombie():
    child = subprocess.Popen(SLEEP)
    process = identify(child.pid)
    assert process is not None
    assert is_alive(process)
    os.kill(child.pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(process), seconds=5)
    os.kill(child.pid, 0)  # the zombie still answers: this is why liveness is not judged by it
    assert identify(child.pid) is None
    child.wait()
    assert not is_alive(process)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads of a zombie are seen in /proc")
def test_a_process_whose_first_thread_ended_lives_as_long_as_its_other_threads():
    code = (
        "import ctypes, threading, time;"
        "threading.Thread(target=time.sleep, args=(60,)).start();"
        "ctypes.CDLL(None).pthread_exit(None)"
    )  # fmt: skip
    child = subprocess.Popen([sys.executable, "-S", "-c", code])
    process = identify(child.pid)
    assert process is not None
    state = Path(f"/proc/{child.pid}/stat")
    wait_for(lambda: state.read_text().rpartition(") ")[2].startswith("Z"), seconds=10)
    assert child.poll() is None  # waitpid waits for the other thread
    assert is_alive(process)
    assert send_signal(process, signal.SIGKILL)
    assert child.wait(10) == -signal.SIGKILL
    assert not is_alive(process)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "yesterday"}])
def test_the_same_pid_is_another_process_after_reuse_or_reboot(change):
    own = identify(os.getpid())
    assert own is not None
    assert is_alive(own)
    assert not is_alive(replace(own, **change))


def test_a_signal_never_hits_who_took_the_pid_over():
    child = subprocess.Popen(SLEEP)
    process = identify(child.pid)
    assert process is not None
    assert not send_signal(replace(process, start_ticks=process.start_ticks - 1), signal.SIGKILL)
    assert child.poll() is None
    assert send_signal(process, signal.SIGKILL)
    assert child.wait(10) == -signal.SIGKILL
    assert not send_signal(process, signal.SIGKILL)


def test_descendants_are_found_through_sessions_of_their_own():
    code = (
        "import subprocess, sys, time;"
        f"subprocess.Popen({SLEEP!r}, start_new_session=True);"
        "time.sleep(60)"
    )  # fmt: skip
    child = subprocess.Popen([sys.executable, "-S", "-c", code])
    try:
        found = wait_for(lambda: f if len(f := descendants(child.pid)) == 1 else None)
        assert child.pid in {process.pid for process in descendants(os.getpid())}
    finally:
        for process in (*descendants(child.pid), identify(child.pid)):
            send_signal(process, signal.SIGKILL)
        child.wait()
    wait_for(lambda: not is_alive(found[0]), seconds=5)


def test_resident_bytes_of_a_process_and_of_none():
    assert 1 << 20 < (rss_bytes(os.getpid()) or 0) < 1 << 36
    assert rss_bytes(2**22 + 1) is None
    assert not is_alive(ProcessId(pid=2**22 + 1, start_ticks=1, boot_id=boot_id()))


def test_a_name_with_brackets_and_spaces_is_read_right(tmp_path):
    program = tmp_path / "a) R 1 (b"
    os.symlink("/bin/sleep", program)
    child = subprocess.Popen([str(program), "60"])
    try:
        assert wait_for(lambda: identify(child.pid)).pid == child.pid
        assert child.pid in {process.pid for process in descendants(os.getpid())}
    finally:
        child.kill()
        child.wait()
