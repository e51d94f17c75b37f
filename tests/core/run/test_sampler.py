from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest

from core.run import sampler as sampler_module
from core.run.nvml import GpuReading, Nvml
from core.run.sampler import Sampler, is_worth_a_row, sample_row
from tests.core.run.run_cases import wait_for

GPU = GpuReading(index=0, used_bytes=10 << 30, total_bytes=24 << 30, utilization=50, temperature=72, power_watts=148.0)


def test_a_row_has_gpus_ranks_host_and_disk(tmp_path):
    row = sample_row((GPU,), {1: os.getpid(), 2: 2**22 + 1}, folder=tmp_path, now=5.0)
    assert row["source"] == "supervisor"
    assert row["gpus"] == [
        {"index": 0, "used_bytes": 10 << 30, "total_bytes": 24 << 30, "utilization": 50, "temperature": 72,
         "power_watts": 148.0}
    ]  # fmt: skip
    assert [entry["rank"] for entry in row["ranks"]] == [1]
    assert 0 < row["host_available_bytes"] <= row["host_total_bytes"]
    assert row["disk_free_bytes"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)


def test_a_folder_that_is_away_costs_one_number(tmp_path):
    assert sample_row((), {}, folder=tmp_path / "gone", now=5.0)["disk_free_bytes"] is None


def test_rows_that_say_nothing_new_are_left_out_for_ten_seconds():
    def row(time, used):
        return {"time": time, "ranks": [], "gpus": [{"index": 0, "used_bytes": used}]}

    assert not is_worth_a_row(row(0, 1000), row(1, 1005))
    assert is_worth_a_row(row(0, 1000), row(1, 1011))
    assert is_worth_a_row(row(0, 1000), row(10, 1000))
    assert is_worth_a_row(row(0, 1000), {**row(1, 1000), "ranks": [{"rank": 0, "rss_bytes": 1}]})


def test_the_thread_samples_until_it_is_stopped(tmp_path):
    sampler = Sampler(Nvml(""), tmp_path, period_seconds=0.01)
    sampler.worker_pids = {0: os.getpid()}
    sampler.start()
    rows = wait_for(sampler.rows, seconds=10)
    assert rows[0]["ranks"][0]["rss_bytes"] > 0
    sampler.stop()
    sampler.rows()
    assert sampler.rows() == []


def test_whatever_the_driver_does_in_the_middle_of_a_run_sampling_goes_on(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sampler_module, "HEARTBEAT_SECONDS", 0.02)
    nvml = Nvml("")
    answers = [(GPU,), (), RuntimeError("not even an NVML error"), (replace(GPU, used_bytes=5 << 30),)]

    def read():
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(nvml, "read", read)
    sampler = Sampler(nvml, tmp_path, period_seconds=0.01)
    sampler.start()
    rows = []
    wait_for(lambda: rows.extend(sampler.rows()) or len(rows) >= 3, seconds=10)
    sampler.stop()
    assert [[gpu["used_bytes"] >> 30 for gpu in row["gpus"]] for row in rows[:3]] == [[10], [], [5]]
    assert "not even an NVML error" in capfd.readouterr().err
