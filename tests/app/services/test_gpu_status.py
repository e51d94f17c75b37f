"""GPUs as `longfit gpus` shows them, under every fault that NVML is known to have."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli import gpus
from app.services.gpu_status import probe_gpus

GIB = 1024**3
FAULTS = json.loads((Path(__file__).parents[2] / "data" / "k12_nvml_faults.json").read_text("utf-8"))["inject"]


class FakeNvml:
    """Two A10 cards; ``faults`` maps a call to the error it raises (for every card, or for one)."""

    class NVMLError(Exception):
        pass

    def __init__(self, **faults: str) -> None:
        self.faults = faults

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            card = arguments[0] if arguments else None
            error = self.faults.get(name) or self.faults.get(f"{name}_{card}")
            if error:
                raise type(error, (self.NVMLError,), {})("injected")
            return self.answer(name, card)

        return call

    def answer(self, name: str, card: Any) -> Any:
        match name:
            case "nvmlDeviceGetCount":
                return 2
            case "nvmlDeviceGetHandleByIndex":
                return card
            case "nvmlDeviceGetName":
                return "NVIDIA A10"
            case "nvmlDeviceGetMemoryInfo":
                return SimpleNamespace(total=24 * GIB, used=2 * GIB, free=22 * GIB)
            case "nvmlDeviceGetUtilizationRates":
                return SimpleNamespace(gpu=97)
            case "nvmlDeviceGetCudaComputeCapability":
                return (8, 6)
            case "nvmlDeviceGetComputeRunningProcesses":
                return [SimpleNamespace(pid=1)]
            case "nvmlSystemGetDriverVersion":
                return b"590.10"
        return None


def words(**faults: str) -> str:
    return "\n".join(gpus._here(probe_gpus(library=FakeNvml(**faults))))


def test_a_sound_machine_shows_memory_use_and_what_it_is_planned_as() -> None:
    status = probe_gpus(library=FakeNvml())
    assert [gpu.catalog_name for gpu in status.gpus] == ["A10", "A10"]
    assert status.gpus[0].compute_capability == (8, 6)
    assert status.driver_version == "590.10"
    line = words().splitlines()[-1]
    for word in ("NVIDIA A10", "24.0 GiB", "22.0 GiB", "97 %"):
        assert word in line


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault['call']}-{fault['error']}")
def test_every_known_fault_is_words_and_never_a_traceback(fault: dict[str, str]) -> None:
    if fault["call"] == "any, mid-run":
        for call in (
            "nvmlDeviceGetCount",
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetName",
            "nvmlSystemGetDriverVersion",
        ):
            assert "This machine" in words(**{call: fault["error"]})
        return
    assert "This machine" in words(**{fault["call"]: fault["error"]})


def test_without_a_driver_it_says_that_the_cpu_is_used() -> None:
    assert "no NVIDIA driver is installed" in words(nvmlInit="NVMLError_LibraryNotFound")
    assert "--gpu cpu" in words(nvmlInit="NVMLError_LibraryNotFound")


def test_a_version_mismatch_says_reboot() -> None:
    assert "reboot" in words(nvmlInit="NVMLError_LibRmVersionMismatch")


def test_one_missing_number_is_na_and_the_others_stay() -> None:
    line = words(nvmlDeviceGetUtilizationRates="NVMLError_NotSupported").splitlines()[-1]
    assert "n/a" in line
    assert "24.0 GiB" in line
    line = words(nvmlDeviceGetMemoryInfo="NVMLError_NotSupported").splitlines()[-1]
    assert line.count("n/a") == 2
    assert "97 %" in line


def test_a_lost_card_is_marked_and_the_others_go_on() -> None:
    lines = words(nvmlDeviceGetHandleByIndex_0="NVMLError_GpuIsLost").splitlines()
    assert "lost" in lines[-2]
    assert "22.0 GiB" in lines[-1]
