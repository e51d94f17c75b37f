import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from core.train import memory
from core.train.memory import CpuProbe, MemoryMeter, Reading

MIB = 1024**2


class ScriptedProbe:
    baseline_bytes = 100

    def __init__(self, *readings):
        self.readings = iter(readings)

    def allocatable_bytes(self):
        return 4000

    def lap(self):
        allocated, reserved, used = next(self.readings)
        return Reading(allocated_bytes=allocated, reserved_bytes=reserved, used_bytes=used)


def test_rows_hold_the_highest_reading_of_each_instant_and_start_anew():
    probe = ScriptedProbe((5, 6, 110), (20, 30, 130), (9, 30, 130), (8, 30, 130), (7, 40, 140))
    meter = MemoryMeter(probe, rank=1, clock=lambda: 5.0)
    for instant in ("load", "forward", "backward", "forward"):
        with meter.during(instant):
            pass
    rows = {row["instant"]: row for row in meter.rows(step=3)}
    assert rows["forward"] == {
        "time": 5.0, "step": 3, "rank": 1, "instant": "forward", "allocated_bytes": 20, "reserved_bytes": 30,
        "used_bytes": 130, "peak_bytes": 130, "baseline_bytes": 100}  # fmt: skip
    assert list(rows) == ["load", "forward", "backward"]
    assert rows["backward"]["allocated_bytes"] == 9
    with meter.during("evaluation"):
        pass
    (row,) = meter.rows(step=4)
    assert (row["instant"], row["allocated_bytes"], row["peak_bytes"]) == ("evaluation", 7, 140)


def test_peak_event_names_the_instant_and_the_plan_of_its_own_rank(tmp_path):
    plan = tmp_path / "plan.json"
    peaks = [
        {"allocated_bytes": 1, "reserved_bytes": 2, "used_bytes": 3, "band_bytes": [2, 4]},
        {"allocated_bytes": 10, "reserved_bytes": 20, "used_bytes": 30, "band_bytes": [20, 40]},
    ]
    meter = MemoryMeter(ScriptedProbe((5, 6, 130), (20, 30, 130), (9, 30, 120)), rank=1)
    for instant in ("forward", "backward", "step"):
        with meter.during(instant):
            pass
    measured = {
        "rank": 1,
        "instant": "backward",
        "allocated_bytes": 20,
        "reserved_bytes": 30,
        "used_bytes": 130,
        "baseline_bytes": 100,
    }
    assert meter.peak_event(plan) == measured
    plan.write_text(json.dumps({"gpus": [{"index": i, "peak": peak} for i, peak in enumerate(peaks)]}))
    assert meter.peak_event(plan) == measured | {
        "planned_allocated_bytes": 10,
        "planned_reserved_bytes": 20,
        "planned_used_bytes": 30,
    }


def test_an_instant_that_fails_is_measured_too():
    meter = MemoryMeter(ScriptedProbe((20, 30, 130)), rank=0)
    with pytest.raises(MemoryError), meter.during("backward"):
        raise MemoryError
    assert meter.peak.instant == "backward"
    assert meter.at_failure() == {"instant": "backward", "allocatable_bytes": 4000}


def big():
    return torch.ones(64 * MIB // 4)


def test_cpu_probe_tells_what_tensors_could_have_with_those_that_are_there(monkeypatch):
    probe = CpuProbe()
    block = big()
    free = memory.resource.RLIM_INFINITY
    monkeypatch.setattr(memory.resource, "getrlimit", lambda _: (free, free))
    unlimited = probe.allocatable_bytes()
    assert unlimited > block.numel() * 4
    limit = memory._status_bytes("VmData") + 100 * MIB
    monkeypatch.setattr(memory.resource, "getrlimit", lambda _: (limit, free))
    limited = probe.allocatable_bytes()
    assert 100 * MIB < limited < 200 * MIB + block.numel() * 4
    assert limited < unlimited


def test_cpu_probe_sees_a_tensor_that_lived_only_within_the_lap():
    probe = CpuProbe()
    big()
    during, after = probe.lap(), probe.lap()
    assert 60 * MIB < during.allocated_bytes < 80 * MIB
    assert after.allocated_bytes < 30 * MIB
    assert during.used_bytes == during.allocated_bytes + probe.baseline_bytes


def test_without_clear_refs_the_peak_of_the_run_is_still_seen(monkeypatch):
    assert memory._reset_high_water()
    monkeypatch.setattr(memory, "_reset_high_water", lambda: False)
    probe = CpuProbe()
    meter = MemoryMeter(probe, rank=0)
    with meter.during("forward"):
        big()
    with meter.during("step"):
        pass
    rows = {row["instant"]: row["allocated_bytes"] for row in meter.rows(0)}
    assert meter.peak.instant == "forward"
    assert rows["forward"] > 60 * MIB
    assert rows["step"] < 30 * MIB


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_resident_set_follows_freed_tensors_under_the_malloc_settings_of_a_worker():
    """Many blocks below glibc's dynamic threshold, freed in the order of a backward pass, beside one kept small one."""
    program = (
        "import torch; from core.train.memory import CpuProbe; torch.ones(8_000_000); probe = CpuProbe();"
        "kept = [(torch.ones(1_000_000), torch.ones(300)) for _ in range(32)];"
        "first = probe.lap().allocated_bytes; kept = [small for _, small in kept]; probe.lap();"
        "print(first, probe.lap().allocated_bytes)"
    )
    settings = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072", "OMP_NUM_THREADS": "1"}
    output = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    held, freed = map(int, output.split())
    assert held == pytest.approx(128e6, rel=0.05)
    assert freed < 6e6
