"""Reads devices, host memory and disk about once a second, in a thread: a driver that blocks must not stop the run."""

from __future__ import annotations

import queue
import shutil
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from core.run.nvml import GpuReading, Nvml
from core.run.process import rss_bytes

PERIOD_SECONDS = 1.0
HEARTBEAT_SECONDS = 10.0  # a row is written at least this often; readers on other machines take it as a sign of life
_RELEVANT_CHANGE = 0.01


class Sampler:
    """Rows for memory.jsonl of the supervisor's kind:

    {"time", "source": "supervisor", "host_available_bytes", "host_total_bytes", "disk_free_bytes",
     "ranks": [{"rank", "rss_bytes"}],
     "gpus": [{"index", "used_bytes", "total_bytes", "utilization", "temperature", "power_watts"}]}

    What the driver does not tell is null; ``disk_free_bytes`` is of the file system that the run lies on.

    A row comes when a number moved by more than 1 %, or ten seconds after the last one.
    """

    def __init__(self, nvml: Nvml, folder: Path, *, period_seconds: float = PERIOD_SECONDS) -> None:
        self.nvml = nvml
        self._folder = folder
        self.highest_used: dict[int, int] = {}  # GPU index -> most bytes in use so far
        self.worker_pids: Mapping[int, int] = {}  # rank -> pid; replaced, never changed, by the supervisor
        self._period_seconds = period_seconds
        self._rows: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="longfit-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def rows(self) -> list[dict[str, Any]]:
        """Rows since the last call."""
        found = []
        while True:
            try:
                found.append(self._rows.get_nowait())
            except queue.Empty:
                return found

    def stop(self) -> None:
        """Waits for the thread at most two seconds: it may be stuck in the driver."""
        self._stopped.set()
        self._thread.join(2.0)

    def _sample(self) -> None:
        written: dict[str, Any] = {}
        wait_seconds = 0.0
        while not self._stopped.wait(wait_seconds):
            wait_seconds = self._period_seconds
            try:
                row = self._look()
            except Exception:  # the edge of a thread: a monitor that died without a word would be worse
                traceback.print_exc()  # to supervisor.log
                wait_seconds = HEARTBEAT_SECONDS
                continue
            if not written or is_worth_a_row(written, row):
                self._rows.put(row)
                written = row

    def _look(self) -> dict[str, Any]:
        gpus = self.nvml.read()
        for gpu in gpus:
            self.highest_used[gpu.index] = max(gpu.used_bytes or 0, self.highest_used.get(gpu.index, 0))
        return sample_row(gpus, self.worker_pids, folder=self._folder, now=time.time())


def sample_row(
    gpus: tuple[GpuReading, ...], worker_pids: Mapping[int, int], *, folder: Path, now: float
) -> dict[str, Any]:
    host = psutil.virtual_memory()
    ranks = ((rank, rss_bytes(pid)) for rank, pid in sorted(worker_pids.items()))
    return {
        "time": now,
        "source": "supervisor",
        "host_available_bytes": host.available,
        "host_total_bytes": host.total,
        "disk_free_bytes": _disk_free_bytes(folder),
        "ranks": [{"rank": rank, "rss_bytes": rss} for rank, rss in ranks if rss is not None],
        "gpus": [
            {"index": gpu.index, "used_bytes": gpu.used_bytes, "total_bytes": gpu.total_bytes,
             "utilization": gpu.utilization, "temperature": gpu.temperature, "power_watts": gpu.power_watts,
             **({"problem": gpu.problem} if gpu.problem else {})}
            for gpu in gpus
        ],
    }  # fmt: skip


def _disk_free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:  # a network folder that is away for a moment
        return None


def is_worth_a_row(written: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    if row["time"] - written["time"] >= HEARTBEAT_SECONDS:
        return True
    before, after = _numbers(written), _numbers(row)
    return before.keys() != after.keys() or any(
        abs(after[key] - value) > _RELEVANT_CHANGE * max(abs(value), 1) for key, value in before.items()
    )


def _numbers(row: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    """Memory of ranks and GPUs; the host's free memory moves for reasons that are not ours."""
    ranks = {("rank", entry["rank"]): entry["rss_bytes"] for entry in row["ranks"]}
    gpus = {("gpu", gpu["index"]): gpu["used_bytes"] for gpu in row["gpus"] if gpu["used_bytes"] is not None}
    return ranks | gpus
