"""What NVML says of the GPUs, with each of its failures kept to the one number it spoils. Called by the sampler."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """None: this card, driver or container does not tell."""

    index: int
    name: str = ""
    total_bytes: int | None = None
    used_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    utilization: int | None = None  # percent of the last sample period in which a kernel ran
    temperature: int | None = None  # degrees Celsius of the chip
    power_watts: float | None = None
    pids: tuple[int, ...] | None = None  # with a compute context; may be of the host's pid namespace
    problem: str = ""  # "lost": the card fell off the bus


class Nvml:
    """A session with the driver. ``problem`` says why there is none; readings are then empty."""

    def __init__(self, visible: str | None = None, *, library: Any = None) -> None:
        """``visible``: a value of CUDA_VISIBLE_DEVICES (numbers in PCI order, or UUIDs); None shows all GPUs."""
        self.problem = ""
        self._visible = visible
        self._library = library
        if visible is not None and not visible.strip():
            self.problem = "no GPU is visible to this run"
            return
        try:
            if self._library is None:
                import pynvml

                self._library = pynvml
            self._library.nvmlInit()
        except ImportError:
            self.problem = "the package nvidia-ml-py is not installed"
        except self._library.NVMLError as error:
            self.problem = _INIT_WORDS.get(type(error).__name__, f"NVML does not start: {error}")

    def read(self) -> tuple[GpuReading, ...]:
        """One reading a visible GPU. Never raises."""
        if self.problem:
            return ()
        count = self._try(self._library.nvmlDeviceGetCount)
        if count is None:
            return ()
        readings = (self._read_one(index) for index in range(count))
        return tuple(reading for reading in readings if reading is not None)

    def driver_version(self) -> str | None:
        return None if self.problem else _text(self._try(self._library.nvmlSystemGetDriverVersion))

    def close(self) -> None:
        if not self.problem:
            self._try(self._library.nvmlShutdown)

    def _read_one(self, index: int) -> GpuReading | None:
        library = self._library
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
        except library.NVMLError as error:
            lost = type(error).__name__ == "NVMLError_GpuIsLost"
            return GpuReading(index=index, problem="lost" if lost else str(error))
        if not self._is_visible(index, handle):
            return None
        memory = self._try(library.nvmlDeviceGetMemoryInfo, handle)
        capability = self._try(library.nvmlDeviceGetCudaComputeCapability, handle)
        utilization = self._try(library.nvmlDeviceGetUtilizationRates, handle)
        temperature = self._try(library.nvmlDeviceGetTemperature, handle, _CHIP)
        milliwatts = self._try(library.nvmlDeviceGetPowerUsage, handle)
        processes = self._try(library.nvmlDeviceGetComputeRunningProcesses, handle)
        return GpuReading(
            index=index,
            name=_text(self._try(library.nvmlDeviceGetName, handle)) or "",
            total_bytes=None if memory is None else int(memory.total),
            used_bytes=None if memory is None else int(memory.used),
            compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
            utilization=None if utilization is None else int(utilization.gpu),
            temperature=None if temperature is None else int(temperature),
            power_watts=None if milliwatts is None else milliwatts / 1000,
            pids=None if processes is None else tuple(int(process.pid) for process in processes),
        )

    def _is_visible(self, index: int, handle: Any) -> bool:
        if self._visible is None:
            return True
        names = [name.strip() for name in self._visible.split(",") if name.strip()]
        if any(re.fullmatch(r"\d+", name) for name in names):
            return str(index) in names
        uuid = _text(self._try(self._library.nvmlDeviceGetUUID, handle)) or ""
        return any(uuid.startswith(name) for name in names) or not uuid

    def _try(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None when the driver has none: unsupported (WSL, MIG), not permitted, or unknown."""
        try:
            return call(*arguments)
        except self._library.NVMLError:
            return None


_CHIP = 0  # nvml.h: NVML_TEMPERATURE_GPU
_INIT_WORDS = {
    "NVMLError_LibraryNotFound": "no NVIDIA driver is installed",
    "NVMLError_DriverNotLoaded": "the NVIDIA driver is not loaded",
    "NVMLError_LibRmVersionMismatch": "NVIDIA driver and library differ in version: reboot after a driver update",
    "NVMLError_NoPermission": "this user may not talk to the NVIDIA driver",
}


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
