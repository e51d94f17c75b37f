"""Measured memory of a run laid beside its plan: rows per rank and per instant, fed with rows of memory.jsonl.

Two kinds of rows come in: those of a worker (its own peaks, per instant) and those of the supervisor (resident sets,
GPUs as NVML shows them, free host memory). Like is compared with like: a rank's allocated bytes above its baseline
against the planned allocated peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.views.format import format_bytes, format_deviation, format_share
from app.views.series import DecimatedSeries
from planner.measured import MEASURED_INSTANTS, is_comparable

DRIFT_FRACTION = 0.25  # above plan by more than this: something that was planned is probably not active


@dataclass(slots=True)
class RankMemory:
    """Bytes of one rank. ``peaks``: measured instant -> highest allocated bytes of the run."""

    allocated_bytes: int = 0  # the highest since the row before
    used_bytes: int = 0
    used_peak_bytes: int = 0
    peaks: dict[str, int] = field(default_factory=dict)
    resident_bytes: int = 0  # as the supervisor sees the process
    curve: DecimatedSeries = field(default_factory=lambda: DecimatedSeries(capacity=512))

    @property
    def peak_bytes(self) -> int:
        return max(self.peaks.values(), default=0)

    @property
    def peak_instant(self) -> str:
        return max(self.peaks, key=self.peaks.__getitem__, default="")


@dataclass(slots=True)
class MemoryHistory:
    ranks: dict[int, RankMemory] = field(default_factory=dict)
    gpus: tuple[Mapping[str, Any], ...] = ()  # newest of NVML, as core/run/sampler.py describes them
    host_available_bytes: int | None = None
    host_total_bytes: int | None = None
    disk_free_bytes: int | None = None

    def extend(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Take in rows of memory.jsonl; returns how many there were."""
        count = 0
        for count, row in enumerate(rows, start=1):  # noqa: B007  # the count is the answer
            if row.get("source") == "supervisor":
                self._add_supervisor(row)
            elif "rank" in row:
                self._add_worker(row)
        return count

    def _add_supervisor(self, row: Mapping[str, Any]) -> None:
        if row.get("gpus") or not self.gpus:  # a driver that fails for a moment leaves the last values standing
            known = {gpu.get("index"): gpu for gpu in self.gpus}
            self.gpus = tuple(_last_known(known.get(gpu.get("index"), {}), gpu) for gpu in row.get("gpus") or ())
        for name in ("host_available_bytes", "host_total_bytes", "disk_free_bytes"):
            if row.get(name) is not None:
                setattr(self, name, int(row[name]))
        for entry in row.get("ranks") or ():
            self._rank(int(entry["rank"])).resident_bytes = int(entry["rss_bytes"])

    def _add_worker(self, row: Mapping[str, Any]) -> None:
        memory = self._rank(int(row["rank"]))
        instant = str(row.get("instant") or "")
        memory.allocated_bytes = int(row.get("allocated_bytes") or 0)
        memory.used_bytes = int(row.get("used_bytes") or 0)
        memory.used_peak_bytes = max(memory.used_peak_bytes, memory.used_bytes)
        memory.peaks[instant] = max(memory.peaks.get(instant, 0), memory.allocated_bytes)
        memory.curve.append(int(row.get("step") or 0), float(memory.allocated_bytes))

    def _rank(self, rank: int) -> RankMemory:
        return self.ranks.setdefault(rank, RankMemory())


def _last_known(before: Mapping[str, Any], now: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**before, "problem": "", **{key: value for key, value in now.items() if value is not None}}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """One rank against the plan; zero where nothing is known yet."""

    rank: int
    allocated_bytes: int
    used_bytes: int
    peak_bytes: int
    peak_instant: str
    planned_peak_bytes: int
    planned_used_bytes: int
    usable_bytes: int
    deviation: str
    remark: str  # "" while all is as planned


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantMemoryRow:
    instant: str
    measured_bytes: int
    planned_bytes: int
    deviation: str


def memory_rows(history: MemoryHistory, plan: Mapping[str, Any] | None) -> tuple[MemoryRow, ...]:
    """One row a rank. ``plan`` is the content of plan.json; ranks that have not reported yet are shown with zeros."""
    planned = dict(enumerate((plan or {}).get("gpus", ())))
    suspects = _suspects(plan or {})
    return tuple(
        _memory_row(rank, history.ranks.get(rank, RankMemory()), planned.get(rank, {}), suspects)
        for rank in sorted({*history.ranks, *planned})
    )


def drift_alarms(history: MemoryHistory, plan: Mapping[str, Any] | None) -> tuple[str, ...]:
    """``rank 0: 32 % above plan (+3.20 GiB): is sequence parallelism active?`` for every rank that drifted."""
    return tuple(f"rank {row.rank}: {row.remark}" for row in memory_rows(history, plan) if row.remark)


