"""Seconds of one micro-batch after another, and the clock and power of the card at every fourth: does a short
measurement tell what a long run will do?

    python benchmarks/sustained.py OUT.csv [--length 8192] [--count 40] [ENGINE ...]

Engines and their settings are those of engines.py but for `layer`, which is that of PRESET.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

PRESET = "qwen2.5-7b-8k-1x24g"


def rows_of(engine: str, length: int, count: int) -> list[dict[str, Any]]:
    import pynvml

    from app.services.presets import load_preset
    from benchmarks.engines import MODEL, values_of
    from benchmarks.random_run import random_run
    from core.train.forward import forward_loss

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    values = values_of(engine, length)
    if engine == "layer":
        given = load_preset(PRESET).values
        values = {key: value for key, value in given.items() if key not in ("model", "max_length", "data")}
    run = random_run(MODEL, length, {**values, "engine": engine.partition("-")[0]})
    rows: list[dict[str, Any]] = []
    for index in range(-1, count):
        torch.cuda.synchronize()
        started = time.perf_counter()
        (forward_loss(run.setup, run.shard) / run.num_targets).backward()
        row: dict[str, Any] = {"engine": engine, "micro_batch": index}
        if index % 4 == 3:  # while the card works
            row["sm_mhz"] = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
            row["watts"] = round(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)
            row["celsius"] = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        torch.cuda.synchronize()
        row["seconds"] = round(time.perf_counter() - started, 4)
        if index >= 0:  # the first one warms up
            rows.append(row)
    run.setup.restore()
    return rows


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    parser = argparse.ArgumentParser(description="one micro-batch after another")
    parser.add_argument("out")
    parser.add_argument("engines", nargs="*", default=["layer", "module"])
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--count", type=int, default=40)
    args = parser.parse_args()
    from benchmarks.gpu_rows import write_gpu_rows

    write_gpu_rows(args.out, [row for engine in args.engines for row in rows_of(engine, args.length, args.count)])
