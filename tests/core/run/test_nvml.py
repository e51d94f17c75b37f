"""NVML with a stand-in for the driver's library: each failure spoils one number and nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from core.run.nvml import Nvml


class NVMLError(Exception):
    pass


def error(name):
    return type(f"NVMLError_{name}", (NVMLError,), {})(name)


class Driver:
    """Two GPUs; ``faults`` maps a call's name to the error it raises."""

    NVMLError = NVMLError

    def __init__(self, **faults):
        self.faults = faults

    def __getattr__(self, name):
        answers = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: b"570.1",
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda handle: b"NVIDIA A10",
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}abc",
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=24 << 30, used=(handle + 1) << 30),
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (8, 6),
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=50),
            "nvmlDeviceGetTemperature": lambda handle, sensor: 72,
            "nvmlDeviceGetPowerUsage": lambda handle: 148_500,
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=7)],
        }

        def call(*arguments):
            fault = self.faults.get(name)
            if fault is not None and (not isinstance(fault, tuple) or fault[0] in arguments):
                raise fault[1] if isinstance(fault, tuple) else fault
            return answers[name](*arguments)

        return call


def test_a_healthy_machine():
    nvml = Nvml(library=Driver())
    assert nvml.problem == ""
    assert nvml.driver_version() == "570.1"
    first, second = nvml.read()
    assert (first.name, first.used_bytes, second.used_bytes) == ("NVIDIA A10", 1 << 30, 2 << 30)
    assert (first.total_bytes, first.utilization, first.pids) == (24 << 30, 50, (7,))
    assert first.compute_capability == (8, 6)
    assert (first.temperature, first.power_watts) == (72, 148.5)


@pytest.mark.parametrize(
    ("name", "words"),
    [("LibraryNotFound", "no NVIDIA driver"), ("LibRmVersionMismatch", "reboot"), ("Unknown", "does not start")],
)
def test_a_driver_that_does_not_start_says_why(name, words):
    nvml = Nvml(library=Driver(nvmlInit=error(name)))
    assert words in nvml.problem
    assert nvml.read() == ()
    assert nvml.driver_version() is None
    nvml.close()


@pytest.mark.parametrize(
    ("call", "field"),
    [("nvmlDeviceGetUtilizationRates", "utilization"), ("nvmlDeviceGetMemoryInfo", "used_bytes"),
     ("nvmlDeviceGetComputeRunningProcesses", "pids")],
)  # fmt: skip
def test_what_the_driver_does_not_tell_is_none_and_the_rest_stays(call, field):
    reading = Nvml(library=Driver(**{call: error("NotSupported")})).read()[0]
    others = {"utilization", "used_bytes", "pids"} - {field}
    assert getattr(reading, field) is None
    assert all(getattr(reading, other) is not None for other in others)


def test_a_lost_card_is_marked_and_the_others_go_on():
    first, second = Nvml(library=Driver(nvmlDeviceGetHandleByIndex=(0, error("GpuIsLost")))).read()
    assert first.problem == "lost"
    assert (second.problem, second.used_bytes) == ("", 2 << 30)


def test_an_error_in_the_middle_of_a_run_is_survived():
    assert Nvml(library=Driver(nvmlDeviceGetCount=error("Unknown"))).read() == ()


@pytest.mark.parametrize(
    ("visible", "indices"), [(None, [0, 1]), ("1", [1]), ("1,0", [0, 1]), ("GPU-1abc", [1]), ("GPU-0", [0]), ("", [])]
)
def test_only_visible_gpus_are_read(visible, indices):
    assert [reading.index for reading in Nvml(visible, library=Driver()).read()] == indices