# What can be silently without effect, by how much memory its absence costs at length.
_SAVERS = {
    "ulysses": "sequence parallelism", "ring": "sequence parallelism", "fake_parallel": "fake parallel",
    "gradient_checkpointing": "gradient checkpointing", "fused_loss": "the fused loss", "liger": "Liger",
    "tiled_mlp": "the tiled MLP", "checkpoint_offload": "checkpoint offload",
    "weight_streaming": "weight streaming", "fsdp": "the sharding of weights",
}  # fmt: skip


def _suspects(plan: Mapping[str, Any]) -> str:
    """What the plan counts on, most costly first: "sequence parallelism" or "the fused loss"."""
    planned = (plan.get("config") or {}).get("optimizations") or {}
    return next((words for name, words in _SAVERS.items() if name in planned), "every planned optimization")


def _memory_row(rank: int, memory: RankMemory, planned: Mapping[str, Any], suspects: str) -> MemoryRow:
    peak, planned_peak = memory.peak_bytes, int(planned.get("peak", {}).get("allocated_bytes") or 0)
    return MemoryRow(
        rank=rank,
        allocated_bytes=memory.allocated_bytes,
        used_bytes=memory.used_bytes or memory.resident_bytes,
        peak_bytes=peak,
        peak_instant=memory.peak_instant,
        planned_peak_bytes=planned_peak,
        planned_used_bytes=int(planned.get("peak", {}).get("used_bytes") or 0),
        usable_bytes=int(planned.get("usable_bytes") or 0),
        deviation=format_deviation(peak, planned_peak) if peak else "n/a",
        remark=_remark(peak, planned_peak, suspects),
    )


def _remark(peak: int, planned: int, suspects: str) -> str:
    if planned and peak > (1 + DRIFT_FRACTION) * planned:
        over = peak - planned
        return f"{format_share(over / planned)} above plan (+{format_bytes(over)}): is {suspects} active?"
    return ""


def instant_memory_rows(memory: RankMemory, planned: Mapping[str, Any] | None) -> tuple[InstantMemoryRow, ...]:
    """What each instant held at most against what was planned for it. ``planned`` is one of plan.json's gpus."""
    by_instant = (planned or {}).get("allocated_bytes_by_instant", {})
    terms = [(term["key"], term["instants"]) for term in (planned or {}).get("terms", ())]
    rows = []
    for measured, instants in MEASURED_INSTANTS.items():
        if measured not in memory.peaks:
            continue
        highest = max(int(by_instant.get(instant) or 0) for instant in instants)
        rows.append(
            InstantMemoryRow(
                instant=measured,
                measured_bytes=memory.peaks[measured],
                planned_bytes=highest,
                deviation=format_deviation(memory.peaks[measured], highest * is_comparable(measured, terms)),
            )
        )
    return tuple(rows)


def gpu_words(history: MemoryHistory) -> tuple[str, ...]:
    """Each GPU as NVML shows it: ``GPU 0: 20.1 GiB of 22.5 GiB, 97 % busy, 72 C, 148 W``."""
    return tuple(_gpu_words(gpu) for gpu in history.gpus)


def _gpu_words(gpu: Mapping[str, Any]) -> str:
    used, total, busy = gpu.get("used_bytes"), gpu.get("total_bytes"), gpu.get("utilization")
    words = [f"GPU {gpu.get('index')}: " + ("memory n/a" if used is None else format_bytes(used))]
    if used is not None and total:
        words[0] += f" of {format_bytes(total)}"
    if busy is not None or not gpu.get("problem"):
        words.append("busy n/a" if busy is None else f"{busy} % busy")
    if gpu.get("temperature") is not None:
        words.append(f"{gpu['temperature']} C")
    if gpu.get("power_watts") is not None:
        words.append(f"{gpu['power_watts']:.0f} W")
    return ", ".join([*words, *([str(gpu["problem"])] if gpu.get("problem") else [])])


def host_words(history: MemoryHistory) -> tuple[str, ...]:
    """``host memory 67.0 GiB of 128 GiB used``, ``disk 212 GiB free``; nothing while nothing is known."""
    free, total, disk = history.host_available_bytes, history.host_total_bytes, history.disk_free_bytes
    words = []
    if free is not None:
        used = "" if total is None else f"host memory {format_bytes(total - free)} of {format_bytes(total)} used"
        words.append(used or f"host memory {format_bytes(free)} free")
    if disk is not None:
        words.append(f"disk {format_bytes(disk)} free")
    return tuple(words)
