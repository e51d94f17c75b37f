"""What this machine's GPUs say of themselves, whatever the driver fails to tell. Used by `longfit gpus` and doctor.

hardware.py asks the same driver, but for one number to plan with; here every card is shown, a lost one too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from app.services.hardware import find_gpu
from core.run.nvml import GpuReading, Nvml
from planner.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStatus:
    """None: the driver does not tell (WSL, MIG, permissions)."""

    index: int
    name: str
    total_bytes: int | None
    free_bytes: int | None
    compute_capability: tuple[int, int] | None
    utilization: int | None  # percent
    num_processes: int | None
    catalog_name: str | None  # the card whose rates the planner takes; None: the nearest in memory
    problem: str  # "lost": the card fell off the bus


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus:
    problem: str  # why there are no GPUs to see; empty when there are
    driver_version: str | None
    gpus: tuple[GpuStatus, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def probe_gpus(*, library: Any = None) -> DriverStatus:
    """Ask NVML once. Never raises: each failure is kept to the number it spoils. ``library`` stands in for pynvml."""
    nvml = Nvml(library=library)
    try:
        gpus = tuple(_status(reading) for reading in nvml.read())
        problem = nvml.problem or ("" if gpus else "the NVIDIA driver shows no GPU")
        return DriverStatus(problem=problem, driver_version=nvml.driver_version(), gpus=gpus)
    finally:
        nvml.close()


def _status(reading: GpuReading) -> GpuStatus:
    known = reading.total_bytes is not None and reading.used_bytes is not None
    return GpuStatus(
        index=reading.index,
        name=reading.name,
        total_bytes=reading.total_bytes,
        free_bytes=reading.total_bytes - reading.used_bytes if known else None,
        compute_capability=reading.compute_capability,
        utilization=reading.utilization,
        num_processes=None if reading.pids is None else len(reading.pids),
        catalog_name=_catalog_name(reading.name),
        problem=reading.problem,
    )


def _catalog_name(name: str) -> str | None:
    try:
        return find_gpu(name).name if name else None
    except ConfigError:
        return None
