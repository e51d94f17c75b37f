"""A process for good: pid + start ticks + boot id, and what may be done with one. Called by supervisor and readers.

A pid alone may be reused and a zombie answers ``kill(pid, 0)``, so both are told apart here, once. Linux reads /proc;
elsewhere psutil stands in, with its creation time in hundredths of a second as start ticks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from planner.types import ProcessId

_IS_LINUX = sys.platform.startswith("linux")
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@cache
def boot_id() -> str:
    """Changes with each boot, so that a pid of yesterday is never taken for one of today."""
    if _IS_LINUX:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"boot-{int(psutil.boot_time())}"


def identify(pid: int) -> ProcessId | None:
    """The process that has this pid now; None when there is none, or only a zombie."""
    found = _life(pid)
    if found is None or not found[0]:
        return None
    return ProcessId(pid=pid, start_ticks=found[1], boot_id=boot_id())


def is_alive(process: ProcessId) -> bool:
    """Is exactly this process running on this boot of this machine? A zombie is not."""
    return process.boot_id == boot_id() and identify(process.pid) == process


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone. A pid that was taken over by another is never hit."""
    try:
        descriptor = os.pidfd_open(process.pid)  # pins the process: no reuse between the check and the signal
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        return is_alive(process) and _kill(process.pid, number)
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def descendants(pid: int) -> tuple[ProcessId, ...]:
    """Children, their children and so on, zombies left out. Under a subreaper this includes adopted orphans."""
    children: dict[int, list[int]] = {}
    if _IS_LINUX:
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (fields := _stat_fields(int(entry))) is not None:
                children.setdefault(int(fields[1]), []).append(int(entry))
    else:
        with suppress(psutil.NoSuchProcess):
            children[pid] = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    found: list[ProcessId] = []
    pending = list(children.get(pid, ()))
    while pending:
        child = pending.pop()
        pending += children.get(child, ())
        if (process := identify(child)) is not None:
            found.append(process)
    return tuple(found)


def rss_bytes(pid: int) -> int | None:
    """Resident bytes of a process now, None when it is gone."""
    try:
        if _IS_LINUX:
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
        return int(psutil.Process(pid).memory_info().rss)
    except (OSError, ValueError, IndexError, psutil.Error):
        return None


def become_subreaper() -> bool:
    """Make the kernel hand every orphaned descendant to this process. Linux only: False elsewhere."""
    if not _IS_LINUX:
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _kill(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third on: state, parent, ... The name before them may hold any character."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _life(pid: int) -> tuple[bool, int] | None:
    """Whether it still runs, and its start ticks; None when there is no such process.

    A process shows as zombie once its first thread has ended. It is one only when all have: until then it holds its
    memory and its parent cannot learn how it ended (`delay_group_leader` in linux/kernel/exit.c).
    """
    if _IS_LINUX:
        fields = _stat_fields(pid)
        if fields is None:
            return None
        state, num_threads, start_ticks = fields[0], int(fields[17]), int(fields[19])  # 3, 20 and 22 of proc(5)
        return state not in "ZX" or num_threads > 1, start_ticks
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE, round(process.create_time() * 100)
    except psutil.Error:
        return None
