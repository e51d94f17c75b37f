"""What this process really holds, instant by instant, to be laid beside the plan. Called by the worker and the trainer.

Three readings, never mixed (DESIGN section 5):
    allocated  held by tensors         CUDA: torch's allocator     CPU: used - baseline
    reserved   held by the allocator   CUDA: torch's allocator     CPU: the same as allocated
    used       held by the process     CUDA: NVML                  CPU: resident set

On CPU the peak of an instant is VmHWM, reset through /proc/self/clear_refs. It follows tensors only if freed blocks go
back to the system, which glibc's growing mmap threshold prevents: on an 8-layer model whose tensors peak at 218 MB the
resident set showed 308-321 MB by default and 214 MB with MALLOC_MMAP_THRESHOLD_=131072 and
MALLOC_TRIM_THRESHOLD_=131072 in the environment (steps took 25-40 % longer: blocks of 0.1 to 32 MB fault in anew each
time). The supervisor starts CPU workers with both.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

MeasuredInstant = Literal["load", "forward", "backward", "step", "evaluation", "save"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The highest of each since the previous lap, bytes."""

    allocated_bytes: int
    reserved_bytes: int
    used_bytes: int


class Probe(Protocol):
    baseline_bytes: int  # used before the first tensor: interpreter and imports, or the CUDA context

    def allocatable_bytes(self) -> int | None:
        """What tensors of this process could have now, those that are there included; None: nobody knows."""
        ...

    def lap(self) -> Reading:
        """The highest readings since the previous lap; starts the next one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    instant: MeasuredInstant
    reading: Reading


class MemoryMeter:
    """Keeps the highest reading of each instant since the last rows, and of the whole run."""

    def __init__(self, probe: Probe, *, rank: int, clock: Callable[[], float] = time.time) -> None:
        self.probe = probe
        self.rank = rank
        self.peak: Peak | None = None
        self.last_instant: MeasuredInstant | None = None  # measured last: where a failure happened
        self._clock = clock
        self._highest: dict[MeasuredInstant, Reading] = {}

    @contextmanager
    def during(self, instant: MeasuredInstant) -> Iterator[None]:
        """What happens inside, and since the previous measurement, belongs to ``instant``; failures included."""
        try:
            yield
        finally:
            self._measure(instant)

    def rows(self, step: int) -> list[dict[str, Any]]:
        """Rows for memory.jsonl, one for each instant seen since the last call."""
        peak_bytes = self.peak.reading.used_bytes if self.peak else 0
        rows = [
            {
                "time": self._clock(),
                "step": step,
                "rank": self.rank,
                "instant": instant,
                "allocated_bytes": reading.allocated_bytes,
                "reserved_bytes": reading.reserved_bytes,
                "used_bytes": reading.used_bytes,
                "peak_bytes": peak_bytes,
                "baseline_bytes": self.probe.baseline_bytes,
            }
            for instant, reading in self._highest.items()
        ]
        self._highest.clear()
        return rows

    def at_failure(self) -> dict[str, Any]:
        """Where memory ended, and what there was of it: {"instant", "allocatable_bytes"}."""
        return {"instant": self.last_instant, "allocatable_bytes": self.probe.allocatable_bytes()}

    def peak_event(self, plan_file: Path) -> dict[str, Any]:
        """Data of the ``memory_peak`` event: measured beside planned, where the run has a plan.json."""
        assert self.peak is not None, "no lap was taken"
        reading = self.peak.reading
        return {
            "rank": self.rank,
            "instant": self.peak.instant,
            "allocated_bytes": reading.allocated_bytes,
            "reserved_bytes": reading.reserved_bytes,
            "used_bytes": reading.used_bytes,
            "baseline_bytes": self.probe.baseline_bytes,
        } | _planned_peak(plan_file, self.rank)

    def _measure(self, instant: MeasuredInstant) -> None:
        self.last_instant = instant
        reading = self.probe.lap()
        before = self._highest.get(instant)
        self._highest[instant] = reading if before is None else _highest(before, reading)
        if self.peak is None or reading.used_bytes > self.peak.reading.used_bytes or (
            reading.used_bytes == self.peak.reading.used_bytes
            and reading.allocated_bytes > self.peak.reading.allocated_bytes
        ):  # fmt: skip
            self.peak = Peak(instant=instant, reading=reading)


class CpuProbe:
    """Resident set of this process. Build it after the imports and before the first tensor.

    Where clear_refs cannot be written (not Linux, or a hardened container) VmHWM only grows: the peak of the run is
    still exact, an instant below an earlier peak shows its resident set at the end instead of its own peak.
    """

    def __init__(self) -> None:
        self._can_reset = _reset_high_water()
        self._high_water = 0
        self.baseline_bytes, self._high_water = _resident()

    def allocatable_bytes(self) -> int | None:
        """What the host has free, or the limit of the data segment leaves (`ulimit -d`), and what is held."""
        import psutil

        resident, _ = _resident()
        free = int(psutil.virtual_memory().available)
        limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
        if limit != resource.RLIM_INFINITY:
            data = _status_bytes("VmData")
            if data is None:
                return None
            free = min(free, max(0, limit - data))
        return max(0, resident - self.baseline_bytes) + free

    def lap(self) -> Reading:
        resident, high_water = _resident()
        highest = high_water if self._can_reset or high_water > self._high_water else resident
        self._high_water = high_water
        if self._can_reset:
            _reset_high_water()
        above = max(0, highest - self.baseline_bytes)
        return Reading(allocated_bytes=above, reserved_bytes=above, used_bytes=highest)


class CudaProbe:
    """torch's allocator of one device, and what NVML says this process uses of it.

    Where NVML hides processes (some containers) the memory used on the whole device stands in.
    """

    def __init__(self, device: torch.device) -> None:
        import pynvml

        torch.cuda.init()
        torch.zeros(1, device=device)  # creates the context, which belongs to the baseline
        pynvml.nvmlInit()
        self._nvml = pynvml
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        self._device = device
        self._seen_reserved = 0
        self._used = self._read_used()
        self.baseline_bytes = self._used - torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)

    def lap(self) -> Reading:
        reserved = torch.cuda.max_memory_reserved(self._device)
        if reserved != self._seen_reserved:  # NVML takes a millisecond; what it shows moves with the reserved bytes
            self._seen_reserved = reserved
            self._used = self._read_used()
        reading = Reading(
            allocated_bytes=torch.cuda.max_memory_allocated(self._device),
            reserved_bytes=reserved,
            used_bytes=self._used,
        )
        torch.cuda.reset_peak_memory_stats(self._device)
        return reading

    def allocatable_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._device)
        return free + torch.cuda.memory_reserved(self._device)

    def _read_used(self) -> int:
        for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle):
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory)
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)


def warm_up(device: torch.device) -> None:
    """Let torch load and start what the first step would (kernels, thread pools, the autograd engine), so that it
    counts as baseline and not as part of the model."""
    weight = torch.ones(64, 64, device=device, requires_grad=True)
    (weight @ weight).sum().backward()


def build_probe(device: torch.device) -> Probe:
    return CudaProbe(device) if device.type == "cuda" else CpuProbe()


def _highest(a: Reading, b: Reading) -> Reading:
    return Reading(
        allocated_bytes=max(a.allocated_bytes, b.allocated_bytes),
        reserved_bytes=max(a.reserved_bytes, b.reserved_bytes),
        used_bytes=max(a.used_bytes, b.used_bytes),
    )


def _planned_peak(plan_file: Path, rank: int) -> dict[str, int]:
    try:
        gpus = json.loads(plan_file.read_text())["gpus"]
    except FileNotFoundError:
        return {}
    planned = next((gpu["peak"] for gpu in gpus if gpu["index"] == rank), None)
    if planned is None:
        return {}
    return {f"planned_{name}": planned[name] for name in ("allocated_bytes", "reserved_bytes", "used_bytes")}


def _resident() -> tuple[int, int]:
    """(resident set, its high-water mark) of this process, bytes."""
    resident, high_water = _status_bytes("VmRSS"), _status_bytes("VmHWM")
    if resident is not None and high_water is not None:
        return resident, high_water
    import psutil

    unit = 1 if sys.platform == "darwin" else 1024
    return psutil.Process().memory_info().rss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status_bytes(field: str) -> int | None:
    """A field of /proc/self/status (Linux); None where there is none."""
    try:
        with open("/proc/self/status") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith(f"{field}:")), None)
    except OSError:
        return None


def _reset_high_water() -> bool:
    """proc(5): writing 5 to clear_refs sets VmHWM to the current resident set (Linux 4.0)."""
    try:
        with open("/proc/self/clear_refs", "w") as clear_refs:
            clear_refs.write("5")
    except OSError:
        return False
    return True
